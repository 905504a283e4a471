#include "compat/scaled_fc.h"

#include <cstdint>

#include "check.h"

using namespace pbx;

namespace {
using Floats = std::vector<float>;
}

TEST(a_layer_and_its_gradients_worked_by_hand) {
  const ScaledFc fc{2, 2, 1};
  const Floats x = {1, 2, 3, 4}, w = {5, 6}, bias = {7}, dy = {10, 100};
  Floats y(2, -1), dx(4, -1), dw(2, -1), dbias(1, -1);
  ScaledFcForward(fc, x.data(), w.data(), bias.data(), y.data());
  CHECK(y == Floats({1 * 5 + 2 * 6 + 7, 3 * 5 + 4 * 6 + 7}));
  ScaledFcBackward(fc, x.data(), w.data(), dy.data(), dx.data(), dw.data(), dbias.data());
  CHECK(dx == Floats({50, 60, 500, 600}));
  CHECK(dw == Floats({310, 420}));
  CHECK_EQ(dbias[0], 110.0f);
}

// Sizes on both sides of a block of 64 terms and a strip of 48 rows, with integers below 2^24.
TEST(every_block_and_strip_is_added_once) {
  for (size_t instances : {1u, 48u, 49u, 100u}) {
    for (size_t inputs : {1u, 64u, 65u, 130u}) {
      const ScaledFc fc{instances, inputs, 3};
      Floats x(instances * inputs), w(inputs * 3), bias = {1, 2, 3}, y(instances * 3);
      for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 17) - 8;
      for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i % 13) - 6;
      ScaledFcForward(fc, x.data(), w.data(), bias.data(), y.data());
      for (size_t n = 0; n < instances; ++n) {
        for (size_t o = 0; o < 3; ++o) {
          float expected = bias[o];
          for (size_t i = 0; i < inputs; ++i) expected += x[n * inputs + i] * w[i * 3 + o];
          CHECK_EQ(y[n * 3 + o], expected);
        }
      }
    }
  }
}

// A plain float32 sum of these random terms in [0, 1) is off by 2e-5 of it.
TEST(errors_grow_slowly_with_the_number_of_terms) {
  const size_t terms = 1000000;
  Floats x(terms);
  const Floats ones(terms, 1), bias = {0};
  double sum = 0;
  uint32_t random = 1;
  for (float& value : x) {
    random = random * 1664525 + 1013904223;
    value = static_cast<float>(random >> 8) / (1 << 24);
    sum += static_cast<double>(value);
  }
  float y = 0;
  ScaledFcForward({1, terms, 1}, x.data(), ones.data(), bias.data(), &y);
  CHECK_NEAR(y, sum, 1e-6 * sum);
  Floats dx(terms);
  float dw = 0, dbias = 0;
  ScaledFcBackward({terms, 1, 1}, x.data(), ones.data(), ones.data(), dx.data(), &dw, &dbias);
  CHECK_NEAR(dw, sum, 1e-6 * sum);
  ScaledFcBackward({terms, 1, 1}, ones.data(), ones.data(), x.data(), dx.data(), &dw, &dbias);
  CHECK_NEAR(dbias, sum, 1e-6 * sum);
}
