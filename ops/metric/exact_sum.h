// ExactSum: a sum of doubles without rounding, so that it does not depend on the order or on how
// the terms were spread over batches, threads and ranks. A "small superaccumulator" (Neal, "Fast
// exact summation using small and large superaccumulators", 2015): a fixed-point number that covers
// every double, in chunks of 32 bits that are carried on now and then.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace pbx {

class ExactSum {
 public:
  static constexpr size_t kChunks = 68;  // 2^-1074 to 2^1023, and room for 2^46 terms above

  void Add(double x);  // finite
  void Merge(const ExactSum& other);
  double value() const;  // the sum, rounded once

  // (kChunks) the one spelling of this sum; a state of any other sum of chunks is taken as it is.
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
