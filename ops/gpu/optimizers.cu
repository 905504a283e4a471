#include <cmath>

#include "gpu/walk.h"

namespace pbx::gpu {
namespace {

struct AdamOf {
  Adam adam;
  const float* gradient;
  const float* parameter;
  const float* moment1;
  const float* moment2;
  float* parameter_out;
  float* moment1_out;
  float* moment2_out;
  PBX_HOST_DEVICE void operator()(int64_t i) const {
    const float rate = *adam.rate, root = std::sqrt(1.0f - *adam.beta2_power);
    const float g = gradient[i];
    const float m1 = adam.beta1 * moment1[i] + (1.0f - adam.beta1) * g;
    const float m2 = adam.beta2 * moment2[i] + (1.0f - adam.beta2) * g * g;
    const float step = rate * root / (1.0f - *adam.beta1_power);
    const float before = parameter[i] * (1.0f - rate * adam.decay);
    moment1_out[i] = m1;
    moment2_out[i] = m2;
    parameter_out[i] = before - step * (m1 / (std::sqrt(m2) + adam.epsilon * root));
  }
};

struct Powers {
  Adam adam;
  float* beta1_out;
  float* beta2_out;
  PBX_HOST_DEVICE void operator()(int64_t) const {
    *beta1_out = adam.beta1 * *adam.beta1_power;
    *beta2_out = adam.beta2 * *adam.beta2_power;
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

Status AdamStep(const Adam& adam, uint64_t n, const float* gradient, const float* parameter,
                const float* moment1, const float* moment2, float* parameter_out,
                float* moment1_out, float* moment2_out, Stream stream) {
  return LaunchForAll(
      "adam", static_cast<int64_t>(n),
      AdamOf{adam, gradient, parameter, moment1, moment2, parameter_out, moment1_out, moment2_out},
      stream);
}
Status AdamPowers(const Adam& adam, float* beta1_out, float* beta2_out, Stream stream) {
  return LaunchForAll("adam", 1, Powers{adam, beta1_out, beta2_out}, stream);
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
