// The join of two ascending lists of keys. Staging uses it to find the rows that are already in a
// nearer tier.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pbx {

// Calls match(i, j) for every a[i] == b[j], in order. a: (n), b: (m), both strictly ascending. The
// steps through a list double in length, so a short list skips quickly through a long one.
template <typename Match>
void ForEachCommon(const uint64_t* a, size_t n, const uint64_t* b, size_t m, Match match) {
  const auto advance = [](const uint64_t* keys, size_t from, size_t size, uint64_t key) {
    size_t step = 1;
    while (from + step < size && keys[from + step] < key) {
      from += step;
      step *= 2;
    }
    size_t end = from + step < size ? from + step : size;
    while (from < end) {
      const size_t middle = from + (end - from) / 2;
      if (keys[middle] < key)
        from = middle + 1;
      else
        end = middle;
    }
    return from;
  };
  size_t i = 0, j = 0;
  while (i < n && j < m) {
    if (a[i] == b[j]) {
      match(i++, j++);
    } else if (a[i] < b[j]) {
      i = advance(a, i, n, b[j]);
    } else {
      j = advance(b, j, m, a[i]);
    }
  }
}

}  // namespace pbx
