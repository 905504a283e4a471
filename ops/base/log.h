// Log: the natural logarithm that CVM uses. It is written here, with IEEE-exact operations only, so
// that every processor, vector width and libm gives the same bits.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/host_device.h"

namespace pbx {

// ln(x) for finite x > 0, within 1 ulp. With x = m * 2^e, m in [sqrt(1/2), sqrt(2)), f = m - 1 is
// exact, and ln(1 + f) = f - f^2 / 2 + f^3 * p(f) with a polynomial fitted over that interval (the
// coefficients of Cephes' logf). It has no branch and no division, so it vectorises. Computing in
// double is more exact (within half an ulp instead of 1), but then a pull takes 12 ns an id instead
// of 8. NaN and infinity give NaN.
PBX_INLINE float Log(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  // The interval of the mantissa begins at sqrt(1/2) and not at 1.
  const uint32_t moved = bits - 0x3f3504f3u;
  const float exponent = static_cast<float>(static_cast<int32_t>(moved) >> 23);
  const uint32_t mantissa = bits - (moved & 0xff800000u);
  float m;
  memcpy(&m, &mantissa, 4);
  const float f = m - 1.0f;
  const float z = f * f;
  // The terms are added in pairs, then pairs of pairs: a chain of four steps, not nine.
  const float z2 = z * z;
  const float low =
      (3.3333331174e-1f + -2.4999993993e-1f * f) + (2.0000714765e-1f + -1.6668057665e-1f * f) * z;
  const float high =
      (1.4249322787e-1f + -1.2420140846e-1f * f) + (1.1676998740e-1f + -1.1514610310e-1f * f) * z;
  const float p = (low + high * z2) + 7.0376836292e-2f * (z2 * z2);
  // ln 2 in two parts. The product of the first part and an exponent is exact.
  const float small = (p * (f * z) + exponent * -2.12194440e-4f) - 0.5f * z;
  // x * 0 is 0, or NaN if x is a NaN or an infinity. The code above treats the bits of these as an
  // ordinary number.
  return (f + small) + exponent * 0.693359375f + x * 0.0f;
}

}  // namespace pbx
