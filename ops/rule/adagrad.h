// AdaGrad as in PaddleBox, where it is the default: one sum of squares G for the whole embedding.
//   g' = g / scale;  w_i -= lr * g'_i * sqrt(G0 / (G0 + G));  then G += mean_i(g'_i^2)
// State: [G], 0 at first. The step uses the old G.
//
// The parts per embedding (AdaGradStep, AdaGradGrown) and per weight (TakeStep) are separate
// functions because the kernels of ops/table compute the former for many rows at once.
#pragma once

#include "rule/rule.h"

namespace pbx::rule {

PBX_INLINE int AdaGradStateSize(int /*d*/) { return 1; }
PBX_INLINE void AdaGradInitState(const RuleConfig& /*config*/, int /*d*/, const float* /*w*/,
                                 float* state) {
  state[0] = 0.0f;
}
// The factor of each g_i. g0: initial_g2sum; old: G before the push.
PBX_INLINE float AdaGradStep(float learning_rate, float g0, float old, float scale) {
  return learning_rate * std::sqrt(g0 / (g0 + old)) / scale;
}
// G after the push. squares: the sum of g_i^2.
PBX_INLINE float AdaGradGrown(float old, float squares, float scale, int d) {
  return old + squares / (scale * scale) / static_cast<float>(d);
}
PBX_INLINE void AdaGradUpdate(const RuleConfig& config, int d, const float* g, float scale,
                              float* w, float* state) {
  const float step = AdaGradStep(config.learning_rate, config.initial_g2sum, state[0], scale);
  for (int i = 0; i < d; ++i) TakeStep(config, step, g[i], &w[i]);
  state[0] = AdaGradGrown(state[0], SumOfSquares(g, d), scale, d);
}

}  // namespace pbx::rule
