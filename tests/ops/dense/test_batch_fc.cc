#include "dense/batch_fc.h"

#include "check.h"

using namespace pbx;

namespace {
using Floats = std::vector<float>;
}

// One instance, two groups of two inputs and one output: y = 1*3 + 2*4 + 10, y = 5*7 + 6*8 + 20.
TEST(every_group_has_weights_of_its_own) {
  BatchFc fc{2, 1, 2, 1, {2, 2}, {2, 1}, {1, 1}};
  const Floats x = {1, 2, 5, 6}, w = {3, 4, 7, 8}, bias = {10, 20};
  Floats y(2);
  BatchFcForward(fc, x.data(), w.data(), bias.data(), y.data());
  CHECK_EQ(y[0], 21.0f);
  CHECK_EQ(y[1], 103.0f);
}

// The same groups side by side in a row: x (1, G I), w (I, G O).
TEST(groups_side_by_side_are_the_same_layer) {
  BatchFc fc{2, 1, 2, 1, {2, 4}, {1, 2}, {1, 2}};
  const Floats x = {1, 2, 5, 6}, w = {3, 7, 4, 8}, bias = {10, 20};
  Floats y(2);
  BatchFcForward(fc, x.data(), w.data(), bias.data(), y.data());
  CHECK_EQ(y[0], 21.0f);
  CHECK_EQ(y[1], 103.0f);
}

TEST(gradients_worked_by_hand) {
  BatchFc fc{1, 2, 2, 1, {4, 2}, {2, 1}, {2, 1}};
  const Floats x = {1, 2, 3, 4}, w = {5, 6}, dy = {10, 100};
  Floats dx(4, -1.0f), dw(2, -1.0f), dbias(1, -1.0f);
  BatchFcBackward(fc, x.data(), w.data(), dy.data(), dx.data(), dw.data(), dbias.data());
  CHECK(dx == Floats({50, 60, 500, 600}));
  CHECK(dw == Floats({310, 420}));
  CHECK_EQ(dbias[0], 110.0f);
}
