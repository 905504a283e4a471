// Parsed files and spilled chunks, for paddlebox/data/{cache,spill}.py.
#include <pybind11/stl.h>

#include "feed/instances/instances.h"
#include "feed/instances/parsed_file.h"
#include "feed/instances/sharing.h"
#include "feed/instances/side_columns.h"
#include "feed/instances/sorted_keys.h"
#include "paddle/bindings/arrays.h"
#include "paddle/bindings/bindings.h"

namespace pbx {
namespace {

// Reading and writing release the GIL.
template <typename Source>
std::unique_ptr<ParsedChunk> ReadFrom(const Source& source, size_t number) {
  auto chunk = std::make_unique<ParsedChunk>();
  const py::gil_scoped_release release;
  ThrowIfError(source.Read(number, chunk.get()));
  return chunk;
}

// part_of_row: (n) uint32, for the rows of all chunks.
std::vector<std::unique_ptr<ParsedChunk>> Scatter(const std::vector<const ParsedChunk*>& chunks,
                                                  size_t sparse_slots,
                                                  const Array<uint32_t>& part_of_row,
                                                  size_t parts) {
  size_t rows = 0;
  for (const ParsedChunk* chunk : chunks) rows += chunk->instances;
  if (SizeOf(part_of_row) != rows) {
    ThrowIfError(Error(Code::kInvalidArgument, "part_of_row has %zu entries, expected %zu",
                       SizeOf(part_of_row), rows));
  }
  std::vector<std::unique_ptr<ParsedChunk>> out;
  const uint32_t* part = part_of_row.data();
  const py::gil_scoped_release release;
  std::vector<ParsedChunk> made(parts);
  for (const ParsedChunk* chunk : chunks) {
    ThrowIfError(ScatterRows(*chunk, sparse_slots, part, &made));
    part += chunk->instances;
  }
  out.reserve(made.size());
  for (ParsedChunk& one : made) out.push_back(std::make_unique<ParsedChunk>(std::move(one)));
  return out;
}

py::array_t<uint64_t> Groups(const ParsedChunk& chunk, size_t sparse_slots, const std::string& by,
                             size_t slot) {
  const GroupBy kind = by == "ins_id"      ? GroupBy::kInsId
                       : by == "search_id" ? GroupBy::kSearchId
                                           : GroupBy::kSlot;
  std::vector<uint64_t> groups;
  {
    const py::gil_scoped_release release;
    ThrowIfError(GroupsOf(chunk, sparse_slots, kind, slot, &groups));
  }
  return ToArray(std::move(groups));
}

py::array_t<uint8_t> Encoded(const ParsedChunk& chunk) {
  std::string bytes;
  {
    const py::gil_scoped_release release;
    EncodeInstances(chunk, &bytes);
  }
  const uint8_t* const data = reinterpret_cast<const uint8_t*>(bytes.data());
  return ToArray(std::vector<uint8_t>(data, data + bytes.size()));
}

// bytes: aligned to 8.
std::unique_ptr<ParsedChunk> Decoded(const Array<uint8_t>& bytes, const std::string& where) {
  auto chunk = std::make_unique<ParsedChunk>();
  const char* const data = reinterpret_cast<const char*>(bytes.data());
  const size_t size = SizeOf(bytes);
  const py::gil_scoped_release release;
  ThrowIfError(DecodeInstances(data, size, where, chunk.get()));
  return chunk;
}

// a, b: (u), (v) ascending keys, with the slots of each. Returns the keys of both, with the lower
// slots.
py::tuple Merge(const Array<uint64_t>& a, const Array<uint16_t>& a_slots, const Array<uint64_t>& b,
                const Array<uint16_t>& b_slots) {
  const feed::SlottedKeys left = {a.data(), a_slots.data(), SizeOf(a)};
  const feed::SlottedKeys right = {b.data(), b_slots.data(), SizeOf(b)};
  std::vector<uint64_t> keys;
  std::vector<uint16_t> slots;
  {
    const py::gil_scoped_release release;
    feed::MergeSortedKeys(left, right, &keys, &slots);
  }
  return py::make_tuple(ToArray(std::move(keys)), ToArray(std::move(slots)));
}

py::array_t<int32_t> Positions(const Array<uint64_t>& keys, const Array<uint64_t>& among) {
  std::vector<int32_t> positions;
  {
    const uint64_t* const wanted = keys.data();
    const uint64_t* const there = among.data();
    const size_t n = SizeOf(keys), size = SizeOf(among);
    const py::gil_scoped_release release;
    ThrowIfError(feed::PositionsOfSorted(wanted, n, there, size, &positions));
  }
  return ToArray(std::move(positions));
}

}  // namespace

void BindParsed(py::module_& module) {
  const auto release = py::call_guard<py::gil_scoped_release>();
  module.attr("PARSED_FILE_VERSION") = kParsedFileVersion;
  module.def("chunk_bytes", &BytesOf);
  module.def("scatter_rows", &Scatter, py::arg("chunks"), py::arg("sparse_slots"),
             py::arg("part_of_row"), py::arg("parts"));
  module.def("groups_of", &Groups, py::arg("chunk"), py::arg("sparse_slots"), py::arg("by"),
             py::arg("slot"));
  module.def("encode_instances", &Encoded);
  module.def("decode_instances", &Decoded, py::arg("bytes"), py::arg("where"));
  module.def("shuffled_order",
             [](size_t size, uint64_t seed) { return ToArray(ShuffledOrder(size, seed)); });
  module.def("draw_donors", [](size_t instances, size_t pool_size, uint64_t seed) {
    feed::Donors donors = feed::DrawDonors(instances, pool_size, seed);
    return py::make_tuple(ToArray(std::move(donors.pool)), ToArray(std::move(donors.of)));
  });
  // None if the chunk has no tags.
  module.def("take_tags", [](ParsedChunk& chunk) {
    return chunk.tags.spec().any() ? std::make_unique<ParsedChunk>(feed::TakeTags(&chunk))
                                   : nullptr;
  });
  module.def(
      "first_of_slot",
      [](const ParsedChunk& chunk, size_t sparse_slots, size_t slot) {
        return std::make_unique<ParsedChunk>(feed::FirstOfSlot(chunk, sparse_slots, slot));
      },
      release);
  module.def("merge_sorted_keys", &Merge);
  module.def("positions_of_sorted", &Positions, py::arg("keys"), py::arg("among"));
  py::class_<ParsedFileWriter>(module, "ParsedFileWriter")
      .def(py::init(
          [](const std::string& path) { return ValueOrThrow(ParsedFileWriter::Create(path)); }))
      .def(
          "add",
          [](ParsedFileWriter& self, size_t number, const ParsedChunk& chunk) {
            ThrowIfError(self.Add(number, chunk));
          },
          release)
      .def(
          "commit",
          [](ParsedFileWriter& self, const std::string& key) { ThrowIfError(self.Commit(key)); },
          release)
      .def_property_readonly("bytes", &ParsedFileWriter::bytes);
  py::class_<ParsedFileReader>(module, "ParsedFileReader")
      .def(py::init([](const std::string& path, const std::string& key) {
        return ValueOrThrow(ParsedFileReader::Open(path, key));
      }))
      .def_property_readonly("pieces", &ParsedFileReader::pieces)
      .def("read", &ReadFrom<ParsedFileReader>);
  py::class_<SpillFile>(module, "SpillFile")
      .def(py::init([](const std::string& path) { return ValueOrThrow(SpillFile::Create(path)); }))
      .def(
          "add",
          [](SpillFile& self, const ParsedChunk& chunk) { return ValueOrThrow(self.Add(chunk)); },
          release)
      .def("read", &ReadFrom<SpillFile>)
      .def_property_readonly("bytes", &SpillFile::bytes);
}

}  // namespace pbx
