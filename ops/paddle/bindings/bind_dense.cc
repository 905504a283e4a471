#include <string>

#include "dense/gemm.h"
#include "paddle/bindings/bindings.h"

namespace pbx {
namespace {

namespace py = pybind11;

py::tuple DenseLibrary() {
  const Result<std::string> name = GemmLibrary();
  const char* support = "none";
  switch (SupportOfBfloat16()) {
    case Bfloat16Support::kNone: break;
    case Bfloat16Support::kSlow: support = "slow"; break;
    case Bfloat16Support::kFast: support = "fast"; break;
  }
  return py::make_tuple(name.ok() ? name.value() : name.status().message(), name.ok(), support);
}

}  // namespace

void BindDense(py::module_& module) {
  module.def("dense_library", &DenseLibrary,
             "The library of box_mlp: (its name or why there is none, whether there is one, its "
             "bfloat16: none, slow or fast).");
}

}  // namespace pbx
