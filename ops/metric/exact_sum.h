// ExactSum: a sum of doubles without rounding. It does not depend on the order of the terms, or on
// how they are distributed over batches, threads and ranks. It is a "small superaccumulator" (Neal,
// "Fast exact summation using small and large superaccumulators", 2015): a fixed-point number that
// covers every double, in chunks of 32 bits whose carries are propagated from time to time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace pbx {

class ExactSum {
 public:
  static constexpr size_t kChunks = 68;  // 2^-1074 to 2^1023, and above it space for 2^46 terms

  void Add(double x);  // REQUIRES: finite
  void Merge(const ExactSum& other);
  double value() const;  // the sum, rounded once

  // (kChunks) the canonical chunks of this sum. SetState accepts any chunks.
  std::array<int64_t, kChunks> state() const;
  void SetState(const int64_t* chunks);

 private:
  static constexpr uint32_t kMostAdds = 1u << 30;  // each adds less than 2^32 to a chunk
  void Carry();

  // Value: sum of chunks_[i] * 2^(32 i - 1074).
  std::array<int64_t, kChunks> chunks_{};
  uint32_t adds_ = 0;  // since the last carry
};

}  // namespace pbx
