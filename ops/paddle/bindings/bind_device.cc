#include <memory>
#include <string>

#include "device/device_batch.h"
#include "paddle/bindings/arrays.h"
#include "paddle/bindings/bind_batch.h"
#include "paddle/bindings/bindings.h"
#include "paddle/bindings/table_config.h"
#include "table/registry.h"

namespace pbx {
namespace {

std::shared_ptr<DeviceBatchTable> OpenDeviceBatch(const std::string& name, int embedx_dim,
                                                  const std::string& on_bad_grad, int gpu,
                                                  bool host_is_device) {
  BatchTableConfig config;
  config.name = name;
  config.embedx_dim = embedx_dim;
  config.on_bad_grad = OnBadGradFrom(on_bad_grad);
  auto table = std::make_shared<DeviceBatchTable>(config, HbmDeviceConfig{gpu, host_is_device});
  ThrowIfError(RegisterTable(table));
  return table;
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
  py::class_<DeviceBatchTable, std::shared_ptr<DeviceBatchTable>> batch(module, "DeviceBatch");
  batch
      .def(py::init(&OpenDeviceBatch), py::arg("name"), py::arg("embedx_dim"),
           py::arg("on_bad_grad"), py::arg("gpu"), py::arg("host_is_device"))
      .def("merged", &Merged);
  DefBatch(&batch);
}

}  // namespace pbx
