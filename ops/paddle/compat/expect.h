// Checks and sizes that the operators in this folder share.
#pragma once

#include "paddle/operators/kernel_guard.h"

namespace pbx {

inline size_t Size(int64_t n) { return static_cast<size_t>(n); }

inline Tensor EmptyFloats(const Shape& shape, const Tensor& like) {
  return paddle::empty(shape, DataType::FLOAT32, like.place());
}

inline Status ExpectFloats(const Tensor& tensor, const std::string& name, const Shape& shape) {
  PBX_RETURN_IF_ERROR(Expect(tensor, name.c_str(), DataType::FLOAT32));
  return ExpectShape(tensor, name.c_str(), shape);
}

// A matrix of floats. expected: its shape in letters, for the message.
inline Status ExpectMatrix(const Tensor& tensor, const char* name, const char* expected) {
  PBX_RETURN_IF_ERROR(Expect(tensor, name, DataType::FLOAT32));
  if (tensor.shape().size() == 2) return Status::Ok();
  return Error(Code::kInvalidArgument, "%s has shape %s, expected %s", name,
               Describe(tensor.shape()).c_str(), expected);
}

}  // namespace pbx
