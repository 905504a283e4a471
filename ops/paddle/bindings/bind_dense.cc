#include <string>

#include "dense/gemm.h"
#include "paddle/bindings/bindings.h"

namespace pbx {
namespace {

namespace py = pybind11;

const char* SpeedOf(GemmType type) {
  switch (SupportOf(type)) {
    case GemmSupport::kNone: return "none";
    case GemmSupport::kSlow: return "slow";
    case GemmSupport::kFast: return "fast";
  }
  return "none";
}

py::tuple DenseLibrary() {
  const Result<std::string> name = GemmLibrary();
  py::dict speeds;
  speeds["float32"] = SpeedOf(GemmType::kFloat32);
  speeds["bfloat16"] = SpeedOf(GemmType::kBfloat16);
  return py::make_tuple(name.ok() ? name.value() : name.status().message(), name.ok(), speeds);
}

}  // namespace

void BindDense(py::module_& module) {
  module.def(
      "dense_library", &DenseLibrary,
      "The library of box_mlp: (its name or why there is none, whether there is one, by type "
      "how fast it is: none, slow or fast).");
}

}  // namespace pbx
