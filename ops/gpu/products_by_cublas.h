// Products by cuBLAS and cuBLASLt, version 12 or 13, which are loaded when the first product needs
// them. The host build has none.
#pragma once

#include "gpu/kernels.h"

namespace pbx::gpu {

// A matrix as an argument of a product of column-major matrices, which is how cuBLAS reads them:
// its columns, or with `transposed` its rows, are `leading` elements apart.
struct GemmSide {
  bool transposed = false;
  int leading = 1;
};
// The arguments of a product: cuBLAS computes the transposed one, of y and x in this order.
struct Gemm {
  GemmSide y, x;
  int rows = 0, columns = 0, summed = 0, batch = 0;
  bool bfloat16 = false;
};
// InvalidArgument unless one stride of each matrix is 1 and the other one keeps its rows or columns
// apart, or if a size is above 2^31 - 1. A stride along an axis of size 1 may have any value.
Status GemmOf(const Product& product, Gemm* gemm);

// False: it is not installed, as a line on stderr then says once, or this is the host build.
bool HasCublas();
// Float32 without TF32, or bfloat16. REQUIRES: HasCublas().
Status MultiplyByCublas(const Product& product, const Gemm& gemm, const void* x, const void* y,
                        float* out, Stream stream);
// relu(x y + bias) by one kernel of cuBLASLt; bias, (columns), may be null. False, and nothing has
// been done, if there is no such kernel: which shapes have one depends on the GPU and on cuBLASLt.
bool ActivateByCublas(const Gemm& gemm, const void* x, const void* y, const float* bias, bool relu,
                      float* out, Stream stream);

}  // namespace pbx::gpu
