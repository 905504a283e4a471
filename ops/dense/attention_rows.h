// The kernels of jagged_attention.h: one row of scores or weights, of a query and n other tokens.
//
// n is a multiple of kLanes, and arrays do not overlap unless they are the same. Every vector path
// gives the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pbx {

constexpr size_t kLanes = 16;
// The score of a token that a query does not see: its weight in a softmax is 0.
constexpr float kNothing = -3e38f;

// to[j] = the bucket of the difference d = from - times[j]: 0 if d <= 0, otherwise 1 + 2 floor(log2
// d) + (1 if d >= 1.5 * 2^floor(log2 d)), but at most buckets - 1. d is rounded to float32.
// REQUIRES: buckets >= 1; with int32_t, from and times are at least 0.
void TimeBuckets(size_t n, int32_t from, const int32_t* times, uint32_t buckets, uint32_t* to);
void TimeBuckets(size_t n, int64_t from, const int64_t* times, uint32_t buckets, uint32_t* to);

// scores = scale * scores + positions + times[buckets]; buckets null: all are 0.
void AddBiases(size_t n, float scale, const float* positions, const float* times,
               const uint32_t* buckets, float* scores);

// Scores s become weights silu(s) * factor.
void Pointwise(size_t n, float factor, float* scores);

// Likewise, and gradients of the weights become gradients of the scores.
void PointwiseBackward(size_t n, float factor, float* scores, float* gradients);

// Scores become the weights of their softmax. REQUIRES: a score above kNothing.
void Softmax(size_t n, float* scores);

// Gradients of the weights of a softmax become gradients of its scores.
void SoftmaxBackward(size_t n, const float* weights, float* gradients);

// values *= factor
void Multiply(size_t n, float factor, float* values);

// to += from
void AddRow(size_t n, const float* from, float* to);

// Rounds to bfloat16, ties to even, and back to float32. NaN stays NaN. Any n.
void RoundToBfloat16(size_t n, const float* from, float* to);

}  // namespace pbx
