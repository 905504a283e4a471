// AdaGradV2 (Paddle's SparseAdaGradV2SGDRule): one sum of squares, and the step uses the new one.
//   g' = g / scale;  G += mean_i(g'_i^2);  w_i -= lr * g'_i / (sqrt(G) + eps)
// State: [G], 0 at first.
#pragma once

#include "rule/rule.h"

namespace pbx::rule {

PBX_INLINE int AdaGradV2StateSize(int /*d*/) { return 1; }
PBX_INLINE void AdaGradV2InitState(const RuleConfig& /*config*/, int /*d*/, const float* /*w*/,
                                   float* state) {
  state[0] = 0.0f;
}
PBX_INLINE void AdaGradV2Update(const RuleConfig& config, int d, const float* g, float scale,
                                float* w, float* state) {
  state[0] += SumOfSquares(g, d) / (scale * scale) / static_cast<float>(d);
  const float step = config.learning_rate / (std::sqrt(state[0]) + config.epsilon) / scale;
  for (int i = 0; i < d; ++i) TakeStep(config, step, g[i], &w[i]);
}

}  // namespace pbx::rule
