// Helpers of all kernels: error reporting and checks of inputs.
#pragma once

#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "base/status.h"
#include "paddle/operators/operator_error.h"
#include "paddle/operators/tensors.h"

namespace pbx {

using paddle::DataType;
using paddle::Tensor;
using Shape = std::vector<int64_t>;

inline std::string ErrorClass(Code code) {
  switch (code) {
    case Code::kInvalidArgument: return "ValueError";
    case Code::kFailedPrecondition: return "PassError";
    case Code::kNotFinite: return "TrainingError";
    case Code::kCorruption: return "CorruptionError";
    case Code::kOutOfSpace: return "OutOfSpaceError";
    case Code::kPeerGone: return "RankError";
    default: return "StoreError";
  }
}

// Runs body, which returns a Status, and converts every error to Paddle's exception. The message is
// also stored (operator_error.h), because the executor of PIR programs passes on only
// "std::exception".
template <typename Body>
void Guard(const char* op, Body body) {
  std::string message;
  try {
    const Status status = body();
    if (status.ok()) return;
    message = "[" + ErrorClass(status.code()) + "] " + op + ": " + status.message();
  } catch (const std::bad_alloc&) {
    message = std::string("[OutOfSpaceError] ") + op + ": out of memory";
  } catch (const std::exception& error) {
    message = std::string("[StoreError] ") + op + ": " + error.what();
  }
  SetOperatorError(message);
  PD_THROW(message);
}

inline std::string Describe(const Shape& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + ")";
}

inline Status ExpectType(const Tensor& tensor, const char* name, DataType dtype) {
  if (tensor.dtype() == dtype) return Status::Ok();
  return Error(Code::kInvalidArgument, "%s has dtype %s, expected %s", name,
               phi::DataTypeToString(tensor.dtype()).c_str(), phi::DataTypeToString(dtype).c_str());
}

inline Status Expect(const Tensor& tensor, const char* name, DataType dtype) {
  if (tensor.is_cpu()) return ExpectType(tensor, name, dtype);
  return Error(Code::kInvalidArgument,
               "%s is not in CPU memory: this operator runs on the CPU, like every operator of a "
               "table with hbm.place host (docs/gpu.md)",
               name);
}

inline Status ExpectShape(const Tensor& tensor, const char* name, const Shape& expected) {
  if (tensor.shape() == expected) return Status::Ok();
  return Error(Code::kInvalidArgument, "%s has shape %s, expected %s", name,
               Describe(tensor.shape()).c_str(), Describe(expected).c_str());
}

// The gradient of the anchor, always zero. The anchor exists so that autograd calls the backward.
inline Tensor ZerosLike(const Tensor& tensor) {
  if (!tensor.is_cpu()) return paddle::full(tensor.shape(), 0, tensor.dtype(), tensor.place());
  Tensor zeros = paddle::empty(tensor.shape(), tensor.dtype(), tensor.place());
  std::memset(zeros.data(), 0, static_cast<size_t>(zeros.numel()) * phi::SizeOf(zeros.dtype()));
  return zeros;
}

inline size_t Count(const Tensor& tensor) { return static_cast<size_t>(tensor.numel()); }

}  // namespace pbx
