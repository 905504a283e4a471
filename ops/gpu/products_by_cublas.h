// Products by cuBLAS, version 12 or 13, which is loaded when the first product needs it. The host
// build has none.
#pragma once

#include "gpu/kernels.h"

namespace pbx::gpu {

// False: it is not installed, as a line on stderr then says once, or this is the host build.
bool HasCublas();
// Float32 without TF32. REQUIRES: HasCublas(); of x and of y, one stride of each matrix is 1.
Status MultiplyByCublas(const Product& product, const float* x, const float* y, float* out,
                        Stream stream);

}  // namespace pbx::gpu
