// From a RuleConfig to the functions of its rule.
#pragma once

#include "rule/adagrad.h"
#include "rule/adam.h"
#include "rule/naive.h"
#include "rule/rule.h"

namespace pbx::rule {

PBX_HOST_DEVICE inline int StateSize(RuleKind kind, int d) {
  switch (kind) {
    case RuleKind::kNaive: return NaiveStateSize(d);
    case RuleKind::kAdaGrad: return AdaGradStateSize(d);
    case RuleKind::kAdam: return AdamStateSize(d);
  }
  return 0;
}

PBX_HOST_DEVICE inline void InitState(const RuleConfig& config, int d, float* state) {
  switch (config.kind) {
    case RuleKind::kNaive: return NaiveInitState(config, d, state);
    case RuleKind::kAdaGrad: return AdaGradInitState(config, d, state);
    case RuleKind::kAdam: return AdamInitState(config, d, state);
  }
}

// g: (d) merged gradient of the sum loss. scale: shows of the push where show_scale is on, else 1.
PBX_HOST_DEVICE inline void Update(const RuleConfig& config, int d, const float* g, float scale,
                                   float* w, float* state) {
  switch (config.kind) {
    case RuleKind::kNaive: return NaiveUpdate(config, d, g, scale, w, state);
    case RuleKind::kAdaGrad: return AdaGradUpdate(config, d, g, scale, w, state);
    case RuleKind::kAdam: return AdamUpdate(config, d, g, scale, w, state);
  }
}

}  // namespace pbx::rule
