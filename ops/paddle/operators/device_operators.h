// The operators for tables whose rows are on a device (hbm.place: gpu). Tensors are there too, so
// only their shapes and dtypes can be checked here, and no call waits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "paddle/operators/kernel_guard.h"
#include "table/device_rows.h"

namespace pbx {

// Inputs of the fused operators. dense: null, or appended after the slots.
struct PooledInputs {
  const Tensor& ids;
  const Tensor& offsets;
  const Tensor& show_click;
  const Tensor& plan;
  const Tensor* dense;
  const Tensor& anchor;
  int slots, embedx_dim;
  bool use_cvm;
};

inline const float* DenseOf(const PooledInputs& inputs) {
  return inputs.dense == nullptr ? nullptr : inputs.dense->data<float>();
}

// Checks the inputs, except Ids, for rows on the host or on a device. Sets all members of *batch
// except ids.
Status CheckPooled(const RowAccess& table, const PooledInputs& inputs, BatchIds* batch);

// The output of a pull of this batch: (B, slots * width + dense_width).
Shape PooledShape(const RowAccess& table, const BatchIds& batch);

// out_shape: of the rows pulled for ids, (..., size). extended: with the expand part at the end.
Status PullOnDevice(const RowAccess& table, const Tensor& ids, const Tensor& anchor,
                    const Shape& out_shape, bool extended, Tensor* out);
Status PushOnDevice(RowAccess& table, const Tensor& ids, const Tensor& grad,
                    const Shape& grad_shape, bool extended);
Status PullPooledOnDevice(const RowAccess& table, const PooledInputs& inputs, Tensor* out);
Status PushPooledOnDevice(RowAccess& table, const PooledInputs& inputs, const Tensor& grad);

}  // namespace pbx
