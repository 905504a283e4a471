#include "base/log.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "check.h"

namespace pbx {
namespace {

float FromBits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

// |Log(x) - ln x| in units of the spacing of floats at ln x.
double ErrorInUlps(float x) {
  const double exact = std::log(static_cast<double>(x));
  const float nearest = std::fabs(static_cast<float>(exact));
  const double ulp = nearest == 0.0f ? std::numeric_limits<float>::denorm_min()
                                     : std::nextafter(nearest, INFINITY) - nearest;
  return std::fabs(static_cast<double>(Log(x)) - exact) / ulp;
}

TEST(the_logarithm_of_1_is_exactly_0) { CHECK_EQ(Log(1.0f), 0.0f); }

TEST(every_normal_float_is_within_an_ulp) {
  const uint32_t first = 0x00800000u, last = 0x7f7fffffu;  // 2^-126 .. just below 2^128
  double worst = 0;
  // A prime stride: about 2 million floats, every exponent, mantissas all over.
  for (uint32_t bits = first; bits < last; bits += 1009) {
    worst = std::max(worst, ErrorInUlps(FromBits(bits)));
  }
  worst = std::max(worst, ErrorInUlps(FromBits(last)));
  CHECK(worst <= 1.0);
}

TEST(the_cuts_between_exponents_are_as_exact_as_the_rest) {
  double worst = 0;
  for (int exponent = -126; exponent <= 127; ++exponent) {
    for (const double cut : {1.0, 1.4142135623730951}) {
      float x = static_cast<float>(std::ldexp(cut, exponent));
      for (int i = 0; i < 100; ++i) x = std::nextafter(x, 0.0f);
      for (int i = 0; i < 200; ++i, x = std::nextafter(x, INFINITY)) {
        if (x >= std::ldexp(1.0, -126)) worst = std::max(worst, ErrorInUlps(x));
      }
    }
  }
  CHECK(worst <= 1.0);
}

// CVM takes log(show + 1): counts, and decayed counts, from 1 up.
TEST(counts_of_shows_are_within_an_ulp) {
  double worst = 0;
  for (int show = 0; show < 1000000; ++show) {
    worst = std::max(worst, ErrorInUlps(static_cast<float>(show) + 1.0f));
    worst = std::max(worst, ErrorInUlps(static_cast<float>(show) * 0.98f + 1.0f));
  }
  CHECK(worst <= 1.0);
}

TEST(the_logarithm_never_falls) {
  float before = Log(FromBits(0x00800000u));
  size_t falls = 0;
  for (uint32_t bits = 0x3f000000u; bits < 0x40000000u; bits += 7) {  // 0.5 .. 2
    const float now = Log(FromBits(bits));
    falls += now < before;
    before = now;
  }
  CHECK_EQ(falls, 0u);
}

TEST(nan_and_infinity_do_not_turn_into_numbers) {
  CHECK(std::isnan(Log(NAN)));
  CHECK(!std::isfinite(Log(INFINITY)));
}

}  // namespace
}  // namespace pbx
