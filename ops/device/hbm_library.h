// The functions of cuda/hbm.h that this layer calls, and those of cuda/dense.h, which operators
// call: those that are linked with it, or those of libpaddlebox_gpu.so, the device of the stock
// Paddle wheel (docs/gpu.md).
#pragma once

#include <string>

#include "base/status.h"
#include "cuda/dense.h"
#include "cuda/hbm.h"

namespace pbx {

// clang-format off
#define PBX_HBM_FUNCTIONS(X)                                                                      \
  X(attention_backward) X(attention_forward) X(attention_room) X(jagged_count) X(jagged_offsets)  \
  X(jagged_pack) X(jagged_places) X(jagged_repeat) X(jagged_softmax) X(jagged_softmax_backward)   \
  X(jagged_sum) X(jagged_unpack) X(multiply) X(norm_backward) X(norm_forward) X(norm_room)        \
  X(norm_update) X(ranks_backward) X(ranks_forward)                                               \
  X(backend) X(begin) X(begin_batch) X(carry) X(changed) X(close) X(close_staging) X(copy_rows)   \
  X(count) X(drop) X(error) X(expect) X(find) X(free_pinned) X(get_rows) X(malloc_pinned)         \
  X(merge) X(open) X(open_staging) X(peek) X(plan) X(plan_room) X(pull) X(pull_extended)          \
  X(pull_pooled) X(push) X(put_rows) X(renew) X(report_of) X(round) X(row_words) X(stage_fill)    \
  X(stage_gather) X(stage_have_embedx) X(stage_push) X(sums) X(synchronize) X(take_times)         \
  X(wait) X(open_parcel) X(close_parcel) X(fit_parcel) X(send_parcel)
// clang-format on

struct HbmLibrary {
// NOLINTNEXTLINE(bugprone-macro-parentheses)
#define PBX_MEMBER(name) decltype(&pbx_hbm_##name) name = &pbx_hbm_##name;
  PBX_HBM_FUNCTIONS(PBX_MEMBER)
#undef PBX_MEMBER
  bool plugged_in = false;  // of libpaddlebox_gpu.so
  // If plugged_in; else null.
  decltype(&pbx_gpu_mlp_saved) mlp_saved = nullptr;
  decltype(&pbx_gpu_mlp_room) mlp_room = nullptr;
  decltype(&pbx_gpu_mlp_forward) mlp_forward = nullptr;
  decltype(&pbx_gpu_mlp_backward) mlp_backward = nullptr;
};

const HbmLibrary& Hbm();

// Makes Hbm() that of libpaddlebox_gpu.so, which Paddle has loaded from `path`. sources: the digest
// of those that it must be built from (ops/digest.py). REQUIRES: no table is on a device yet.
// NotFound if Paddle has not loaded it; FailedPrecondition, with the reason, if there is no GPU, or
// if it was built from other sources.
Status PlugIn(const std::string& path, const std::string& sources);

}  // namespace pbx
