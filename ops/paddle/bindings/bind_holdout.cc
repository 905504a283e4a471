#include <pybind11/stl.h>

#include <algorithm>

#include "feed/text/holdout.h"
#include "paddle/bindings/arrays.h"
#include "paddle/bindings/bindings.h"

namespace pbx {
namespace {

Holdout HoldoutFrom(double share, bool of_values, uint64_t seed, const std::string& at_least,
                    const std::string& equals) {
  return ValueOrThrow(Holdout::From({share, of_values, seed, at_least, equals}));
}

// The lines that are kept, and the number of those that are left out.
py::tuple KeepLinesOf(const Holdout& holdout, const FeedSchema& schema, const std::string& file,
                      const py::buffer& buffer, uint64_t end, size_t column, bool held_out,
                      bool drop) {
  const py::buffer_info bytes = buffer.request();
  const char* const data = static_cast<const char*>(bytes.ptr);
  const size_t size = static_cast<size_t>(bytes.size * bytes.itemsize);
  std::string kept;
  uint64_t left_out = 0;
  {
    const py::gil_scoped_release release;
    left_out = ValueOrThrow(
        KeepLines(holdout, schema, {file, end, column}, held_out, drop, data, size, &kept));
  }
  return py::make_tuple(py::bytes(kept), left_out);
}

// (count) uint8. values: (count + 1) offsets and bytes, or None.
py::array KeepRowsOf(const Holdout& holdout, const std::string& file, uint64_t first, size_t count,
                     bool held_out,
                     const std::optional<std::pair<Array<int64_t>, py::buffer>>& values) {
  HoldoutRows rows{file, first, count};
  py::buffer_info bytes;
  if (values.has_value()) {
    const Array<int64_t>& offsets = values->first;
    bytes = values->second.request();
    const int64_t size = bytes.size * bytes.itemsize;
    CheckSize("offsets", SizeOf(offsets), count + 1);
    rows.offsets = offsets.data();
    rows.bytes = static_cast<const char*>(bytes.ptr);
    if (rows.offsets[0] < 0 || rows.offsets[count] > size ||
        !std::is_sorted(rows.offsets, rows.offsets + count + 1)) {
      ThrowIfError(Error(Code::kInvalidArgument,
                         "offsets: expected ascending values from 0 to %lld, the number of bytes",
                         static_cast<long long>(size)));
    }
  }
  std::vector<uint8_t> keeps;
  {
    const py::gil_scoped_release release;
    keeps = ValueOrThrow(KeepRows(holdout, rows, held_out));
  }
  return ToArray(std::move(keeps));
}

// kept: (n) ascending.
void CountAllRowsOf(ParsedChunk& chunk, const Array<uint64_t>& kept, uint64_t rows) {
  const std::vector<uint64_t> numbers(kept.data(), kept.data() + SizeOf(kept));
  CheckSize("kept", numbers.size(), chunk.lines);
  CountAllRows(numbers, rows, &chunk);
}

}  // namespace

void BindHoldout(py::module_& module) {
  py::class_<Holdout>(module, "Holdout")
      .def(py::init(&HoldoutFrom), py::arg("share"), py::arg("of_values"), py::arg("seed"),
           py::arg("at_least"), py::arg("equals"))
      .def("keep_lines", &KeepLinesOf, py::arg("schema"), py::arg("file"), py::arg("data"),
           py::arg("end"), py::arg("column"), py::arg("held_out"), py::arg("drop"))
      .def("keep_rows", &KeepRowsOf, py::arg("file"), py::arg("first"), py::arg("count"),
           py::arg("held_out"), py::arg("values"));
  module.def("count_all_rows", &CountAllRowsOf, py::arg("chunk"), py::arg("kept"), py::arg("rows"));
}

}  // namespace pbx
