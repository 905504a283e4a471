#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>

#include "paddle/arrays.h"
#include "paddle/bindings.h"
#include "paddle/device_batch.h"
#include "paddle/registry.h"
#include "paddle/table_config.h"

namespace pbx {
namespace {

std::shared_ptr<DeviceBatchTable> OpenDeviceBatch(const std::string& name, int embedx_dim,
                                                  const std::string& on_bad_grad,
                                                  float bad_grad_bound, int gpu,
                                                  bool host_is_device) {
  BatchTableConfig config;
  config.name = name;
  config.embedx_dim = embedx_dim;
  config.on_bad_grad = OnBadGradFrom(on_bad_grad);
  config.bad_grad_bound = bad_grad_bound;
  auto table = std::make_shared<DeviceBatchTable>(config, HbmDeviceConfig{gpu, host_is_device});
  ThrowIfError(RegisterTable(table));
  return table;
}

void Fill(DeviceBatchTable& table, const std::optional<Array<int32_t>>& at, size_t first,
          const Array<float>& values) {
  const size_t count = at.has_value() ? SizeOf(*at) : SizeOf(values) / table.columns();
  CheckSize("values", SizeOf(values), count * table.columns());
  const int32_t* places = at.has_value() ? at->data() : nullptr;
  const float* from = values.data();
  const py::gil_scoped_release release;
  ThrowIfError(table.Fill(first, places, count, from));
}

Array<float> Merged(DeviceBatchTable& table) {
  Array<float> out(
      {static_cast<py::ssize_t>(table.rows()), static_cast<py::ssize_t>(table.columns())});
  float* to = out.mutable_data();
  {
    const py::gil_scoped_release release;
    ThrowIfError(table.Merged(to));
  }
  return out;
}

}  // namespace

void BindDevice(py::module_& module) {
  const auto release = py::call_guard<py::gil_scoped_release>();
  py::class_<DeviceBatchTable, std::shared_ptr<DeviceBatchTable>>(module, "DeviceBatch")
      .def(py::init(&OpenDeviceBatch), py::arg("name"), py::arg("embedx_dim"),
           py::arg("on_bad_grad"), py::arg("bad_grad_bound"), py::arg("gpu"),
           py::arg("host_is_device"))
      .def("unregister", [](const DeviceBatchTable& t) { UnregisterTable(t.name()); })
      .def("prepare",
           [](DeviceBatchTable& t, int32_t stamp, const Array<uint64_t>& keys, bool read_only) {
             const uint64_t* key_data = keys.data();
             const size_t n = SizeOf(keys);
             const py::gil_scoped_release released;
             ThrowIfError(t.Prepare(stamp, key_data, n, read_only));
           })
      .def("fill", &Fill, py::arg("at"), py::arg("first"), py::arg("values").noconvert())
      .def(
          "open", [](DeviceBatchTable& t) { ThrowIfError(t.Open()); }, release)
      .def("merged", &Merged);
}

}  // namespace pbx
