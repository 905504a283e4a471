// One thread for each row or column: the zoo's are short (features of one field, places of a
// history), and the sums keep their order.
#include <cmath>

#include "gpu/walk.h"

namespace pbx::gpu {
namespace {

struct SoftmaxOf {
  const float* x;
  int64_t n, inner;
  float* out;
  PBX_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t at = i / inner * n * inner + i % inner;
    if (n == 0) return;
    float most = x[at];
    for (int64_t k = 1; k < n; ++k) most = x[at + k * inner] > most ? x[at + k * inner] : most;
    float sum = 0;
    for (int64_t k = 0; k < n; ++k) {
      const float value = std::exp(x[at + k * inner] - most);
      out[at + k * inner] = value;
      sum += value;
    }
    for (int64_t k = 0; k < n; ++k) out[at + k * inner] /= sum;
  }
};

struct SoftmaxGradOf {
  const float* out;
  const float* grad;
  int64_t n, inner;
  float* x_grad;
  PBX_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t at = i / inner * n * inner + i % inner;
    float sum = 0;
    for (int64_t k = 0; k < n; ++k) sum += out[at + k * inner] * grad[at + k * inner];
    for (int64_t k = 0; k < n; ++k) {
      const int64_t here = at + k * inner;
      x_grad[here] = (grad[here] - sum) * out[here];
    }
  }
};

struct LayerNormOf {
  const float* x;
  int64_t n;
  const float* scale;
  const float* bias;
  float epsilon;
  float* out;
  float* means;
  float* variances;
  PBX_HOST_DEVICE void operator()(int64_t row) const {
    const float* const from = x + row * n;
    float* const to = out + row * n;
    float mean = 0, variance = 0;
    for (int64_t c = 0; c < n; ++c) mean += from[c];
    mean /= static_cast<float>(n);
    for (int64_t c = 0; c < n; ++c) variance += (from[c] - mean) * (from[c] - mean);
    variance /= static_cast<float>(n);
    const float inverse = 1.0f / std::sqrt(variance + epsilon);
    for (int64_t c = 0; c < n; ++c) {
      const float value = (from[c] - mean) * inverse * (scale == nullptr ? 1.0f : scale[c]);
      to[c] = value + (bias == nullptr ? 0.0f : bias[c]);
    }
    means[row] = mean;
    variances[row] = variance;
  }
};

struct LayerNormGradOf {
  const float* x;
  int64_t rows, n;
  const float* scale;
  const float* means;
  const float* variances;
  float epsilon;
  const float* grad;
  float* x_grad;  // or null
  float* terms;   // or null
  PBX_HOST_DEVICE void operator()(int64_t row) const {
    const float mean = means[row], inverse = 1.0f / std::sqrt(variances[row] + epsilon);
    float sum = 0, sum_of_terms = 0;
    for (int64_t c = 0; c < n; ++c) {
      const int64_t at = row * n + c;
      const float normal = (x[at] - mean) * inverse;
      const float g = grad[at] * (scale == nullptr ? 1.0f : scale[c]);
      sum += g;
      sum_of_terms += g * normal;
      if (terms != nullptr) {
        terms[at] = grad[at] * normal;
        terms[rows * n + at] = grad[at];
      }
    }
    if (x_grad == nullptr) return;
    const auto count = static_cast<float>(n);
    for (int64_t c = 0; c < n; ++c) {
      const int64_t at = row * n + c;
      const float normal = (x[at] - mean) * inverse;
      const float g = grad[at] * (scale == nullptr ? 1.0f : scale[c]);
      x_grad[at] = inverse * (g - sum / count - normal * (sum_of_terms / count));
    }
  }
};

struct Statistics {
  const float* mean;
  const float* variance;
  float momentum, epsilon;
  float* running_mean;
  float* running_variance;
  float* saved_mean;
  float* saved_inverse;
  PBX_HOST_DEVICE void operator()(int64_t c) const {
    const float found = variance[c];
    saved_mean[c] = mean[c];
    saved_inverse[c] = 1.0f / std::sqrt(found + epsilon);
    running_mean[c] = running_mean[c] * momentum + mean[c] * (1.0f - momentum);
    running_variance[c] = running_variance[c] * momentum + found * (1.0f - momentum);
  }
};

struct Normal {
  BatchNormOf of;
  const float* mean;
  const float* inverse;
  const float* variance;
  float epsilon;
  float* out;
  PBX_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t c = i % of.n;
    const float by = inverse != nullptr ? inverse[c] : 1.0f / std::sqrt(variance[c] + epsilon);
    const float scale = of.scale == nullptr ? 1.0f : of.scale[c];
    out[i] = (of.x[i] - mean[c]) * by * scale + (of.bias == nullptr ? 0.0f : of.bias[c]);
  }
};

struct Terms {
  BatchNormOf of;
  const float* mean;
  const float* inverse;
  const float* grad;
  float* terms;
  PBX_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t c = i % of.n;
    terms[i] = grad[i] * ((of.x[i] - mean[c]) * inverse[c]);
  }
};

struct NormalGrad {
  BatchNormOf of;
  const float* mean;
  const float* inverse;
  const float* grad;
  const float* sum;
  const float* sum_of_terms;
  float* x_grad;
  PBX_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t c = i % of.n;
    const auto rows = static_cast<float>(of.rows);
    const float normal = (of.x[i] - mean[c]) * inverse[c];
    const float scale = of.scale == nullptr ? 1.0f : of.scale[c];
    x_grad[i] = scale * inverse[c] * (grad[i] - sum[c] / rows - normal * (sum_of_terms[c] / rows));
  }
};

}  // namespace

Status Softmax(const float* x, int64_t outer, int64_t n, int64_t inner, float* out, Stream stream) {
  return LaunchForAll("softmax", outer * inner, SoftmaxOf{x, n, inner, out}, stream);
}
Status SoftmaxGrad(const float* out, const float* grad, int64_t outer, int64_t n, int64_t inner,
                   float* x_grad, Stream stream) {
  return LaunchForAll("softmax_grad", outer * inner, SoftmaxGradOf{out, grad, n, inner, x_grad},
                      stream);
}

Status LayerNorm(const float* x, int64_t rows, int64_t n, const float* scale, const float* bias,
                 float epsilon, float* out, float* mean, float* variance, Stream stream) {
  return LaunchForAll("layer_norm", rows,
                      LayerNormOf{x, n, scale, bias, epsilon, out, mean, variance}, stream);
}
Status LayerNormGrad(const float* x, int64_t rows, int64_t n, const float* scale, const float* mean,
                     const float* variance, float epsilon, const float* grad, float* x_grad,
                     float* terms, Stream stream) {
  return LaunchForAll(
      "layer_norm_grad", rows,
      LayerNormGradOf{x, rows, n, scale, mean, variance, epsilon, grad, x_grad, terms}, stream);
}

Status BatchStatistics(const float* mean, const float* variance, int64_t n, float momentum,
                       float epsilon, float* running_mean, float* running_variance,
                       float* saved_mean, float* saved_inverse, Stream stream) {
  return LaunchForAll("batch_norm", n,
                      Statistics{mean, variance, momentum, epsilon, running_mean, running_variance,
                                 saved_mean, saved_inverse},
                      stream);
}
Status BatchNorm(const BatchNormOf& of, const float* mean, const float* inverse,
                 const float* variance, float epsilon, float* out, Stream stream) {
  return LaunchForAll("batch_norm", of.rows * of.n,
                      Normal{of, mean, inverse, variance, epsilon, out}, stream);
}
Status BatchNormTerms(const BatchNormOf& of, const float* mean, const float* inverse,
                      const float* grad, float* terms, Stream stream) {
  return LaunchForAll("batch_norm_grad", of.rows * of.n, Terms{of, mean, inverse, grad, terms},
                      stream);
}
Status BatchNormGrad(const BatchNormOf& of, const float* mean, const float* inverse,
                     const float* grad, const float* sum, const float* sum_of_terms, float* x_grad,
                     Stream stream) {
  return LaunchForAll("batch_norm_grad", of.rows * of.n,
                      NormalGrad{of, mean, inverse, grad, sum, sum_of_terms, x_grad}, stream);
}

}  // namespace pbx::gpu
