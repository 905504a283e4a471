// Pooling: how the rows of a list of ids become one row, Σ factor * row. The factors follow from
// the weights w of the ids, in double, as in TensorFlow's embedding_lookup_sparse.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pbx {

enum class ListPooling : uint8_t {
  kPlain,  // a sum of ids without weights: every factor is 1
  kSum,    // w
  kMean,   // w / Σ w
  kSqrtN,  // w / sqrt(Σ w^2)
};

// Appends the factors of a list. weights: (n), each finite and at least 0; null: each is 1. If all
// weights are 0, so are the factors.
void AppendFactors(ListPooling pooling, const float* weights, size_t n,
                   std::vector<float>* factors);

}  // namespace pbx
