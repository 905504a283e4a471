// The three builds of the kernels. For kernels.cc only; other code calls ActiveKernels().
#pragma once

#include "table/kernels.h"

namespace pbx {

extern const Kernels kPlainKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;

}  // namespace pbx
