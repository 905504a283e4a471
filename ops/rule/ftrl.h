// FTRL-Proximal (McMahan et al., "Ad Click Prediction", KDD 2013), for each weight:
//   g' = g / scale;  sigma = (sqrt(n + g'^2) - sqrt(n)) / lr;  z += g' - sigma * w;  n += g'^2
//   w = 0 where |z| <= l1, else -(z - sign(z) * l1) / ((beta + sqrt(n)) / lr + l2)
// State: [z (d), n (d)]. n starts at 0, and z at the value for which the formula gives the initial
// weight, so that the first gradient does not erase it. A weight of 0 stays 0 until |z| passes l1.
// A weight whose gradient is 0 keeps its bits.
#pragma once

#include "rule/rule.h"

namespace pbx::rule {

PBX_INLINE int FtrlStateSize(int d) { return 2 * d; }
PBX_INLINE void FtrlInitState(const RuleConfig& config, int d, const float* w, float* state) {
  for (int i = 0; i < d; ++i) {
    const float side = w[i] > 0.0f ? -config.l1 : (w[i] < 0.0f ? config.l1 : 0.0f);
    state[i] = side - w[i] * (config.beta / config.learning_rate + config.l2);
    state[d + i] = 0.0f;
  }
}
PBX_INLINE void FtrlUpdate(const RuleConfig& config, int d, const float* g, float scale, float* w,
                           float* state) {
  float* z = state;
  float* n = state + d;
  for (int i = 0; i < d; ++i) {
    const float scaled = g[i] / scale;
    const float grown = n[i] + scaled * scaled;
    const float root = std::sqrt(grown);
    const float sigma = (root - std::sqrt(n[i])) / config.learning_rate;
    z[i] += scaled - sigma * w[i];
    n[i] = grown;
    const float beyond = z[i] > config.l1 ? z[i] - config.l1 : z[i] + config.l1;
    const float solved = -beyond / ((config.beta + root) / config.learning_rate + config.l2);
    // Written so that a NaN in z gives a NaN.
    const float moved = z[i] <= config.l1 && z[i] >= -config.l1 ? 0.0f : Clip(config, solved);
    w[i] = g[i] == 0.0f ? w[i] : moved;
  }
}

}  // namespace pbx::rule
