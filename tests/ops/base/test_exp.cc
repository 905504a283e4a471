#include "base/exp.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "check.h"

namespace pbx {
namespace {

// |Exp(x) - e^x| in units of the spacing of floats at e^x.
double ErrorInUlps(float x) {
  const double exact = std::exp(static_cast<double>(x));
  const float nearest = static_cast<float>(exact);
  return std::fabs(static_cast<double>(Exp(x)) - exact) /
         (std::nextafter(nearest, INFINITY) - nearest);
}

TEST(e_to_the_0_is_exactly_1) {
  CHECK_EQ(Exp(0.0f), 1.0f);
  CHECK_EQ(Exp(-0.0f), 1.0f);
}

TEST(every_result_is_within_2_ulp) {
  double worst = 0;
  for (int i = -873000; i <= 873000; ++i)
    worst = std::max(worst, ErrorInUlps(static_cast<float>(i) * 1e-4f));
  CHECK(worst <= 2.0);
}

TEST(results_beyond_the_range_are_its_ends) {
  CHECK_EQ(Exp(1e30f), Exp(87.3f));
  CHECK_EQ(Exp(-3e38f), Exp(-87.3f));
  CHECK(std::isfinite(Exp(87.3f)));
  CHECK(Exp(-87.3f) > 0.0f);
}

TEST(nan_and_infinity_give_nan) {
  for (const float x : {INFINITY, -INFINITY, std::numeric_limits<float>::quiet_NaN()})
    CHECK(std::isnan(Exp(x)));
}

}  // namespace
}  // namespace pbx
