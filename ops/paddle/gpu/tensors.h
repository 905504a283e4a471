// Between Paddle's tensors and the kernels of gpu/kernels.h. Functions throw Paddle's errors, which
// its executor passes on.
#pragma once

#include <vector>

#include "gpu/device.h"
#include "gpu/kernels.h"
#include "paddle/phi/backends/all_context.h"
#include "paddle/phi/common/int_array.h"
#include "paddle/phi/common/scalar.h"
#include "paddle/phi/core/kernel_registry.h"
#include "paddle/utils/optional.h"

// Registers pbx::gpu::kernels::kernel for Paddle's kernel `name` on the device, whose type Paddle
// makes of the word paddlebox_gpu.
#define PBX_REGISTER(name, kernel, ...)                                                 \
  PD_REGISTER_PLUGIN_KERNEL(name, paddlebox_gpu, ALL_LAYOUT, pbx::gpu::kernels::kernel, \
                            __VA_ARGS__) {}

namespace pbx::gpu {

using phi::DenseTensor;
using Optional = paddle::optional<DenseTensor>;

inline void Check(const Status& status) {
  if (status.ok()) return;
  PADDLE_THROW(common::errors::External("%s", status.message().c_str()));
}

[[noreturn]] inline void Refuse(const char* op, const char* what) {
  PADDLE_THROW(common::errors::Unimplemented("%s on the GPU: %s is not supported", op, what));
}

inline Stream StreamOf(const phi::CustomContext& context) {
  return static_cast<Stream>(context.stream());
}

// The data of an input. An error if it is not on the device, whose kernels would read it.
template <typename T>
const T* In(const DenseTensor& tensor) {
  if (tensor.numel() != 0 && tensor.place().GetType() != phi::AllocationType::CUSTOM) {
    PADDLE_THROW(common::errors::InvalidArgument("an input of a GPU kernel is on %s",
                                                 tensor.place().DebugString().c_str()));
  }
  return tensor.data<T>();
}
template <typename T>
const T* In(const Optional& tensor) {
  return tensor ? In<T>(*tensor) : nullptr;
}
// The data of an output, allocated with its dims; null if the program does not need it.
template <typename T, typename Context>
T* Out(const Context& context, DenseTensor* tensor) {
  return tensor == nullptr ? nullptr : context.template Alloc<T>(tensor);
}
// Floats that live until the tensor is destroyed.
template <typename Context>
float* Room(const Context& context, uint64_t n, DenseTensor* tensor) {
  tensor->Resize({static_cast<int64_t>(n)});
  return context.template Alloc<float>(tensor);
}

inline Sizes SizesOf(const DenseTensor& tensor) { return common::vectorize(tensor.dims()); }
inline uint64_t CountOf(const DenseTensor& tensor) { return static_cast<uint64_t>(tensor.numel()); }

inline Type TypeOf(phi::DataType type) {
  switch (type) {
    case phi::DataType::BOOL: return Type::kBool;
    case phi::DataType::INT32: return Type::kInt32;
    case phi::DataType::INT64: return Type::kInt64;
    case phi::DataType::FLOAT32: return Type::kFloat32;
    case phi::DataType::FLOAT64: return Type::kFloat64;
    default: Refuse("dtype", phi::DataTypeToString(type).c_str());
  }
}

// An axis that may be negative.
inline size_t AxisOf(int64_t axis, size_t rank) {
  return static_cast<size_t>(axis < 0 ? axis + static_cast<int64_t>(rank) : axis);
}

inline int64_t CountBetween(const Sizes& sizes, size_t first, size_t end) {
  int64_t count = 1;
  for (size_t d = first; d < end; ++d) count *= sizes[d];
  return count;
}

// Sums x (sizes) over the axes that are marked, each sum times a, into to.
void SumOver(const phi::CustomContext& context, const float* x, Sizes sizes,
             const std::vector<bool>& summed, float a, float* to);

// Strides of an array of `sizes` that is broadcast to `rank` axes, beginning at `axis` (-1: so that
// it ends at the last one); 0 where it repeats.
Sizes BroadcastStrides(const Sizes& sizes, size_t rank, int axis);

}  // namespace pbx::gpu
