// Operators that compute on the host, or on the GPU where their tensors are, by the functions of
// cuda/dense.h.
#pragma once

#include "paddle/phi/config.h"  // first: it decides whether tensors have a stream

#include <cstring>

#include "device/device_arguments.h"
#include "paddle/operators/kernel_guard.h"

namespace pbx {

inline bool IsOnGpu(const Tensor& tensor) { return tensor.is_gpu() || tensor.is_custom_device(); }
inline void* StreamOf(const Tensor& tensor) { return IsOnGpu(tensor) ? tensor.stream() : nullptr; }

// As Expect, but all tensors of a call may also be on one GPU. first: one of them.
inline Status ExpectBeside(const Tensor& first, const Tensor& tensor, const char* name,
                           DataType dtype) {
  const bool computes = Hbm().plugged_in || std::strcmp(Hbm().backend(), "cuda") == 0;
  if (!IsOnGpu(first) || !computes) return Expect(tensor, name, dtype);
  if (tensor.place() == first.place()) return ExpectType(tensor, name, dtype);
  return Error(Code::kInvalidArgument, "%s is on %s, expected %s, where the other tensors are",
               name, tensor.place().DebugString().c_str(), first.place().DebugString().c_str());
}

}  // namespace pbx
