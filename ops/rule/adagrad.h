// AdaGrad as PaddleBox has it (its default): one sum of squares G for the whole embedding.
//   g' = g / scale;  w_i -= lr * g'_i * sqrt(G0 / (G0 + G));  then G += mean_i(g'_i^2)
// State: [G], 0 at first. The step uses the old G.
#pragma once

#include "rule/rule.h"

namespace pbx::rule {

PBX_HOST_DEVICE inline int AdaGradStateSize(int /*d*/) { return 1; }
PBX_HOST_DEVICE inline void AdaGradInitState(const RuleConfig& /*config*/, int /*d*/,
                                             float* state) {
  state[0] = 0.0f;
}
PBX_HOST_DEVICE inline void AdaGradUpdate(const RuleConfig& config, int d, const float* g,
                                          float scale, float* w, float* state) {
  const float g0 = config.initial_g2sum;
  const float step = config.learning_rate * std::sqrt(g0 / (g0 + state[0])) / scale;
  for (int i = 0; i < d; ++i) w[i] = Clip(config, w[i] - step * g[i]);
  state[0] += SumOfSquares(g, d) / (scale * scale) / static_cast<float>(d);
}

}  // namespace pbx::rule
