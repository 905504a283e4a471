#include "dense/data_norm.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace pbx {
namespace {

// Calls fn(offset, column, width) for each run of columns of a row to normalise, and skip(offset,
// width) for each slot without shows.
template <typename Fn, typename Skip>
void ForEachRun(const DataNorm& norm, const float* x, Fn fn, Skip skip) {
  const size_t width = norm.slot_dim == 0 ? norm.columns : norm.slot_dim;
  for (size_t n = 0, offset = 0; n < norm.instances; ++n) {
    for (size_t column = 0; column < norm.columns; column += width, offset += width) {
      if (norm.slot_dim != 0 && std::fabs(x[offset]) < 1e-7f) {
        skip(offset, width);
      } else {
        fn(offset, column, width);
      }
    }
  }
}

void Zero(float* values, size_t n) { std::memset(values, 0, n * sizeof(float)); }

}  // namespace

void DataNormForward(const DataNorm& norm, const DataNormSums& sums, const float* x, float* y,
                     float* means, float* scales) {
  for (size_t c = 0; c < norm.columns; ++c) {
    means[c] = sums.sum[c] / sums.size[c];
    scales[c] = std::sqrt(sums.size[c] / sums.square_sum[c]);
  }
  ForEachRun(
      norm, x,
      [&](size_t offset, size_t column, size_t width) {
        for (size_t i = 0; i < width; ++i) {
          const size_t c = column + i;
          y[offset + i] = (x[offset + i] - means[c]) * scales[c] * norm.scale_w[c] + norm.bias[c];
        }
      },
      [&](size_t offset, size_t width) { Zero(y + offset, width); });
}

void DataNormBackward(const DataNorm& norm, const float* x, const float* means, const float* scales,
                      const float* dy, float* dx, float* dscale_w, float* dbias) {
  Zero(dscale_w, norm.columns);
  Zero(dbias, norm.columns);
  ForEachRun(
      norm, x,
      [&](size_t offset, size_t column, size_t width) {
        for (size_t i = 0; i < width; ++i) {
          const size_t at = offset + i, c = column + i;
          dx[at] = dy[at] * scales[c] * norm.scale_w[c];
          dbias[c] += dy[at];
          dscale_w[c] += (x[at] - means[c]) * scales[c] * dy[at];
        }
      },
      [&](size_t offset, size_t width) { Zero(dx + offset, width); });
}

void DataNormUpdate(const DataNorm& norm, const DataNormSums& sums, const float* x, float* size,
                    float* sum, float* square_sum) {
  // In double, because a term is up to 1e7 times smaller than the sum.
  std::vector<double> means(norm.columns), count(norm.columns), total(norm.columns),
      squares(norm.columns);
  for (size_t c = 0; c < norm.columns; ++c) means[c] = sums.sum[c] / sums.size[c];
  ForEachRun(
      norm, x,
      [&](size_t offset, size_t column, size_t width) {
        for (size_t i = 0; i < width; ++i) {
          const double value = x[offset + i], distance = value - means[column + i];
          count[column + i] += 1.0;
          total[column + i] += value;
          squares[column + i] += distance * distance;
        }
      },
      [](size_t, size_t) {});
  const double decay = norm.decay;
  for (size_t c = 0; c < norm.columns; ++c) {
    const bool any = count[c] > 0.0;
    const double n = any ? count[c] : 1.0;
    const double mean_square = any ? squares[c] / n + static_cast<double>(norm.epsilon) : 0.0;
    size[c] = static_cast<float>(sums.size[c] * decay + (any ? 1.0 : 0.0));
    sum[c] = static_cast<float>(sums.sum[c] * decay + total[c] / n);
    square_sum[c] = static_cast<float>(sums.square_sum[c] * decay + mean_square);
  }
}

}  // namespace pbx
