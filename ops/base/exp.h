// Exp: e^x for kernels that compute it for every element. It is written here, with IEEE-exact
// operations only, so that every processor, vector width and libm gives the same bits.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/host_device.h"

namespace pbx {

// e^x, within 2 ulp. x below -87.3 counts as -87.3 and x above 87.3 as 87.3, which gives 1.2e-38
// and 8.2e37. NaN and infinity give NaN. With n = x / ln 2 to the nearest integer, e^x = 2^n e^(x -
// n ln 2), and a polynomial gives the second factor (the coefficients of Cephes' expf). It has no
// branch, no comparison of floats and no conversion to an integer, so it vectorises.
PBX_INLINE float Exp(float x) {
  constexpr uint32_t kMost = 0x42ae999au;  // 87.3
  uint32_t given;
  memcpy(&given, &x, 4);
  const uint32_t magnitude = given & 0x7fffffffu;
  const uint32_t within = (given & 0x80000000u) | (magnitude < kMost ? magnitude : kMost);
  float y;
  memcpy(&y, &within, 4);
  // The sum has n in its lowest bits.
  const float shifted = y * 1.44269504f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  // ln 2 in two parts. The product of n and the first part is exact.
  const float r = (y - n * 0.693359375f) - n * -2.12194440e-4f;
  const float r2 = r * r;
  const float low = 5.0000001201e-1f + 1.6666665459e-1f * r;
  const float middle = 4.1665795894e-2f + 8.3334519073e-3f * r;
  const float high = 1.3981999507e-3f + 1.9875691500e-4f * r;
  const float small = (low + (middle + high * r2) * r2) * r2 + r;
  const float factor = small + 1.0f;
  uint32_t bits, exponent;
  memcpy(&bits, &factor, 4);
  memcpy(&exponent, &shifted, 4);
  bits += exponent << 23;
  float result;
  memcpy(&result, &bits, 4);
  return result + x * 0.0f;
}

}  // namespace pbx
