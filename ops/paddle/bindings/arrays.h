// Conversions for the bindings: Status to Python's exceptions, std::vector to numpy.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace pbx {

namespace py = pybind11;

// Carries a Status through pybind to the exception translator of bindings.cc.
class StatusError : public std::exception {
 public:
  explicit StatusError(Status status) : status_(std::move(status)) {}
  const char* what() const noexcept override { return status_.message().c_str(); }
  Code code() const { return status_.code(); }

 private:
  Status status_;
};

inline void ThrowIfError(const Status& status) {
  if (!status.ok()) throw StatusError(status);
}
template <typename T>
T ValueOrThrow(Result<T> result) {
  ThrowIfError(result.status());
  return std::move(result.value());
}

// Arguments are contiguous and of this dtype; the Python side checks and converts.
template <typename T>
using Array = py::array_t<T, py::array::c_style>;

template <typename T>
size_t SizeOf(const Array<T>& array) {
  return static_cast<size_t>(array.size());
}

// InvalidArgument unless an array has the expected size.
inline void CheckSize(const char* what, size_t found, size_t expected) {
  if (found == expected) return;
  ThrowIfError(
      Error(Code::kInvalidArgument, "%s: found %zu values, expected %zu", what, found, expected));
}

// Moves the vector's memory to numpy, without a copy.
template <typename T>
py::array_t<T> ToArray(std::vector<T>&& values, std::vector<py::ssize_t> shape = {}) {
  auto* owned = new std::vector<T>(std::move(values));
  py::capsule owner(owned, [](void* p) { delete static_cast<std::vector<T>*>(p); });
  if (shape.empty()) shape = {static_cast<py::ssize_t>(owned->size())};
  return py::array_t<T>(shape, owned->data(), owner);
}

}  // namespace pbx
