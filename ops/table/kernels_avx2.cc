#include <immintrin.h>

#include <type_traits>

#include "base/log.h"
#include "base/prefetch.h"
#include "rule/accessor.h"
#include "table/kernel_paths.h"
#include "table/kernels.h"

#pragma GCC target("avx2")

#include "row/sum_order.h"

namespace pbx {
namespace {
#define PBX_LANES 8
#include "table/kernels.inl"
}  // namespace

const Kernels kAvx2Kernels = {"avx2", CheckIds, CheckOffsets, Pull, PullPooled, Push};

}  // namespace pbx
