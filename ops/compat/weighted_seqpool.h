// weighted_seqpool: sums the rows of each slot of each instance, as dense/seqpool_cvm.h does, and
// multiplies each row by a weight first. PaddleBox's fused_seqpool_cvm_tradew takes the weight from
// a column of the row; fusion_seqpool_cvm_concat makes it of the number of rows.
//
// Letters: B = instances, S = slots, D = columns of a row, C = counts at its front, T = weights
// after them, W = features of a slot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace pbx {

// The factor of every row of a slot that has n rows.
enum class Pooling {
  kSum,      // 1
  kAverage,  // 1 / n
  kSqrt,     // 1 / sqrt(n)
};

// "SUM", "AVERAGE" or "SQRT".
Result<Pooling> PoolingOf(const std::string& name);

// A row is C counts, T weights and D - C - T floats, of which there is at least one.
struct WeightedSeqpool {
  Pooling pooling = Pooling::kSum;
  int64_t columns = 0;      // D
  int64_t slots = 0;        // S
  bool slot_major = false;  // slot s of instance b is segment s * B + b, not b * S + s
  // The features are l(show), l(click) - l(show), further counts, and the floats after the weights,
  // where l(x) = log(x + 1). Without use_cvm they are those floats alone.
  bool use_cvm = true;
  int64_t cvm_offset = 2;  // C: show, click and further counts
  int64_t trade_num = 0;   // T
  int64_t trade_id = -1;   // the weight that multiplies the floats after the weights; -1: none
  float pad_value = 0.0f;  // the start value of every sum

  int64_t Width() const { return columns - trade_num - (use_cvm ? 0 : cvm_offset); }  // W
};

Status CheckWeightedSeqpool(const WeightedSeqpool& config);

// values (nnz, D) -> out (B, S, W). An empty slot has pad_value in every sum.
// REQUIRES: CheckWeightedSeqpool, CheckSegments.
void WeightedSeqpoolForward(const WeightedSeqpool& config, const float* values,
                            const int32_t* offsets, size_t instances, float* out);

// dvalues (nnz, D), in the form that the push of the rows needs. The count columns hold no
// derivative: they hold the cvm of the instance (B, C), or zeros with a trade_id. The other columns
// hold the derivative.
void WeightedSeqpoolBackward(const WeightedSeqpool& config, const float* values,
                             const int32_t* offsets, size_t instances, const float* cvm,
                             const float* dout, float* dvalues);

}  // namespace pbx
