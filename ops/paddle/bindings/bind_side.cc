#include <pybind11/stl.h>

#include "feed/text/side_text.h"
#include "paddle/bindings/arrays.h"
#include "paddle/bindings/bindings.h"
#include "table/side_registry.h"

namespace pbx {
namespace {

// Parses the rows of one chunk of a file. Returns them and the number of lines of the file so far.
py::tuple ParseText(const std::string& path, const py::buffer& buffer, size_t dim, bool numbered,
                    size_t max_line_bytes, uint64_t first_row, uint64_t line) {
  const py::buffer_info bytes = buffer.request();
  const SideTextLayout layout{dim, numbered, max_line_bytes};
  auto rows = std::make_unique<SideRows>();
  rows->origin = path;
  {
    const py::gil_scoped_release release;
    ThrowIfError(ParseSideText(layout, static_cast<const char*>(bytes.ptr),
                               static_cast<size_t>(bytes.size * bytes.itemsize), first_row, &line,
                               rows.get()));
  }
  return py::make_tuple(std::move(rows), line);
}

// values: (n, D). keys: (n) or None.
std::unique_ptr<SideRows> RowsFrom(const Array<float>& values,
                                   const std::vector<std::string>& keys) {
  auto rows = std::make_unique<SideRows>();
  rows->values.assign(values.data(), values.data() + values.size());
  for (const std::string& key : keys) {
    rows->key_bytes += key;
    rows->key_ends.push_back(rows->key_bytes.size());
  }
  return rows;
}

// Moves the rows out of the parts.
std::shared_ptr<SideTable> MakeSideTable(const std::string& name, size_t dim, bool keyed,
                                         int threads, const std::vector<SideRows*>& parts) {
  std::vector<SideRows> rows;
  rows.reserve(parts.size());
  for (SideRows* part : parts) rows.push_back(std::move(*part));
  const py::gil_scoped_release release;
  return ValueOrThrow(SideTable::Make({name, dim, keyed, threads}, std::move(rows)));
}

py::tuple RowsOf(const SideTable& table, const std::vector<std::string>& keys) {
  std::vector<int64_t> rows(keys.size());
  size_t misses = 0;
  {
    const py::gil_scoped_release release;
    const std::vector<std::string_view> views(keys.begin(), keys.end());
    misses = table.RowsOf(views, rows.data());
  }
  return py::make_tuple(ToArray(std::move(rows)), misses);
}

}  // namespace

void BindSide(py::module_& module) {
  py::class_<SideRows>(module, "SideRows")
      .def(py::init(&RowsFrom), py::arg("values"), py::arg("keys"))
      .def("size", &SideRows::size, py::arg("dim"));
  module.def("parse_side_text", &ParseText, py::arg("path"), py::arg("data"), py::arg("dim"),
             py::arg("numbered"), py::arg("max_line_bytes"), py::arg("first_row"), py::arg("line"));
  py::class_<SideTable, std::shared_ptr<SideTable>>(module, "SideTable")
      .def(py::init(&MakeSideTable), py::arg("name"), py::arg("dim"), py::arg("keyed"),
           py::arg("threads"), py::arg("parts"))
      .def_property_readonly("rows", &SideTable::rows)
      .def_property_readonly("strays", &SideTable::strays)
      .def("rows_of", &RowsOf, py::arg("keys"))
      .def("register",
           [](const std::shared_ptr<SideTable>& t) { ThrowIfError(RegisterSideTable(t)); })
      .def("unregister", [](const std::shared_ptr<SideTable>& t) { UnregisterSideTable(t); });
}

}  // namespace pbx
