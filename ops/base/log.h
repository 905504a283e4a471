// Log: the natural logarithm that CVM uses. Our own, from IEEE-exact operations only, so that every
// processor, vector width and libm gives the same bits.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/host_device.h"

namespace pbx {

// ln(x) for finite x > 0, in double inside: the float result is within 0.5001 ulp. With x = m *
// 2^e, m in [sqrt(1/2), sqrt(2)), ln m = 2 atanh((m - 1) / (m + 1)), a series in s^2 <= 0.0295 cut
// at s^15 (error below 1e-13). No branches: it vectorises. NaN and infinity give NaN.
PBX_HOST_DEVICE inline float Log(float x) {
  const double wide = x;
  uint64_t bits;
  memcpy(&bits, &wide, 8);
  // Moves the cut between exponents from 1 to sqrt(1/2).
  const uint64_t moved = bits - 0x3fe6a09e667f3bcdULL;
  // Exponents of floats fit an int32, and int32 to double is one instruction on every path.
  const int32_t exponent = static_cast<int32_t>(static_cast<int64_t>(moved) >> 52);
  const uint64_t mantissa = bits - (moved & 0xfff0000000000000ULL);
  double m;
  memcpy(&m, &mantissa, 8);
  const double s = (m - 1.0) / (m + 1.0);
  const double z = s * s;
  double series = 1.0 / 15.0;
  series = series * z + 1.0 / 13.0;
  series = series * z + 1.0 / 11.0;
  series = series * z + 1.0 / 9.0;
  series = series * z + 1.0 / 7.0;
  series = series * z + 1.0 / 5.0;
  series = series * z + 1.0 / 3.0;
  series = series * z + 1.0;
  // 0, but NaN for a NaN or an infinity, whose bits would pass for an ordinary number above.
  const double not_finite = wide * 0.0;
  return static_cast<float>(2.0 * s * series + static_cast<double>(exponent) * 0.6931471805599453 +
                            not_finite);
}

}  // namespace pbx
