// The order of row/sum_order.h, as its definition reads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace pbx::test {

inline float LiteralSum(const std::vector<float>& values) {
  const size_t chunks = values.size() / 256;
  std::vector<float> sums(std::max<size_t>(chunks, 1));
  for (size_t i = 0; i < chunks * 256; ++i) sums[i / 256] += values[i];
  for (size_t s = 1; s < chunks; s *= 2) {
    for (size_t i = 0; i + s < chunks; i += 2 * s) sums[i] += sums[i + s];
  }
  for (size_t i = chunks * 256; i < values.size(); ++i) sums[0] += values[i];
  return sums[0];
}

// How often rows occur: around whole chunks, of which there are none, few and many.
inline std::vector<size_t> Frequencies() {
  return {1, 255, 256, 257, 512, 768, 7 * 256 + 100, 255 * 256 + 17};
}

}  // namespace pbx::test
