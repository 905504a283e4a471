// A rule updates one embedding (embed_w: one float; embedx_w: D floats) with its merged gradient.
// Each rule is one header with the same three functions, plain inline code over IEEE-exact
// operations only; this header holds what they share, and dispatch.h chooses among them.
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
  float min_bound = -10.0f;  // weights are clipped to [min_bound, max_bound] after each update
  float max_bound = 10.0f;
};

namespace rule {

PBX_INLINE float Clip(const RuleConfig& config, float w) {
  // Written so that a NaN stays a NaN: it is the trainer's to find, not ours to hide.
  w = w < config.min_bound ? config.min_bound : w;
  return w > config.max_bound ? config.max_bound : w;
}

// The sum of eight lanes, as a tree.
PBX_INLINE float SumOfLanes(const float* lane) {
  float four[4], two[2];
  for (int j = 0; j < 4; ++j) four[j] = lane[j] + lane[j + 4];
  for (int j = 0; j < 2; ++j) two[j] = four[j] + four[j + 2];
  return two[0] + two[1];
}

// Sum of g_i^2 in eight fixed lanes: the same bits on every vector width, and no long chain of
// adds.
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
