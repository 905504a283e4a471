#include "compat/masked_data_norm.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace pbx {
namespace {

// norm for the selected rows alone.
DataNorm OfSelected(const DataNorm& norm, const bool* mask) {
  DataNorm selected = norm;
  selected.instances = static_cast<size_t>(std::count(mask, mask + norm.instances, true));
  return selected;
}

// The selected rows of x, one after the other.
std::vector<float> Select(const DataNorm& norm, const bool* mask, const float* x) {
  std::vector<float> rows;
  rows.reserve(norm.instances * norm.columns);
  for (size_t n = 0; n < norm.instances; ++n)
    if (mask[n]) rows.insert(rows.end(), x + n * norm.columns, x + (n + 1) * norm.columns);
  return rows;
}

// The reverse of Select: zeros in the rows that are not selected.
void Spread(const DataNorm& norm, const bool* mask, const std::vector<float>& rows, float* to) {
  const float* from = rows.data();
  for (size_t n = 0; n < norm.instances; ++n, to += norm.columns) {
    if (mask[n]) {
      std::copy(from, from + norm.columns, to);
      from += norm.columns;
    } else {
      std::fill(to, to + norm.columns, 0.0f);
    }
  }
}

}  // namespace

void MaskedDataNormForward(const DataNorm& norm, const bool* mask, const DataNormSums& sums,
                           const float* x, float* y, float* means, float* scales) {
  const std::vector<float> from = Select(norm, mask, x);
  std::vector<float> to(from.size());
  DataNormForward(OfSelected(norm, mask), sums, from.data(), to.data(), means, scales);
  Spread(norm, mask, to, y);
}

void MaskedDataNormBackward(const DataNorm& norm, const bool* mask, const float* x,
                            const float* means, const float* scales, const float* dy, float* dx,
                            float* dscale_w, float* dbias) {
  const std::vector<float> from = Select(norm, mask, x), gradient = Select(norm, mask, dy);
  std::vector<float> to(from.size());
  DataNormBackward(OfSelected(norm, mask), from.data(), means, scales, gradient.data(), to.data(),
                   dscale_w, dbias);
  Spread(norm, mask, to, dx);
}

void MaskedDataNormUpdate(const DataNorm& norm, const bool* mask, const DataNormSums& sums,
                          const float* x, float* size, float* sum, float* square_sum) {
  const DataNorm selected = OfSelected(norm, mask);
  if (selected.instances != 0) {
    DataNormUpdate(selected, sums, Select(norm, mask, x).data(), size, sum, square_sum);
    return;
  }
  const size_t bytes = norm.columns * sizeof(float);
  std::memmove(size, sums.size, bytes);
  std::memmove(sum, sums.sum, bytes);
  std::memmove(square_sum, sums.square_sum, bytes);
}

}  // namespace pbx
