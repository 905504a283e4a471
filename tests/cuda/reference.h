// What the references of the host's tier have in common.
#pragma once

#include <cstddef>

#include "cuda/hbm.h"
#include "table/kernels.h"

inline pbx::GradientView ViewOf(const pbx_hbm_gradient& gradient) {
  pbx::GradientView view;
  view.grad = gradient.grad;
  view.stride = static_cast<size_t>(gradient.stride);
  view.extra = static_cast<size_t>(gradient.extra);
  view.weights_at = static_cast<size_t>(gradient.weights_at);
  view.show_click = gradient.show_click;
  view.show_click_stride = static_cast<size_t>(gradient.show_click_stride);
  view.segments_per_instance = static_cast<size_t>(gradient.slots);
  view.scale = gradient.scale;
  view.on_bad = gradient.clip != 0 ? pbx::BadGrad::kClip : pbx::BadGrad::kSkip;
  view.bound = gradient.bound;
  return view;
}
