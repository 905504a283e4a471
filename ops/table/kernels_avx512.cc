#include <immintrin.h>

#include <type_traits>

#include "base/log.h"
#include "base/prefetch.h"
#include "rule/accessor.h"
#include "table/kernel_paths.h"
#include "table/kernels.h"

// GCC 12 says it of its own header (bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC target("avx2,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")

#include "row/sum_order.h"

namespace pbx {
namespace {
#define PBX_LANES 16
#include "table/kernels.inl"
}  // namespace

const Kernels kAvx512Kernels = {"avx512", CheckIds, CheckOffsets, Pull, PullPooled, Push};

}  // namespace pbx
