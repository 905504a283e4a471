// Adam: lr' = lr * sqrt(1 - b2^t) / (1 - b1^t);  w -= lr' * m / (sqrt(v) + eps).
// State: [m (d), v (d), b1^t, b2^t]; the powers start at beta. scale is ignored, as in Paddle's CPU
// rule.
#pragma once

#include "rule/rule.h"

namespace pbx::rule {

PBX_INLINE int AdamStateSize(int d) { return 2 * d + 2; }
PBX_INLINE void AdamInitState(const RuleConfig& config, int d, const float* /*w*/, float* state) {
  for (int i = 0; i < 2 * d; ++i) state[i] = 0.0f;
  state[2 * d] = config.beta1;
  state[2 * d + 1] = config.beta2;
}
PBX_INLINE void AdamUpdate(const RuleConfig& config, int d, const float* g, float /*scale*/,
                           float* w, float* state) {
  float* m = state;
  float* v = state + d;
  float* power = state + 2 * d;
  const float rate = config.learning_rate * std::sqrt(1.0f - power[1]) / (1.0f - power[0]);
  for (int i = 0; i < d; ++i) {
    m[i] = config.beta1 * m[i] + (1.0f - config.beta1) * g[i];
    v[i] = config.beta2 * v[i] + (1.0f - config.beta2) * (g[i] * g[i]);
    w[i] = Clip(config, w[i] - rate * (m[i] / (std::sqrt(v[i]) + config.epsilon)));
  }
  power[0] *= config.beta1;
  power[1] *= config.beta2;
}

}  // namespace pbx::rule
