// The control plane: the Python module paddlebox._ops. Every call that takes time releases the GIL.
#include "paddle/bindings/bindings.h"

#include "base/crc32c.h"
#include "base/file.h"
#include "base/map_guard.h"
#include "base/threads.h"
#include "paddle/bindings/arrays.h"
#include "paddle/operators/host_groups.h"
#include "paddle/operators/operator_error.h"
#include "row/feasign.h"
#include "table/kernels.h"

namespace pbx {
namespace {

// Converts a Status to a Python exception: ValueError for a wrong argument, otherwise a class of
// paddlebox.errors.
void Translate(const std::exception_ptr& thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const StatusError& error) {
    if (error.code() == Code::kInvalidArgument) {
      PyErr_SetString(PyExc_ValueError, error.what());
      return;
    }
    const char* name = "StoreError";
    if (error.code() == Code::kFailedPrecondition) name = "PassError";
    if (error.code() == Code::kNotFinite) name = "TrainingError";
    if (error.code() == Code::kCorruption) name = "CorruptionError";
    if (error.code() == Code::kOutOfSpace) name = "OutOfSpaceError";
    if (error.code() == Code::kPeerGone) name = "RankError";
    const py::object type = py::module_::import("paddlebox.errors").attr(name);
    PyErr_SetString(type.ptr(), error.what());
  }
}

template <typename Convert>
py::array_t<uint64_t> Each(const Array<uint64_t>& values, Convert convert) {
  std::vector<uint64_t> out(values.data(), values.data() + SizeOf(values));
  for (uint64_t& value : out) value = convert(value);
  return ToArray(std::move(out));
}

}  // namespace
}  // namespace pbx

PYBIND11_MODULE(_ops, module) {
  namespace py = pybind11;
  module.doc() = "Native core of paddlebox; use it through paddlebox's own modules.";
  // NOLINTNEXTLINE(performance-unnecessary-value-param): the signature is pybind's
  py::register_exception_translator([](std::exception_ptr thrown) { pbx::Translate(thrown); });
  py::class_<pbx::MapGuard>(module, "MapGuard")
      .def(py::init([](uintptr_t begin, size_t bytes) {
        return pbx::ValueOrThrow(pbx::MapGuard::Of(begin, bytes));
      }))
      .def_property_readonly("shrunk", &pbx::MapGuard::shrunk);
  module.def("crc32c", [](const py::bytes& data) {
    char* bytes = nullptr;
    py::ssize_t size = 0;
    if (PyBytes_AsStringAndSize(data.ptr(), &bytes, &size) != 0) throw py::error_already_set();
    return pbx::Crc32c(bytes, static_cast<size_t>(size));
  });
  module.def("mix", &pbx::Mix);
  module.def("unmix", &pbx::Unmix);
  module.def("feasign_in_slot", &pbx::FeasignInSlot);
  module.def("keys_of",
             [](const pbx::Array<uint64_t>& feasigns) { return pbx::Each(feasigns, &pbx::KeyOf); });
  module.def("feasigns_of",
             [](const pbx::Array<uint64_t>& keys) { return pbx::Each(keys, &pbx::FeasignOf); });
  module.def("vector_path", [] { return pbx::ActiveKernels().name; });
  module.def("set_vector_path",
             [](const char* name) { pbx::ThrowIfError(pbx::SelectKernels(name)); });
  module.def("take_operator_error", &pbx::TakeOperatorError);
  module.def("release_thread_affinity", &pbx::ReleaseThreadAffinity);
  module.def("inject_write_fault", &pbx::InjectWriteFault);
  pbx::BindMetric(module);
  pbx::BindTable(module);
  pbx::BindRanks(module);
  pbx::BindDevice(module);
  pbx::BindCopies(module);
  pbx::BindQuantize(module);
  pbx::BindDense(module);
  pbx::BindHostGroup(module);
  pbx::BindJobStore(module);
  pbx::BindImport(module);
  pbx::BindMem(module);
  pbx::BindSsd(module);
  pbx::BindSegment(module);
  pbx::BindFeed(module);
  pbx::BindHoldout(module);
  pbx::BindParsed(module);
  pbx::BindSequences(module);
  pbx::BindSide(module);
  pbx::BindServe(module);
  pbx::BindLibrary(module);
}
