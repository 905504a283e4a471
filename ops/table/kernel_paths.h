// The three builds of the kernels. For kernels.cc alone; everyone else asks ActiveKernels().
#pragma once

#include "table/kernels.h"

namespace pbx {

extern const Kernels kPlainKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;

}  // namespace pbx
