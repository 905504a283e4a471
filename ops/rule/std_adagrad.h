// StdAdaGrad: AdaGrad with a sum of squares for each weight.
//   g' = g / scale;  w_i -= lr * g'_i * sqrt(G0 / (G0 + G_i));  then G_i += g'_i^2
// State: [G (d)], 0 at first. The step uses the old G.
#pragma once

#include "rule/rule.h"

namespace pbx::rule {

PBX_INLINE int StdAdaGradStateSize(int d) { return d; }
PBX_INLINE void StdAdaGradInitState(const RuleConfig& /*config*/, int d, const float* /*w*/,
                                    float* state) {
  for (int i = 0; i < d; ++i) state[i] = 0.0f;
}
PBX_INLINE void StdAdaGradUpdate(const RuleConfig& config, int d, const float* g, float scale,
                                 float* w, float* state) {
  const float g0 = config.initial_g2sum;
  for (int i = 0; i < d; ++i) {
    const float scaled = g[i] / scale;
    const float ratio = std::sqrt(g0 / (g0 + state[i]));
    w[i] = Clip(config, w[i] - config.learning_rate * scaled * ratio);
    state[i] += scaled * scaled;
  }
}

}  // namespace pbx::rule
