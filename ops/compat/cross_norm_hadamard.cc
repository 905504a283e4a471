#include "compat/cross_norm_hadamard.h"

#include <vector>

#include "dense/data_norm.h"

namespace pbx {
namespace {

// (N, C)
std::vector<float> Features(const CrossNorm& cross, const float* x) {
  const size_t embed = cross.embed;
  std::vector<float> features(cross.instances * cross.columns());
  float* to = features.data();
  for (size_t i = 0; i < cross.instances * cross.pairs; ++i) {
    const float *a = x + i * 2 * embed, *b = a + embed;
    float sum = 0.0f;
    for (size_t e = 0; e < embed; ++e) {
      const float product = a[e] * b[e];
      to[e] = a[e];
      to[embed + e] = b[e];
      to[2 * embed + e] = product;
      sum += product;
    }
    to[3 * embed] = sum;
    to += 3 * embed + 1;
  }
  return features;
}

DataNorm NormOf(const CrossNorm& cross) {
  DataNorm norm;
  norm.instances = cross.instances;
  norm.columns = cross.columns();
  norm.epsilon = cross.epsilon;
  norm.decay = cross.decay;
  return norm;
}

DataNormSums SumsOf(const CrossNorm& cross, const float* summary) {
  return {summary, summary + cross.columns(), summary + 2 * cross.columns()};
}

}  // namespace

void CrossNormForward(const CrossNorm& cross, const float* summary, const float* x, float* y,
                      float* means, float* scales) {
  const std::vector<float> ones(cross.columns(), 1.0f), zeros(cross.columns(), 0.0f);
  DataNorm norm = NormOf(cross);
  norm.scale_w = ones.data();
  norm.bias = zeros.data();
  DataNormForward(norm, SumsOf(cross, summary), Features(cross, x).data(), y, means, scales);
}

void CrossNormBackward(const CrossNorm& cross, const float* x, const float* scales, const float* dy,
                       float* dx) {
  const size_t embed = cross.embed, width = 3 * embed + 1;
  for (size_t i = 0; i < cross.instances * cross.pairs; ++i) {
    const float *a = x + i * 2 * embed, *b = a + embed;
    const float *gradient = dy + i * width, *scale = scales + i % cross.pairs * width;
    float *da = dx + i * 2 * embed, *db = da + embed;
    const float dsum = gradient[3 * embed] * scale[3 * embed];
    for (size_t e = 0; e < embed; ++e) {
      const float dproduct = gradient[2 * embed + e] * scale[2 * embed + e] + dsum;
      da[e] = gradient[e] * scale[e] + dproduct * b[e];
      db[e] = gradient[embed + e] * scale[embed + e] + dproduct * a[e];
    }
  }
}

void CrossNormUpdate(const CrossNorm& cross, const float* summary, const float* x, float* to) {
  const size_t columns = cross.columns();
  DataNormUpdate(NormOf(cross), SumsOf(cross, summary), Features(cross, x).data(), to, to + columns,
                 to + 2 * columns);
}

}  // namespace pbx
