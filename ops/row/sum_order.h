// The order in which a push or a merge adds up the values of a row's occurrences in a batch.
//
// Of m occurrences, each whole chunk of kChunk is summed in order, from 0 on. A tree adds up the
// sums of the n = m / kChunk chunks: for s = 1, 2, 4, ... below n, sum i + s is added to sum i for
// each multiple i of 2 s with i + s < n. The remaining occurrences are added to sum 0 in order, or
// to 0 if n is 0. So the blocks of a GPU share the work on a frequent row
// (cuda/planned_gradient.h), and a row with fewer than kChunk occurrences is summed in their order.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace pbx {

constexpr int kChunk = 256;

// Sums the occurrences [begin, end) of a row on the host: add(i, sum) adds occurrence i to *sum,
// sum->Zero() makes it 0, and sum->Add(more) adds another Sum. It goes through the chunks in order,
// and keeps a sum for each bit that is set in their number, which it carries as a binary counter
// does.
template <class Sum, class Add>
PBX_INLINE void SumInOrder(int64_t begin, int64_t end, const Add& add, Sum* sum) {
  const int64_t chunks = (end - begin) / kChunk;
  sum->Zero();
  if (chunks != 0) {
    Sum of_bit[23];  // (end - begin) / kChunk < 2^23
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      sum->Zero();
      for (int64_t i = 0; i < kChunk; ++i) add(begin++, sum);
      int bit = 0;
      for (; (chunk >> bit & 1) != 0; ++bit) sum->Add(of_bit[bit]);
      of_bit[bit] = *sum;
    }
    sum->Zero();  // adding to it changes no bits: no sum that begins with 0 is -0
    for (int bit = 0; chunks >> bit != 0; ++bit) {
      if ((chunks >> bit & 1) != 0) sum->Add(of_bit[bit]);
    }
  }
  while (begin < end) add(begin++, sum);
}

}  // namespace pbx
