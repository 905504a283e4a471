// cross_norm_hadamard: products of pairs of embeddings, normalised by running sums as data_norm
// does (dense/data_norm.h).
//
// Letters: N = instances, F = pairs, E = columns of an embedding, C = F (3 E + 1) features.
#pragma once

#include <cstddef>

namespace pbx {

struct CrossNorm {
  size_t instances = 0, pairs = 0, embed = 0;
  float epsilon = 1e-4f;     // added to the mean square of a batch
  float decay = 0.9999999f;  // of the sums, per step

  size_t inputs() const { return 2 * pairs * embed; }
  size_t columns() const { return pairs * (3 * embed + 1); }
};

// x (N, 2 F E) holds the embeddings a, b of the first pair, then those of the second, and so on.
// The features of a pair are a (E), b (E), a * b (E) and the sum of a * b (1). summary (3, C) holds
// for each feature the running size, sum and square sum.
//
// y (N, C) = (features - means) * scales, with means = sum / size and
// scales = sqrt(size / square sum).
void CrossNormForward(const CrossNorm& cross, const float* summary, const float* x, float* y,
                      float* means, float* scales);

// dx (N, 2 F E).
void CrossNormBackward(const CrossNorm& cross, const float* x, const float* scales, const float* dy,
                       float* dx);

// to (3, C) = summary * decay + the terms of the batch, as DataNormUpdate adds those of its x. `to`
// may be summary.
void CrossNormUpdate(const CrossNorm& cross, const float* summary, const float* x, float* to);

}  // namespace pbx
