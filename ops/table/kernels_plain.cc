#include <type_traits>

#include "base/log.h"
#include "base/prefetch.h"
#include "row/sum_order.h"
#include "rule/accessor.h"
#include "table/kernel_paths.h"
#include "table/kernels.h"

namespace pbx {
namespace {
#define PBX_LANES 4
#include "table/kernels.inl"
}  // namespace

const Kernels kPlainKernels = {"plain", CheckIds, CheckOffsets, Pull, PullPooled, Push};

}  // namespace pbx
