#include <algorithm>
#include <cmath>

#include "gpu/walk.h"

namespace pbx::gpu {
namespace {

PBX_HOST_DEVICE void Step(const Adam& adam, const AdamOf& of, int64_t i) {
  const float rate = *of.rate, root = std::sqrt(1.0f - *of.beta2_power);
  const float g = of.gradient[i];
  const float m1 = adam.beta1 * of.moment1[i] + (1.0f - adam.beta1) * g;
  const float m2 = adam.beta2 * of.moment2[i] + (1.0f - adam.beta2) * g * g;
  const float step = rate * root / (1.0f - *of.beta1_power);
  const float before = of.parameter[i] * (1.0f - rate * adam.decay);
  of.moment1_out[i] = m1;
  of.moment2_out[i] = m2;
  of.parameter_out[i] = before - step * (m1 / (std::sqrt(m2) + adam.epsilon * root));
}

// Several parameters: a kernel's arguments have at most 4 KB.
struct Adams {
  static constexpr size_t kMost = 32;
  Adam adam;
  AdamOf of[kMost];
};

struct AdamTile {
  Adams all;
  PBX_HOST_DEVICE void operator()(const hbm::Block& block, int64_t tile) const {
    int k = 0;
    for (int64_t tiles = 0; tile >= (tiles = TilesOf(all.of[k])); ++k) tile -= tiles;
    const AdamOf of = all.of[k];
    const int64_t first = tile * hbm::kForAllTile;
    const auto n = static_cast<uint64_t>(of.n);
    block.ForEach(hbm::CountOf(n, static_cast<uint64_t>(first), hbm::kForAllTile),
                  [&](int i) { Step(all.adam, of, first + i); });
  }
  PBX_HOST_DEVICE static int64_t TilesOf(const AdamOf& of) {
    return (of.n + hbm::kForAllTile - 1) / hbm::kForAllTile;
  }
};

struct Powers {
  Adams all;
  PBX_HOST_DEVICE void operator()(int64_t k) const {
    const AdamOf of = all.of[k];
    *of.beta1_out = all.adam.beta1 * *of.beta1_power;
    *of.beta2_out = all.adam.beta2 * *of.beta2_power;
  }
};

struct Sgd {
  const float* rate;
  const float* gradient;
  const float* parameter;
  float* out;
  PBX_HOST_DEVICE void operator()(int64_t i) const { out[i] = parameter[i] - *rate * gradient[i]; }
};

struct Adagrad {
  const float* rate;
  float epsilon;
  const float* gradient;
  const float* parameter;
  const float* moment;
  float* parameter_out;
  float* moment_out;
  PBX_HOST_DEVICE void operator()(int64_t i) const {
    const float sum = moment[i] + gradient[i] * gradient[i];
    moment_out[i] = sum;
    parameter_out[i] = parameter[i] - *rate * gradient[i] / (std::sqrt(sum) + epsilon);
  }
};

}  // namespace

Status AdamStep(const Adam& adam, const std::vector<AdamOf>& of, bool powers, Stream stream) {
  for (size_t first = 0; first < of.size(); first += Adams::kMost) {
    const size_t count = std::min(Adams::kMost, of.size() - first);
    Adams all{adam, {}};
    int64_t tiles = 0;
    for (size_t k = 0; k < count; ++k) tiles += AdamTile::TilesOf(all.of[k] = of[first + k]);
    const auto of_all = static_cast<uint64_t>(tiles);
    PBX_RETURN_IF_ERROR(hbm::Launch("adam", AdamTile{all}, of_all, 0, stream));
    if (!powers) continue;
    // Not in the same launch, where other blocks still read the powers.
    PBX_RETURN_IF_ERROR(LaunchForAll("adam", static_cast<int64_t>(count), Powers{all}, stream));
  }
  return Status::Ok();
}
Status SgdStep(uint64_t n, const float* rate, const float* gradient, const float* parameter,
               float* parameter_out, Stream stream) {
  return LaunchForAll("sgd", static_cast<int64_t>(n), Sgd{rate, gradient, parameter, parameter_out},
                      stream);
}
Status AdagradStep(uint64_t n, const float* rate, float epsilon, const float* gradient,
                   const float* parameter, const float* moment, float* parameter_out,
                   float* moment_out, Stream stream) {
  return LaunchForAll(
      "adagrad", static_cast<int64_t>(n),
      Adagrad{rate, epsilon, gradient, parameter, moment, parameter_out, moment_out}, stream);
}

}  // namespace pbx::gpu
