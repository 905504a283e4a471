// rank_attention: an instance attends to the other instances of its page view, with a matrix for
// each pair of ranks.
//
// Letters: N = instances, I = inputs, O = outputs, R = the highest rank.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace pbx {

struct RankAttention {
  size_t instances = 0, inputs = 0, outputs = 0;
  size_t max_rank = 3;
  // (N, 2 R + 1): the instance's rank, then R pairs (rank, row of x). Ranks start at 1; a rank
  // below 1 means none.
  const int32_t* ranks = nullptr;
};

// InvalidArgument unless every rank is at most R and every row of a pair that counts is in [0, N).
Status CheckRanks(const RankAttention& attention);

// y_i = sum over pairs k of x[row_k] * param[own_i - 1, rank_k - 1]; zeros if instance i has no
// rank. x (N, I), param (R, R, I, O), y (N, O). REQUIRES: CheckRanks.
void RankAttentionForward(const RankAttention& attention, const float* x, const float* param,
                          float* y);

// Writes dparam, and dx unless it is null. REQUIRES: CheckRanks.
void RankAttentionBackward(const RankAttention& attention, const float* x, const float* param,
                           const float* dy, float* dx, float* dparam);

}  // namespace pbx
