#include "base/log1p.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "check.h"

namespace pbx {
namespace {

// |Log1p(x) - log(1 + x)| in units of the spacing of doubles there.
double ErrorInUlps(double x) {
  const long double exact = std::log1p(static_cast<long double>(x));
  const double nearest = std::fabs(static_cast<double>(exact));
  const double spacing = std::nextafter(nearest, INFINITY) - nearest;
  return static_cast<double>(std::fabs(static_cast<long double>(Log1p(x)) - exact) /
                             static_cast<long double>(spacing));
}

TEST(every_result_is_within_1_ulp) {
  double worst = 0;
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> exponent(-60, 1023), near(-0.999, 3);
  for (int i = 0; i < 200000; ++i) {
    const double x = std::exp2(exponent(random));
    worst = std::max({worst, ErrorInUlps(x), ErrorInUlps(near(random))});
    if (x < 1) worst = std::max(worst, ErrorInUlps(-x));
  }
  CHECK(worst <= 1.0);
}

TEST(the_ends_of_the_range_are_exact) {
  CHECK_EQ(Log1p(0.0), 0.0);
  CHECK_EQ(Log1p(1e-300), 1e-300);
  CHECK_EQ(Log1p(-5e-324), -5e-324);
  CHECK(ErrorInUlps(1.7e308) <= 1.0);
  CHECK(ErrorInUlps(std::nextafter(-1.0, 0.0)) <= 1.0);
}

}  // namespace
}  // namespace pbx
