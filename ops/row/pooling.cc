#include "row/pooling.h"

#include <cmath>

namespace pbx {

void AppendFactors(ListPooling pooling, const float* weights, size_t n,
                   std::vector<float>* factors) {
  const auto weight = [&](size_t i) { return weights == nullptr ? 1.0 : double{weights[i]}; };
  double norm = 1;
  if (pooling == ListPooling::kMean || pooling == ListPooling::kSqrtN) {
    norm = 0;
    for (size_t i = 0; i < n; ++i) {
      norm += pooling == ListPooling::kMean ? weight(i) : weight(i) * weight(i);
    }
    if (pooling == ListPooling::kSqrtN) norm = std::sqrt(norm);
    if (norm == 0) norm = 1;
  }
  for (size_t i = 0; i < n; ++i) {
    factors->push_back(pooling == ListPooling::kPlain ? 1.0f
                                                      : static_cast<float>(weight(i) / norm));
  }
}

}  // namespace pbx
