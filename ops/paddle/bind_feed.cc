#include <pybind11/stl.h>

#include <algorithm>

#include "feed/instances.h"
#include "feed/parser.h"
#include "feed/tokens.h"
#include "paddle/arrays.h"
#include "paddle/bindings.h"
#include "row/feasign.h"

namespace pbx {
namespace {

Format FormatFrom(const std::string& name) {
  if (name == "multislot") return Format::kMultiSlot;
  if (name == "feasign_slot") return Format::kFeasignSlot;
  if (name == "slot_value") return Format::kSlotValue;
  if (name == "criteo_tsv") return Format::kCriteoTsv;
  throw StatusError(Error(Code::kInvalidArgument,
                          "format '%s': expected multislot, feasign_slot, slot_value or criteo_tsv",
                          name.c_str()));
}

SlotKind KindFrom(const std::string& name) {
  if (name == "label") return SlotKind::kLabel;
  if (name == "dense") return SlotKind::kDense;
  if (name == "sparse") return SlotKind::kSparse;
  throw StatusError(Error(Code::kInvalidArgument, "slot type '%s': expected label, dense or sparse",
                          name.c_str()));
}

// slots: dicts of name, type, dim, column.
FeedSchema SchemaFrom(const std::string& format, const std::vector<py::dict>& slots,
                      bool per_slot_keys, size_t max_line_bytes) {
  FeedSchema schema;
  schema.format = FormatFrom(format);
  schema.per_slot_keys = per_slot_keys;
  schema.max_line_bytes = max_line_bytes;
  for (const py::dict& fields : slots) {
    SlotSpec slot;
    slot.name = fields["name"].cast<std::string>();
    slot.kind = KindFrom(fields["type"].cast<std::string>());
    slot.dim = fields["dim"].cast<int>();
    slot.column = fields["column"].cast<std::string>();
    schema.slots.push_back(slot);
  }
  ParsedChunk nothing;
  ThrowIfError(ParseChunk(schema, "", 0, &nothing));  // a schema that makes no sense is said here
  return schema;
}

std::unique_ptr<ParsedChunk> Parse(const FeedSchema& schema, const py::buffer& buffer) {
  const py::buffer_info bytes = buffer.request();
  const char* data = static_cast<const char*>(bytes.ptr);
  const size_t size = static_cast<size_t>(bytes.size * bytes.itemsize);
  auto chunk = std::make_unique<ParsedChunk>();
  const py::gil_scoped_release release;
  ThrowIfError(ParseChunk(schema, data, size, chunk.get()));
  return chunk;
}

std::vector<py::tuple> FirstBad(const ParsedChunk& chunk) {
  std::vector<py::tuple> bad;
  bad.reserve(chunk.first_bad.size());
  for (const BadLine& line : chunk.first_bad) {
    bad.push_back(py::make_tuple(line.line, line.reason, line.excerpt));
  }
  return bad;
}

py::dict PackBatch(const Instances& instances, size_t begin, size_t end,
                   const Array<int32_t>& row_of_position, int32_t stamp, size_t dense_width) {
  if (SizeOf(row_of_position) != instances.unique_keys()) {
    ThrowIfError(Error(Code::kInvalidArgument, "row_of_position has %zu entries, expected %zu",
                       SizeOf(row_of_position), instances.unique_keys()));
  }
  Batch batch;
  {
    const int32_t* rows = row_of_position.data();
    const py::gil_scoped_release release;
    ThrowIfError(instances.PackBatch(begin, end, rows, stamp, &batch));
  }
  const auto size = static_cast<py::ssize_t>(batch.size);
  py::dict out;
  out["ids"] = ToArray(std::move(batch.ids));
  out["offsets"] = ToArray(std::move(batch.offsets));
  out["plan"] = ToArray(std::move(batch.plan));
  out["dense"] = ToArray(std::move(batch.dense), {size, static_cast<py::ssize_t>(dense_width)});
  out["label"] = ToArray(std::move(batch.labels), {size, 1});
  out["show_click"] = ToArray(std::move(batch.show_click), {size, 2});
  return out;
}

}  // namespace

void BindFeed(py::module_& module) {
  const auto release = py::call_guard<py::gil_scoped_release>();
  py::class_<FeedSchema>(module, "FeedSchema")
      .def(py::init(&SchemaFrom), py::arg("format"), py::arg("slots"), py::arg("per_slot_keys"),
           py::arg("max_line_bytes"))
      .def_property_readonly("sparse_slots", &FeedSchema::sparse_slots)
      .def_property_readonly("dense_width", &FeedSchema::dense_width);
  py::class_<ParsedChunk>(module, "ParsedChunk")
      .def_readonly("instances", &ParsedChunk::instances)
      .def_readonly("lines", &ParsedChunk::lines)
      .def_readonly("bad_lines", &ParsedChunk::bad_lines)
      .def_property_readonly("first_bad", &FirstBad)
      .def_property_readonly("occurrences", [](const ParsedChunk& c) { return c.feasigns.size(); });
  module.def("select_parser_path",
             [](const std::string& name) { ThrowIfError(feed::SelectTokenKernels(name.c_str())); });
  module.def("parse_chunk", &Parse, py::arg("schema"), py::arg("data"));

  py::class_<InstanceRange>(module, "InstanceRange")
      .def(py::init([](size_t begin, size_t end) { return InstanceRange{begin, end}; }))
      .def_readonly("begin", &InstanceRange::begin)
      .def_readonly("end", &InstanceRange::end);
  py::class_<ThreadPool>(module, "ThreadPool").def(py::init<int>(), py::arg("threads"));
  py::class_<Instances>(module, "Instances")
      .def(py::init<size_t, size_t>(), py::arg("sparse_slots"), py::arg("dense_width"))
      .def(
          "append",
          [](Instances& self, ParsedChunk& chunk) { ThrowIfError(self.Append(std::move(chunk))); },
          release)
      .def(
          "shuffle", [](Instances& self, uint64_t seed) { ThrowIfError(self.Shuffle(seed)); },
          release)
      .def(
          "index", [](Instances& self, ThreadPool& pool) { ThrowIfError(self.Index(&pool)); },
          release)
      .def_property_readonly("size", &Instances::size)
      .def_property_readonly("unique_keys", &Instances::unique_keys)
      .def_property_readonly("occurrences", &Instances::occurrences)
      .def_property_readonly("bytes", &Instances::bytes)
      .def(
          "split",
          [](const Instances& self, size_t max_rows, size_t batch_size) {
            return ValueOrThrow(self.Split(max_rows, batch_size));
          },
          release)
      .def("select",
           [](const Instances& self, InstanceRange range) {
             RangeKeys keys;
             {
               const py::gil_scoped_release released;
               keys = ValueOrThrow(self.SelectRange(range));
             }
             return py::make_tuple(ToArray(std::move(keys.keys)), ToArray(std::move(keys.slots)),
                                   ToArray(std::move(keys.positions)));
           })
      .def("pack_batch", &PackBatch, py::arg("begin"), py::arg("end"), py::arg("row_of_position"),
           py::arg("stamp"), py::arg("dense_width"))
      .def("pack_feasigns", [](const Instances& self, size_t begin, size_t end) {
        std::vector<uint64_t> feasigns;
        std::vector<int32_t> offsets;
        {
          const py::gil_scoped_release released;
          ThrowIfError(self.PackFeasigns(begin, end, &feasigns, &offsets));
        }
        return py::make_tuple(ToArray(std::move(feasigns)), ToArray(std::move(offsets)));
      });
  module.def("sorted_unique_keys", [](const Array<uint64_t>& feasigns) {
    std::vector<uint64_t> keys;
    for (size_t i = 0; i < SizeOf(feasigns); ++i) {
      if (feasigns.data()[i] != 0) keys.push_back(KeyOf(feasigns.data()[i]));
    }
    std::sort(keys.begin(), keys.end());
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    return ToArray(std::move(keys));
  });
}

}  // namespace pbx
