// Sequences of users, for paddlebox/data/sequences.py.
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <type_traits>

#include "feed/instances/sequences.h"
#include "feed/text/scan.h"
#include "feed/text/transform.h"
#include "paddle/bindings/arrays.h"
#include "paddle/bindings/bindings.h"

namespace pbx {
namespace {

feed::SequenceSplit SplitFrom(const std::string& name) {
  if (name == "none") return feed::SequenceSplit::kNone;
  if (name == "direct") return feed::SequenceSplit::kDirect;
  if (name == "mask") return feed::SequenceSplit::kMask;
  throw StatusError(
      Error(Code::kInvalidArgument, "split '%s': expected none, direct or mask", name.c_str()));
}

// users, times, trained: (N). seed: None: users are not shuffled. Returns order, starts, trained,
// positions, and (users, longest, longest_first).
py::tuple Cut(const Array<uint64_t>& users, const Array<int64_t>& times,
              const Array<uint8_t>& trained, const std::string& split, size_t max_length,
              size_t overlap, const std::optional<uint64_t>& seed, size_t carried) {
  CheckSize("times", SizeOf(times), SizeOf(users));
  CheckSize("trained", SizeOf(trained), SizeOf(users));
  const feed::SequenceInstances in = {SizeOf(users), users.data(), times.data(), trained.data(),
                                      carried};
  const feed::SequenceOptions options = {SplitFrom(split), max_length, overlap, seed.has_value(),
                                         seed.value_or(0)};
  feed::Sequences made;
  {
    const py::gil_scoped_release release;
    made = ValueOrThrow(feed::CutSequences(in, options));
  }
  return py::make_tuple(ToArray(std::move(made.order)), ToArray(std::move(made.starts)),
                        ToArray(std::move(made.trained)), ToArray(std::move(made.positions)),
                        py::make_tuple(made.users, made.longest, made.longest_first));
}

// labels (n), dense (n, W), lengths (n, S), feasigns (nnz).
std::unique_ptr<ParsedChunk> ChunkOf(const Array<float>& labels, const Array<float>& dense,
                                     const Array<uint32_t>& lengths,
                                     const Array<uint64_t>& feasigns) {
  auto chunk = std::make_unique<ParsedChunk>();
  chunk->instances = SizeOf(labels);
  chunk->labels.assign(labels.data(), labels.data() + SizeOf(labels));
  chunk->dense.assign(dense.data(), dense.data() + dense.size());
  chunk->lengths.assign(lengths.data(), lengths.data() + lengths.size());
  chunk->feasigns.assign(feasigns.data(), feasigns.data() + SizeOf(feasigns));
  return chunk;
}

py::tuple ColumnsOf(const ParsedChunk& chunk) {
  const auto copy = [](const auto& column) {
    return ToArray(std::decay_t<decltype(column)>(column));
  };
  return py::make_tuple(copy(chunk.labels), copy(chunk.dense), copy(chunk.lengths),
                        copy(chunk.feasigns));
}

}  // namespace

void BindSequences(py::module_& module) {
  module.def("cut_sequences", &Cut, py::arg("users"), py::arg("times"), py::arg("trained"),
             py::arg("split"), py::arg("max_length"), py::arg("overlap"),
             py::arg("seed") = py::none(), py::arg("carried") = 0);
  // (users (n) uint64, times (n) int64) of a chunk, whose times are removed.
  module.def("take_user_times", [](ParsedChunk& chunk, size_t sparse_slots, size_t slot) {
    feed::UserTimes taken = ValueOrThrow(feed::TakeUserTimes(sparse_slots, slot, &chunk));
    return py::make_tuple(ToArray(std::move(taken.users)), ToArray(std::move(taken.times)));
  });
  // The feasign of a text in a sparse slot, by the slot's number and whether its values are hashed;
  // 0: none.
  module.def(
      "feasign_in", [](const FeedSchema& schema, size_t slot, bool hash, const std::string& text) {
        uint64_t feasign = 0;
        const char* const end = text.data() + text.size();
        if (hash) {
          feasign = FeasignOfString(text.data(), text.size());
        } else if (!text.empty() && feed::ScanUint64(text.data(), end, &feasign) != end) {
          ThrowIfError(Error(Code::kInvalidArgument, "'%s': expected a feasign", text.c_str()));
        }
        return schema.Keyed(feasign, slot);
      });
  module.def("chunk_of", &ChunkOf, py::arg("labels"), py::arg("dense"), py::arg("lengths"),
             py::arg("feasigns"));
  module.def("columns_of", &ColumnsOf, py::arg("chunk"));
}

}  // namespace pbx
