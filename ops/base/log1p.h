// Log1p: log(1 + x) for kernels that compute it for every element. It is written here, with
// IEEE-exact operations only, so that every processor, vector width and libm gives the same bits.
#pragma once

#include <cstdint>
#include <cstring>

namespace pbx {

// log(1 + x), within 1 ulp, for -1 < x; otherwise any number. It has no branch and no conversion
// from an integer, so it vectorises. With 1 + x = 2^k (1 + f) and 1 + f from sqrt(2) / 2 to
// sqrt(2), it is k ln 2 + log(1 + f); the polynomial is that of FreeBSD's log1p.
inline double Log1p(double x) {
  constexpr uint64_t kToOne = uint64_t{0x3ff00000 - 0x3fe6a09e} << 32;
  const double sum = 1.0 + x;
  const double big = sum - 1.0;
  const double lost = (1.0 - (sum - big)) + (x - big);  // by the rounding of `sum`
  uint64_t bits;
  std::memcpy(&bits, &sum, 8);
  bits += kToOne;
  // The double with these bits is 2^52 plus the biased exponent.
  const uint64_t shifted = (bits >> 52) | (uint64_t{0x433} << 52);
  double k;
  std::memcpy(&k, &shifted, 8);
  k -= 4503599627370496.0 + 1023.0;
  bits = (bits & ((uint64_t{1} << 52) - 1)) + (uint64_t{0x3fe6a09e} << 32);
  double f;
  std::memcpy(&f, &bits, 8);
  f -= 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s, w = z * z;
  const double even = w * (3.999999999940941908e-01 +
                           w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
  const double odd = z * (6.666666666666735130e-01 +
                          w * (2.857142874366239149e-01 +
                               w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
  const double half = 0.5 * f * f;
  const double low = k * 1.90821492927058770002e-10 + lost / sum;
  return k * 6.93147180369123816490e-01 - ((half - (s * (half + (odd + even)) + low)) - f);
}

}  // namespace pbx
