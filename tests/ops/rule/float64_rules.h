// The rules once more, in float64: what float32 code is compared with. Beside each value goes the
// size of the terms it was added up from, before they cancelled: roundings of float32 are relative
// to that.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "rule/rule.h"

namespace pbx::test {

struct Wide {
  Wide() = default;
  Wide(double x) : value(x), size(std::fabs(x)) {}  // NOLINT(google-explicit-constructor)
  Wide(double x, double terms) : value(x), size(terms) {}

  // Ten or so roundings of 2^-24 = 6e-8 fit into 1e-6 of the size, and nothing else does.
  bool Agrees(float found) const {
    return std::fabs(static_cast<double>(found) - value) <= 1e-6 * size;
  }

  double value = 0, size = 0;
};
using Wides = std::vector<Wide>;

// One step. g: (d) gradients; w: (d); state: as the rule's page says.
inline void Step(const RuleConfig& config, const Wides& g, double scale, Wides* w, Wides* state) {
  const size_t d = g.size();
  const double lr = config.learning_rate;
  Wides& s = *state;
  const double factor =
      config.kind != RuleKind::kAdaGrad
          ? lr
          : lr * std::sqrt(config.initial_g2sum / (config.initial_g2sum + s[0].value)) / scale;
  for (size_t i = 0; i < d; ++i) {
    Wide step(factor * g[i].value, factor * g[i].size);
    if (config.kind == RuleKind::kAdam) {
      const double b1 = config.beta1, b2 = config.beta2;
      const double rate = lr * std::sqrt(1 - s[2 * d + 1].value) / (1 - s[2 * d].value);
      Wide& m = s[i];
      Wide& v = s[d + i];
      m = Wide(b1 * m.value + (1 - b1) * g[i].value,
               b1 * std::fabs(m.value) + (1 - b1) * g[i].size);
      v = Wide(b2 * v.value + (1 - b2) * g[i].value * g[i].value,
               b2 * v.value + (1 - b2) * g[i].size * g[i].size);
      const double under = std::sqrt(v.value) + config.epsilon;
      const double of_v = v.value > 0 ? std::fabs(m.value) * v.size / v.value / 2 : 0;
      step = Wide(rate * m.value / under, rate * (m.size + of_v) / under);
    }
    const double moved = (*w)[i].value - step.value;
    (*w)[i] = Wide(std::clamp<double>(moved, config.min_bound, config.max_bound),
                   std::fabs((*w)[i].value) + step.size);
  }
  if (config.kind == RuleKind::kAdaGrad) {
    double squares = 0, sizes = 0;
    for (const Wide& x : g) squares += x.value * x.value;
    for (const Wide& x : g) sizes += x.size * x.size;
    const double over = scale * scale * static_cast<double>(d);
    s[0] = Wide(s[0].value + squares / over, s[0].value + sizes / over);
  } else if (config.kind == RuleKind::kAdam) {
    s[2 * d] = s[2 * d].value * config.beta1;
    s[2 * d + 1] = s[2 * d + 1].value * config.beta2;
  }
}

}  // namespace pbx::test
