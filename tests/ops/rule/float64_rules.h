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

inline Wide Moved(const RuleConfig& config, const Wide& w, const Wide& step) {
  return Wide(std::clamp<double>(w.value - step.value, config.min_bound, config.max_bound),
              std::fabs(w.value) + step.size);
}

// Sum of squares over scale^2 * d, as the AdaGrads with one sum keep it.
inline Wide MeanSquare(const Wides& g, double scale) {
  double squares = 0, sizes = 0;
  for (const Wide& x : g) squares += x.value * x.value;
  for (const Wide& x : g) sizes += x.size * x.size;
  const double over = scale * scale * static_cast<double>(g.size());
  return Wide(squares / over, sizes / over);
}

inline void FtrlStep(const RuleConfig& config, const Wides& g, double scale, Wides* w,
                     Wides* state) {
  const size_t d = g.size();
  for (size_t i = 0; i < d; ++i) {
    Wide& z = (*state)[i];
    Wide& n = (*state)[d + i];
    Wide& x = (*w)[i];
    const double scaled = g[i].value / scale, size = g[i].size / scale;
    const double root = std::sqrt(n.value + scaled * scaled);
    const double sigma = (root - std::sqrt(n.value)) / config.learning_rate;
    // Its roundings are those of the two roots, before they cancel.
    const double sigma_size = (root + std::sqrt(n.value)) / config.learning_rate;
    z = Wide(z.value + scaled - sigma * x.value,
             std::fabs(z.value) + size + sigma_size * std::fabs(x.value));
    n = Wide(n.value + scaled * scaled, n.value + size * size);
    const double over = (config.beta + root) / config.learning_rate + config.l2;
    const double beyond = std::max(0.0, std::fabs(z.value) - config.l1);
    const double solved = z.value > 0 ? -beyond / over : beyond / over;
    if (g[i].value != 0) {
      x = Wide(std::clamp<double>(solved, config.min_bound, config.max_bound),
               (z.size + config.l1) / over);
    }
  }
}

// One step. g: (d) gradients; w: (d); state: as the rule's page says.
inline void Step(const RuleConfig& config, const Wides& g, double scale, Wides* w, Wides* state) {
  if (config.kind == RuleKind::kFtrl) return FtrlStep(config, g, scale, w, state);
  const size_t d = g.size();
  const double lr = config.learning_rate, g0 = config.initial_g2sum;
  const double b1 = config.beta1, b2 = config.beta2;
  Wides& s = *state;
  const Wides before = s;
  const Wide mean_square = MeanSquare(g, scale);
  if (config.kind == RuleKind::kAdaGradV2) {
    s[0] = Wide(s[0].value + mean_square.value, s[0].value + mean_square.size);
  }
  double sum_m = 0, sum_v = 0, size_m = 0, size_v = 0;
  for (size_t i = 0; i < d; ++i) {
    double factor = lr;
    if (config.kind == RuleKind::kAdaGrad) {
      factor = lr * std::sqrt(g0 / (g0 + before[0].value)) / scale;
    } else if (config.kind == RuleKind::kStdAdaGrad) {
      factor = lr * std::sqrt(g0 / (g0 + before[i].value)) / scale;
      s[i] = Wide(s[i].value + g[i].value * g[i].value / scale / scale,
                  s[i].value + g[i].size * g[i].size / scale / scale);
    } else if (config.kind == RuleKind::kAdaGradV2) {
      factor = lr / (std::sqrt(s[0].value) + config.epsilon) / scale;
    }
    Wide step(factor * g[i].value, factor * g[i].size);
    const bool shared = config.kind == RuleKind::kSharedAdam;
    if (shared || config.kind == RuleKind::kAdam) {
      const Wide& m0 = before[shared ? 0 : i];
      const Wide& v0 = before[shared ? 1 : d + i];
      const size_t power = shared ? 2 : 2 * d;
      const double rate = lr * std::sqrt(1 - before[power + 1].value) / (1 - before[power].value);
      const Wide m(b1 * m0.value + (1 - b1) * g[i].value,
                   b1 * std::fabs(m0.value) + (1 - b1) * g[i].size);
      const Wide v(b2 * v0.value + (1 - b2) * g[i].value * g[i].value,
                   b2 * v0.value + (1 - b2) * g[i].size * g[i].size);
      const double under = std::sqrt(v.value) + config.epsilon;
      const double of_v = v.value > 0 ? std::fabs(m.value) * v.size / v.value / 2 : 0;
      step = Wide(rate * m.value / under, rate * (m.size + of_v) / under);
      sum_m += m.value, size_m += m.size, sum_v += v.value, size_v += v.size;
      if (!shared) s[i] = m, s[d + i] = v;
    }
    (*w)[i] = Moved(config, (*w)[i], step);
  }
  const double count = static_cast<double>(d);
  if (config.kind == RuleKind::kAdaGrad) {
    s[0] = Wide(s[0].value + mean_square.value, s[0].value + mean_square.size);
  } else if (config.kind == RuleKind::kSharedAdam) {
    s[0] = Wide(sum_m / count, size_m / count);
    s[1] = Wide(sum_v / count, size_v / count);
    s[2] = s[2].value * b1;
    s[3] = s[3].value * b2;
  } else if (config.kind == RuleKind::kAdam) {
    s[2 * d] = s[2 * d].value * b1;
    s[2 * d + 1] = s[2 * d + 1].value * b2;
  }
}

}  // namespace pbx::test
