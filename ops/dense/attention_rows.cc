#include "dense/attention_rows.h"

#include <cstring>

#include "base/exp.h"
#include "base/vector_clones.h"
#include "dense/gemm.h"

namespace pbx {
namespace {

PBX_INLINE float Sigmoid(float x) { return 1.0f / (1.0f + Exp(-x)); }

// The bucket of a difference of at least 1: its exponent and the highest bit of its mantissa.
PBX_INLINE uint32_t BucketOf(float difference, uint32_t buckets) {
  constexpr uint32_t kOne = 0x3f800000u >> 22;
  uint32_t bits;
  std::memcpy(&bits, &difference, sizeof(bits));
  const uint32_t bucket = (bits >> 22) - kOne + 1;
  return bucket < buckets ? bucket : buckets - 1;
}

// The sum of kLanes sums.
PBX_INLINE float Folded(const float* lanes) {
  float sums[kLanes];
  std::memcpy(sums, lanes, sizeof(sums));
  for (size_t half = kLanes / 2; half > 0; half /= 2)
    for (size_t l = 0; l < half; ++l) sums[l] += sums[l + half];
  return sums[0];
}

PBX_INLINE float Highest(size_t n, const float* values) {
  float lanes[kLanes];
  std::memcpy(lanes, values, sizeof(lanes));
  for (size_t j = kLanes; j < n; j += kLanes)
    for (size_t l = 0; l < kLanes; ++l)
      lanes[l] = values[j + l] > lanes[l] ? values[j + l] : lanes[l];
  float highest = lanes[0];
  for (const float lane : lanes) highest = lane > highest ? lane : highest;
  return highest;
}

}  // namespace

PBX_VECTOR_CLONES
void TimeBuckets(size_t n, int32_t from, const int32_t* __restrict times, uint32_t buckets,
                 uint32_t* __restrict to) {
  for (size_t j = 0; j < n; ++j) {
    const int32_t difference = from - times[j];
    const uint32_t bucket = BucketOf(static_cast<float>(difference), buckets);
    to[j] = difference > 0 ? bucket : 0;
  }
}

void TimeBuckets(size_t n, int64_t from, const int64_t* times, uint32_t buckets, uint32_t* to) {
  for (size_t j = 0; j < n; ++j) {
    // As an unsigned number, because it may not be an int64.
    const uint64_t difference = static_cast<uint64_t>(from) - static_cast<uint64_t>(times[j]);
    to[j] = from > times[j] ? BucketOf(static_cast<float>(difference), buckets) : 0;
  }
}

PBX_VECTOR_CLONES
void AddBiases(size_t n, float scale, const float* __restrict positions,
               const float* __restrict times, const uint32_t* __restrict buckets,
               float* __restrict scores) {
  const float first = buckets == nullptr ? times[0] : 0.0f;
  for (size_t j = 0; j < n; ++j) scores[j] = scale * scores[j] + positions[j] + first;
  if (buckets == nullptr) return;
  for (size_t j = 0; j < n; ++j) scores[j] += times[buckets[j]];
}

PBX_VECTOR_CLONES
void Pointwise(size_t n, float factor, float* __restrict scores) {
  for (size_t j = 0; j < n; ++j) scores[j] = scores[j] * Sigmoid(scores[j]) * factor;
}

PBX_VECTOR_CLONES
void PointwiseBackward(size_t n, float factor, float* __restrict scores,
                       float* __restrict gradients) {
  for (size_t j = 0; j < n; ++j) {
    const float s = scores[j], sigmoid = Sigmoid(s);
    scores[j] = s * sigmoid * factor;
    gradients[j] = gradients[j] * factor * (sigmoid * (1.0f + s * (1.0f - sigmoid)));
  }
}

PBX_VECTOR_CLONES
void Softmax(size_t n, float* __restrict scores) {
  const float highest = Highest(n, scores);
  float lanes[kLanes] = {};
  for (size_t j = 0; j < n; j += kLanes) {
    for (size_t l = 0; l < kLanes; ++l) {
      const float s = scores[j + l];
      const float e = Exp(s - highest);
      scores[j + l] = s <= kMaskedScore ? 0.0f : e;  // NaN stays NaN
      lanes[l] += scores[j + l];
    }
  }
  const float factor = 1.0f / Folded(lanes);
  for (size_t j = 0; j < n; ++j) scores[j] *= factor;
}

PBX_VECTOR_CLONES
void SoftmaxBackward(size_t n, const float* __restrict weights, float* __restrict gradients) {
  float lanes[kLanes] = {};
  for (size_t j = 0; j < n; j += kLanes)
    for (size_t l = 0; l < kLanes; ++l) lanes[l] += weights[j + l] * gradients[j + l];
  const float mean = Folded(lanes);
  for (size_t j = 0; j < n; ++j) gradients[j] = weights[j] * (gradients[j] - mean);
}

PBX_VECTOR_CLONES
void Multiply(size_t n, float factor, float* __restrict values) {
  for (size_t j = 0; j < n; ++j) values[j] *= factor;
}

PBX_VECTOR_CLONES
void AddRow(size_t n, const float* __restrict from, float* __restrict to) {
  for (size_t j = 0; j < n; ++j) to[j] += from[j];
}

PBX_VECTOR_CLONES
void RoundToBfloat16(size_t n, const float* from, float* to) {
  for (size_t i = 0; i < n; ++i) to[i] = FromBfloat16(ToBfloat16(from[i]));
}

}  // namespace pbx
