// The Python methods that BatchTable and DeviceBatchTable share.
#pragma once

#include <pybind11/stl.h>

#include <memory>
#include <optional>

#include "paddle/bindings/arrays.h"
#include "table/registry.h"

namespace pbx {

inline void ExpectRows(const char* what, size_t found, size_t rows, size_t columns) {
  if (found == rows * columns) return;
  ThrowIfError(Error(Code::kInvalidArgument, "%s: found %zu values, expected %zu rows of %zu", what,
                     found, rows, columns));
}

template <class T>
void DefBatch(py::class_<T, std::shared_ptr<T>>* batch) {
  batch->def("unregister", [](const T& table) { UnregisterTable(table.name()); });
  batch->def("prepare", [](T& table, int32_t stamp, const Array<uint64_t>& keys, bool read_only) {
    const uint64_t* key_data = keys.data();
    const size_t n = SizeOf(keys);
    const py::gil_scoped_release release;
    ThrowIfError(table.Prepare(stamp, key_data, n, read_only));
  });
  batch->def(
      "fill",
      [](T& table, const std::optional<Array<int32_t>>& at, size_t first,
         const Array<float>& values) {
        const size_t count = SizeOf(values) / table.columns();
        ExpectRows("values", SizeOf(values), at.has_value() ? SizeOf(*at) : count, table.columns());
        const int32_t* places = at.has_value() ? at->data() : nullptr;
        const float* from = values.data();
        const py::gil_scoped_release release;
        ThrowIfError(table.Fill(first, places, count, from));
      },
      py::arg("at"), py::arg("first"), py::arg("values").noconvert());
  batch->def(
      "open", [](T& table) { ThrowIfError(table.Open()); },
      py::call_guard<py::gil_scoped_release>());
  batch->def(
      "end_pushes", [](T& table) { ThrowIfError(table.EndPushes()); },
      py::call_guard<py::gil_scoped_release>());
}

}  // namespace pbx
