#include "metric/exact_sum.h"

#include <cmath>
#include <cstring>

namespace pbx {
namespace {

constexpr int kLowest = -1074;  // exponent of the smallest double and of bit 0 of chunk 0

}  // namespace

void ExactSum::Add(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, 8);
  const uint64_t exponent = (bits >> 52) & 0x7ff;
  const uint64_t fraction = bits & ((1ull << 52) - 1);
  const uint64_t mantissa = exponent == 0 ? fraction : fraction | (1ull << 52);
  // The place in the whole number of bit 0 of the mantissa.
  const uint64_t place = exponent == 0 ? 0 : exponent - 1;
  const size_t chunk = place / 32;
  const uint64_t shift = place % 32;
  const int64_t sign = (bits >> 63) != 0 ? -1 : 1;
  const uint64_t low = mantissa << shift;  // the lower 64 bits of up to 84
  const uint64_t high = shift == 0 ? 0 : mantissa >> (64 - shift);
  chunks_[chunk] += sign * static_cast<int64_t>(low & 0xffffffffu);
  chunks_[chunk + 1] += sign * static_cast<int64_t>(low >> 32);
  chunks_[chunk + 2] += sign * static_cast<int64_t>(high);
  if (++adds_ == kMostAdds) Carry();
}

// Brings every chunk except the last into [0, 2^32).
void ExactSum::Carry() {
  int64_t carry = 0;
  for (size_t i = 0; i + 1 < kChunks; ++i) {
    const int64_t sum = chunks_[i] + carry;
    carry = sum >> 32;  // rounds down, also for negative sums
    chunks_[i] = sum & 0xffffffff;
  }
  chunks_[kChunks - 1] += carry;
  adds_ = 0;
}

void ExactSum::Merge(const ExactSum& other) {
  Carry();
  const std::array<int64_t, kChunks> theirs = other.state();
  for (size_t i = 0; i < kChunks; ++i) chunks_[i] += theirs[i];
  Carry();
}

std::array<int64_t, ExactSum::kChunks> ExactSum::state() const {
  ExactSum carried = *this;
  carried.Carry();
  return carried.chunks_;
}

void ExactSum::SetState(const int64_t* chunks) {
  std::memcpy(chunks_.data(), chunks, sizeof(chunks_));
  Carry();
}

double ExactSum::value() const {
  ExactSum magnitude = *this;
  magnitude.Carry();
  const bool negative = magnitude.chunks_[kChunks - 1] < 0;
  if (negative) {
    for (int64_t& chunk : magnitude.chunks_) chunk = -chunk;
    magnitude.Carry();
  }
  size_t top = kChunks;
  while (top > 0 && magnitude.chunks_[top - 1] == 0) --top;
  if (top == 0) return 0;
  // The upper 64 bits. Their lowest bit is also set if any bit below them is set, so that the
  // conversion to double rounds like the whole sum.
  const auto at = [&](size_t back) {
    return top > back ? static_cast<uint64_t>(magnitude.chunks_[top - 1 - back]) : 0;
  };
  const int zeros = __builtin_clzll(at(0)) - 32;
  uint64_t upper = at(0) << 32 | at(1);
  uint64_t below = at(2);
  if (zeros > 0) {
    upper = upper << zeros | below >> (32 - zeros);
    below &= (1ull << (32 - zeros)) - 1;
  }
  for (size_t back = 3; back < top; ++back) below |= at(back);
  if (below != 0) upper |= 1;
  const int exponent = kLowest + 32 * (static_cast<int>(top) - 2) - zeros;
  const double value = std::ldexp(static_cast<double>(upper), exponent);
  return negative ? -value : value;
}

}  // namespace pbx
