// The operators over tables whose rows are on a device (hbm.place: gpu). Tensors are there too, so
// nothing of theirs but shape and dtype can be looked at here, and no call waits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "paddle/operators/kernel_guard.h"
#include "table/device_rows.h"

namespace pbx {

// Inputs of the fused operators. dense: null, or what is joined behind the slots.
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

// out_shape: of the rows pulled for ids, (..., size). extended: with the expand part behind.
Status PullOnDevice(const RowAccess& table, const Tensor& ids, const Tensor& anchor,
                    const Shape& out_shape, bool extended, Tensor* out);
Status PushOnDevice(const RowAccess& table, const Tensor& ids, const Tensor& grad,
                    const Shape& grad_shape, bool extended);
Status PullPooledOnDevice(const RowAccess& table, const PooledInputs& inputs, Tensor* out);
Status PushPooledOnDevice(const RowAccess& table, const PooledInputs& inputs, const Tensor& grad);

}  // namespace pbx
