#include "compat/causal_mask.h"

#include <algorithm>

namespace pbx {

Result<int64_t> CheckSequences(const int64_t* offsets, size_t sequences) {
  constexpr int64_t kMost = 1 << 20;
  const int64_t total = offsets[sequences];
  if (offsets[0] == 0 && total <= kMost && std::is_sorted(offsets, offsets + sequences + 1))
    return Result<int64_t>(total);
  return Error(Code::kInvalidArgument,
               "SeqInfo: expected %zu ascending values from 0 to at most %lld, found first %lld, "
               "last %lld",
               sequences + 1, static_cast<long long>(kMost), static_cast<long long>(offsets[0]),
               static_cast<long long>(total));
}

void CausalMask(const int64_t* offsets, size_t sequences, int64_t* mask) {
  const int64_t total = offsets[sequences];
  for (size_t q = 0; q < sequences; ++q) {
    for (int64_t row = offsets[q]; row < offsets[q + 1]; ++row) {
      int64_t* const end = mask + total;
      mask = std::fill_n(mask, offsets[q], 0);
      mask = std::fill_n(mask, row - offsets[q] + 1, 1);
      std::fill(mask, end, 0);
      mask = end;
    }
  }
}

}  // namespace pbx
