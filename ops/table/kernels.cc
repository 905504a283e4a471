#include "table/kernels.h"

#include <atomic>
#include <cstring>

#include "table/kernel_paths.h"

namespace pbx {
namespace {

bool Supported(const Kernels& kernels) {
  if (&kernels == &kAvx512Kernels) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  }
  return &kernels == &kPlainKernels || __builtin_cpu_supports("avx2");
}

const Kernels* Widest() {
  for (const Kernels* kernels : {&kAvx512Kernels, &kAvx2Kernels}) {
    if (Supported(*kernels)) return kernels;
  }
  return &kPlainKernels;
}

std::atomic<const Kernels*> active{nullptr};

}  // namespace

const Kernels& ActiveKernels() {
  const Kernels* kernels = active.load(std::memory_order_acquire);
  if (kernels == nullptr) active.store(kernels = Widest(), std::memory_order_release);
  return *kernels;
}

Status SelectKernels(const char* name) {
  if (std::strcmp(name, "auto") == 0) {
    active.store(Widest(), std::memory_order_release);
    return Status::Ok();
  }
  for (const Kernels* kernels : {&kPlainKernels, &kAvx2Kernels, &kAvx512Kernels}) {
    if (std::strcmp(name, kernels->name) != 0) continue;
    if (!Supported(*kernels)) {
      return Error(Code::kInvalidArgument, "vector path '%s': this processor does not support it",
                   name);
    }
    active.store(kernels, std::memory_order_release);
    return Status::Ok();
  }
  return Error(Code::kInvalidArgument,
               "vector path '%s': expected one of auto, plain, avx2, avx512", name);
}

}  // namespace pbx
