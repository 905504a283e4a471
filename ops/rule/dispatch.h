// Calls the function of the rule that a RuleConfig names.
#pragma once

#include "rule/adagrad.h"
#include "rule/adagrad_v2.h"
#include "rule/adam.h"
#include "rule/ftrl.h"
#include "rule/naive.h"
#include "rule/rule.h"
#include "rule/shared_adam.h"
#include "rule/std_adagrad.h"

namespace pbx::rule {

PBX_INLINE int StateSize(RuleKind kind, int d) {
  switch (kind) {
    case RuleKind::kNaive: return NaiveStateSize(d);
    case RuleKind::kAdaGrad: return AdaGradStateSize(d);
    case RuleKind::kStdAdaGrad: return StdAdaGradStateSize(d);
    case RuleKind::kAdaGradV2: return AdaGradV2StateSize(d);
    case RuleKind::kAdam: return AdamStateSize(d);
    case RuleKind::kSharedAdam: return SharedAdamStateSize(d);
    case RuleKind::kFtrl: return FtrlStateSize(d);
  }
  return 0;
}

// w: (d) the initial weights.
PBX_INLINE void InitState(const RuleConfig& config, int d, const float* w, float* state) {
  switch (config.kind) {
    case RuleKind::kNaive: return NaiveInitState(config, d, w, state);
    case RuleKind::kAdaGrad: return AdaGradInitState(config, d, w, state);
    case RuleKind::kStdAdaGrad: return StdAdaGradInitState(config, d, w, state);
    case RuleKind::kAdaGradV2: return AdaGradV2InitState(config, d, w, state);
    case RuleKind::kAdam: return AdamInitState(config, d, w, state);
    case RuleKind::kSharedAdam: return SharedAdamInitState(config, d, w, state);
    case RuleKind::kFtrl: return FtrlInitState(config, d, w, state);
  }
}

// g: (d) merged gradient of the sum loss. scale: the shows of the push if show_scale is on,
// otherwise 1.
PBX_INLINE void Update(const RuleConfig& config, int d, const float* g, float scale, float* w,
                       float* state) {
  switch (config.kind) {
    case RuleKind::kNaive: return NaiveUpdate(config, d, g, scale, w, state);
    case RuleKind::kAdaGrad: return AdaGradUpdate(config, d, g, scale, w, state);
    case RuleKind::kStdAdaGrad: return StdAdaGradUpdate(config, d, g, scale, w, state);
    case RuleKind::kAdaGradV2: return AdaGradV2Update(config, d, g, scale, w, state);
    case RuleKind::kAdam: return AdamUpdate(config, d, g, scale, w, state);
    case RuleKind::kSharedAdam: return SharedAdamUpdate(config, d, g, scale, w, state);
    case RuleKind::kFtrl: return FtrlUpdate(config, d, g, scale, w, state);
  }
}

}  // namespace pbx::rule
