#include "compat/scaled_int8fc.h"

#include <cmath>
#include <limits>

#include "check.h"

using namespace pbx;

namespace {
using Floats = std::vector<float>;

Floats Quantized(const Floats& values, const Int8Scale& scale, float range) {
  Floats to(values.size());
  QuantizeInt8(values.size(), values.data(), scale, range, to.data());
  return to;
}

// Values become integers in steps of 1: 2 * clip = range.
ScaledInt8Fc Of(size_t instances, size_t inputs, size_t outputs) {
  return {instances, inputs, outputs, {1.0f, 60.0f}, {1.0f, 60.0f}, 120.0f};
}
}  // namespace

TEST(halves_and_negative_values_round_towards_zero_after_half_is_added) {
  const Floats values = {0, 0.25f, 0.5f, 1.25f, 1.5f, -0.25f, -1, -1.25f, -1.5f, -2};
  CHECK(Quantized(values, {1, 60}, 120) == Floats({0, 0, 1, 1, 2, 0, 0, 0, -1, -1}));
}

TEST(values_are_expanded_then_clipped) {
  const Floats values = {1, 2, 100, -100};
  CHECK(Quantized(values, {4, 6}, 12) == Floats({4, 6, 6, -5}));
}

// With steps of 2^-23, about 1.2e-7: 64 steps are the clip, 8 steps are less than 1e-6, 9 are more.
TEST(values_up_to_1e_6_above_either_clip_are_treated_as_in_paddlebox) {
  const float step = std::ldexp(1.0f, -23);
  const Floats above = {68 * step, 72 * step, 73 * step};
  CHECK(Quantized(above, {1, 64 * step}, 128) == Floats({68, 72, 64}));
  const Floats below = {-55 * step, -56 * step, -60 * step, -70 * step};
  CHECK(Quantized(below, {1, 64 * step}, 128) == Floats({-54, -63, -63, -63}));
}

TEST(integers_end_at_127_and_minus_128) {
  CHECK(Quantized({1, -1}, {1, 1}, 1000) == Floats({127, -128}));
}

TEST(not_a_number_becomes_zero_and_infinity_is_clipped) {
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(Quantized({std::nanf(""), infinity, -infinity}, {1, 60}, 120) == Floats({0, 60, -59}));
}

// Steps: 2 * 4 / 8 = 1 for x and 2 * 1 / 8 = 1/4 for w. q(x) = 2 * 1 = 2, q(w) = 3 * 0.25 / 0.25
// = 3. The result has the step of x alone: 2 * 3 / (2 * 3) * 1.
TEST(the_result_is_scaled_by_the_factors_and_the_step_of_x) {
  const ScaledInt8Fc fc{1, 1, 1, {2, 4}, {3, 1}, 8};
  const float x = 1, w = 0.25f, bias = 10;
  float y = 0;
  ScaledInt8FcForward(fc, &x, &w, &bias, &y);
  CHECK_EQ(y, 11.0f);
}

// 5000 products of 127 * 127 are above 2^24, where float32 skips integers: 80645000 + 1.
TEST(sums_are_exact_beyond_the_integers_of_float32) {
  const size_t inputs = 5001;
  Floats x(inputs, 127), w(inputs, 127), y(1), bias = {0};
  x.back() = w.back() = 1;
  const ScaledInt8Fc fc{1, inputs, 1, {1, 127}, {1, 127}, 254};
  ScaledInt8FcForward(fc, x.data(), w.data(), bias.data(), y.data());
  CHECK_EQ(y[0], 80645001.0f);
  w[0] = 126;  // 127 less: a sum of float32 would lose the difference to rounding
  ScaledInt8FcForward(fc, x.data(), w.data(), bias.data(), y.data());
  CHECK_EQ(y[0], static_cast<float>(80645001 - 127));
}

TEST(rows_and_columns_are_multiplied_and_the_bias_is_added) {
  const Floats x = {1, 2, 3, 4, 5, 6}, w = {1, 0, 0, 1, 10, 20}, bias = {100, 200};
  Floats y(4);
  ScaledInt8FcForward(Of(2, 3, 2), x.data(), w.data(), bias.data(), y.data());
  CHECK(y == Floats({131, 262, 164, 325}));
}

TEST(factors_must_be_positive_and_inputs_few_enough_for_int32) {
  CHECK_OK(CheckScaledInt8Fc(Of(1, 131071, 1)));
  CHECK_CODE(CheckScaledInt8Fc(Of(1, 131072, 1)), Code::kInvalidArgument);
  for (float wrong : {0.0f, -1.0f, std::nanf(""), std::numeric_limits<float>::infinity()}) {
    for (int factor = 0; factor < 5; ++factor) {
      ScaledInt8Fc fc = Of(1, 1, 1);
      float* const factors[] = {&fc.x.expand, &fc.x.clip, &fc.w.expand, &fc.w.clip, &fc.range};
      *factors[factor] = wrong;
      CHECK_CODE(CheckScaledInt8Fc(fc), Code::kInvalidArgument);
    }
  }
}
