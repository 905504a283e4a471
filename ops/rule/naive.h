// Naive SGD: w -= lr * g. No state. scale (the show count) is ignored, as in Paddle's
// SparseNaiveSGDRule.
#pragma once

#include "rule/rule.h"

namespace pbx::rule {

PBX_INLINE int NaiveStateSize(int /*d*/) { return 0; }
PBX_INLINE void NaiveInitState(const RuleConfig& /*config*/, int /*d*/, const float* /*w*/,
                               float* /*state*/) {}
PBX_INLINE void NaiveUpdate(const RuleConfig& config, int d, const float* g, float /*scale*/,
                            float* w, float* /*state*/) {
  for (int i = 0; i < d; ++i) TakeStep(config, config.learning_rate, g[i], &w[i]);
}

}  // namespace pbx::rule
