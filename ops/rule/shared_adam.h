// SharedAdam: Adam with two moments that all weights of an embedding share. The step of each weight
// follows from the old shared moments and its own gradient. The new shared moment is the mean over
// the weights: beta * old + (1 - beta) * mean. State: [m, v, b1^t, b2^t]; the powers start at beta.
// scale is ignored, as in Adam.
#pragma once

#include "rule/rule.h"

namespace pbx::rule {

PBX_INLINE int SharedAdamStateSize(int /*d*/) { return 4; }
PBX_INLINE void SharedAdamInitState(const RuleConfig& config, int /*d*/, const float* /*w*/,
                                    float* state) {
  state[0] = state[1] = 0.0f;
  state[2] = config.beta1;
  state[3] = config.beta2;
}
PBX_INLINE void SharedAdamUpdate(const RuleConfig& config, int d, const float* g, float /*scale*/,
                                 float* w, float* state) {
  const float m = config.beta1 * state[0], v = config.beta2 * state[1];
  const float rest1 = 1.0f - config.beta1, rest2 = 1.0f - config.beta2;
  const float rate = config.learning_rate * std::sqrt(1.0f - state[3]) / (1.0f - state[2]);
  for (int i = 0; i < d; ++i) {
    const float root = std::sqrt(v + rest2 * (g[i] * g[i]));
    w[i] = Clip(config, w[i] - rate * ((m + rest1 * g[i]) / (root + config.epsilon)));
  }
  const float count = static_cast<float>(d);
  state[0] = m + rest1 * (Sum(g, d) / count);
  state[1] = v + rest2 * (SumOfSquares(g, d) / count);
  state[2] *= config.beta1;
  state[3] *= config.beta2;
}

}  // namespace pbx::rule
