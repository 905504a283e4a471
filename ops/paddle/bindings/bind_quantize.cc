#include <string>
#include <vector>

#include "paddle/bindings/arrays.h"
#include "paddle/bindings/bindings.h"
#include "ranks/quantize.h"

namespace pbx {
namespace {

using Bytes = Array<uint8_t>;

Wire WireFrom(const std::string& name) {
  if (name == "float16") return Wire::kFloat16;
  if (name == "bfloat16") return Wire::kBfloat16;
  if (name != "int8") {
    ThrowIfError(Error(Code::kInvalidArgument,
                       "format of rows: expected float16, bfloat16 or int8, found %s",
                       name.c_str()));
  }
  return Wire::kInt8;
}

size_t ColumnsOf(const Array<float>& rows) {
  if (rows.ndim() == 2 && rows.shape(1) >= 3) return static_cast<size_t>(rows.shape(1));
  ThrowIfError(Error(Code::kInvalidArgument,
                     "rows: expected (n, 3 + D) values, found an array of %zu dimensions",
                     static_cast<size_t>(rows.ndim())));
  return 0;
}

Bytes RecordsFor(Wire wire, size_t n, size_t columns) {
  return Bytes({static_cast<py::ssize_t>(n), static_cast<py::ssize_t>(WireBytes(wire, columns))});
}

Bytes Pack(const std::string& format, const Array<float>& rows) {
  const Wire wire = WireFrom(format);
  const size_t columns = ColumnsOf(rows), n = SizeOf(rows) / columns;
  Bytes out = RecordsFor(wire, n, columns);
  const float* from = rows.data();
  auto* to = reinterpret_cast<char*>(out.mutable_data());
  {
    const py::gil_scoped_release release;
    PackRows(wire, from, n, columns, to);
  }
  return out;
}

Bytes PackKeeping(const std::string& format, const Array<float>& rows, const Array<int32_t>& places,
                  Array<float>& residual) {
  const Wire wire = WireFrom(format);
  const size_t columns = ColumnsOf(rows), n = SizeOf(rows) / columns;
  CheckSize("places", SizeOf(places), n);
  const size_t kept = SizeOf(residual) / (columns - 1);
  CheckSize("residual", SizeOf(residual), kept * (columns - 1));
  Bytes out = RecordsFor(wire, n, columns);
  const float* from = rows.data();
  const int32_t* at = places.data();
  float* lost = residual.mutable_data();
  auto* to = reinterpret_cast<char*>(out.mutable_data());
  {
    const py::gil_scoped_release release;
    ThrowIfError(PackWithResidual(wire, from, n, columns, at, lost, kept, to));
  }
  return out;
}

Array<float> Unpack(const std::string& format, const Bytes& packed, size_t columns) {
  const Wire wire = WireFrom(format);
  if (columns < 3) ThrowIfError(Error(Code::kInvalidArgument, "columns: %zu, below 3", columns));
  const size_t n = SizeOf(packed) / WireBytes(wire, columns);
  CheckSize("packed rows", SizeOf(packed), n * WireBytes(wire, columns));
  Array<float> rows({static_cast<py::ssize_t>(n), static_cast<py::ssize_t>(columns)});
  const auto* from = reinterpret_cast<const char*>(packed.data());
  float* to = rows.mutable_data();
  {
    const py::gil_scoped_release release;
    UnpackRows(wire, from, n, columns, to);
  }
  return rows;
}

}  // namespace

void BindQuantize(py::module_& module) {
  module.def("wire_bytes", [](const std::string& format, size_t columns) {
    return WireBytes(WireFrom(format), columns);
  });
  module.def("pack_rows", &Pack, py::arg("format"), py::arg("rows").noconvert());
  module.def("pack_with_residual", &PackKeeping, py::arg("format"), py::arg("rows").noconvert(),
             py::arg("places").noconvert(), py::arg("residual").noconvert());
  module.def("unpack_rows", &Unpack, py::arg("format"), py::arg("packed").noconvert(),
             py::arg("columns"));
}

}  // namespace pbx
