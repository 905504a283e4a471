// A rule updates one embedding (embed_w: one float; embedx_w: D floats) with its merged gradient.
// Each rule is a header with the same three functions, inline and of IEEE-exact operations only.
// This header holds what the rules share; dispatch.h calls the rule that a config names.
//
// Letters: d = floats of the embedding (1 or D), s = floats of the rule's state.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/hash.h"
#include "base/host_device.h"

namespace pbx {

enum class RuleKind { kNaive, kAdaGrad, kStdAdaGrad, kAdaGradV2, kAdam, kSharedAdam, kFtrl };

struct RuleConfig {
  RuleKind kind = RuleKind::kAdaGrad;
  float learning_rate = 0.05f;
  float initial_range = 1e-4f;  // new weights are uniform in [-range, range)
  float initial_g2sum = 3.0f;   // G0 of AdaGrad and StdAdaGrad
  float beta1 = 0.9f;           // Adam, SharedAdam
  float beta2 = 0.999f;
  float epsilon = 1e-8f;  // Adam, SharedAdam, AdaGradV2
  float beta = 1.0f;      // FTRL
  float l1 = 0.0f;
  float l2 = 0.0f;
  float min_bound = -10.0f;  // weights are clipped to [min_bound, max_bound] after an update
  float max_bound = 10.0f;
};

namespace rule {

// NaN and infinities times 0 are NaN.
PBX_INLINE bool Finite(float x) { return x * 0.0f == 0.0f; }

// x, with NaN as 0 and an infinity as the bound of its sign.
PBX_INLINE float Mended(float x, float bound) {
  return Finite(x) ? x : (x > 0 ? bound : (x < 0 ? -bound : 0.0f));
}

// Floats: a float or a vector of floats. A NaN stays a NaN, so that the trainer finds it.
template <typename Floats>
PBX_INLINE void ClipInPlace(const RuleConfig& config, Floats* w) {
  const Floats low = Floats{} + config.min_bound, high = Floats{} + config.max_bound;
  *w = *w < low ? low : *w;
  *w = *w > high ? high : *w;
}
PBX_INLINE float Clip(const RuleConfig& config, float w) {
  ClipInPlace(config, &w);
  return w;
}

// *w -= step * g, clipped: the update of a rule with one step for all weights. Floats as above.
template <typename Floats>
PBX_INLINE void TakeStep(const RuleConfig& config, float step, const Floats& g, Floats* w) {
  *w -= step * g;
  ClipInPlace(config, w);
}

// The sum of eight lanes, added as a tree.
PBX_INLINE float SumOfLanes(const float* lane) {
  float four[4], two[2];
  for (int j = 0; j < 4; ++j) four[j] = lane[j] + lane[j + 4];
  for (int j = 0; j < 2; ++j) two[j] = four[j] + four[j + 2];
  return two[0] + two[1];
}

// Lane j of SumOfSquares, computed by itself.
PBX_INLINE float SquaresOfLane(const float* g, int d, int j) {
  float sum = 0.0f;
  for (int i = j; i < d; i += 8) sum += g[i] * g[i];
  return sum;
}

// Sum of g_i^2 in eight fixed lanes: the same bits for every vector width, and no long chain of
// additions.
PBX_INLINE float SumOfSquares(const float* g, int d) {
  float lane[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  int i = 0;
  for (; i + 8 <= d; i += 8) {
    for (int j = 0; j < 8; ++j) lane[j] += g[i + j] * g[i + j];
  }
  for (int j = 0; i + j < d; ++j) lane[j] += g[i + j] * g[i + j];
  return SumOfLanes(lane);
}

// Sum of g_i, in the same lanes.
PBX_INLINE float Sum(const float* g, int d) {
  float lane[8] = {0, 0, 0, 0, 0, 0, 0, 0};
  int i = 0;
  for (; i + 8 <= d; i += 8) {
    for (int j = 0; j < 8; ++j) lane[j] += g[i + j];
  }
  for (int j = 0; i + j < d; ++j) lane[j] += g[i + j];
  return SumOfLanes(lane);
}

}  // namespace rule
}  // namespace pbx
