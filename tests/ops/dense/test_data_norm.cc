#include "dense/data_norm.h"

#include "check.h"

using namespace pbx;

namespace {
using Floats = std::vector<float>;
const Floats kOnes(2, 1.0f), kZeros(2, 0.0f);

DataNorm Of(size_t instances, size_t columns) {
  DataNorm norm;
  norm.instances = instances;
  norm.columns = columns;
  norm.scale_w = kOnes.data();
  norm.bias = kZeros.data();
  return norm;
}
}  // namespace

// Sums of 4 instances: mean 2, mean square 1/4.
TEST(values_are_normalised_by_the_running_sums) {
  const Floats size = {4}, sum = {8}, square = {1}, x = {2, 3};
  Floats y(2), means(1), scales(1);
  DataNorm norm = Of(2, 1);
  DataNormForward(norm, {size.data(), sum.data(), square.data()}, x.data(), y.data(), means.data(),
                  scales.data());
  CHECK_EQ(means[0], 2.0f);
  CHECK_EQ(scales[0], 2.0f);
  CHECK(y == Floats({0, 2}));
}

TEST(a_slot_without_shows_gives_zeros_and_does_not_count) {
  const Floats size = {1, 1}, sum = {1, 1}, square = {1, 1}, x = {0, 9, 3, 5};
  Floats y(4), means(2), scales(2), dx(4, -1.0f), dscale(2), dbias(2);
  DataNorm norm = Of(2, 2);
  norm.slot_dim = 2;
  norm.epsilon = 0;
  norm.decay = 0.5f;
  const DataNormSums sums{size.data(), sum.data(), square.data()};
  DataNormForward(norm, sums, x.data(), y.data(), means.data(), scales.data());
  CHECK(y == Floats({0, 0, 2, 4}));
  const Floats dy = {1, 1, 1, 1};
  DataNormBackward(norm, x.data(), means.data(), scales.data(), dy.data(), dx.data(), dscale.data(),
                   dbias.data());
  CHECK(dx == Floats({0, 0, 1, 1}));
  CHECK(dscale == Floats({2, 4}));
  CHECK(dbias == Floats({1, 1}));
  Floats size2(2), sum2(2), square2(2);
  DataNormUpdate(norm, sums, x.data(), size2.data(), sum2.data(), square2.data());
  CHECK(size2 == Floats({1.5f, 1.5f}));
  CHECK(sum2 == Floats({0.5f + 3, 0.5f + 5}));
  CHECK(square2 == Floats({0.5f + 4, 0.5f + 16}));
}

TEST(the_update_decays_then_adds_the_batchs_means) {
  Floats size = {4}, sum = {8}, square = {1};
  const Floats x = {3, 5};  // distances 1 and 3 from the mean 2
  DataNorm norm = Of(2, 1);
  norm.epsilon = 0.25f;
  norm.decay = 0.5f;
  DataNormUpdate(norm, {size.data(), sum.data(), square.data()}, x.data(), size.data(), sum.data(),
                 square.data());
  CHECK_EQ(size[0], 3.0f);
  CHECK_EQ(sum[0], 8.0f);
  CHECK_EQ(square[0], 0.5f + 5.0f + 0.25f);
}

TEST(a_batch_without_instances_leaves_mean_and_scale) {
  Floats size = {4}, sum = {8}, square = {1};
  DataNorm norm = Of(0, 1);
  norm.decay = 0.5f;
  DataNormUpdate(norm, {size.data(), sum.data(), square.data()}, nullptr, size.data(), sum.data(),
                 square.data());
  CHECK_EQ(size[0], 2.0f);
  CHECK_EQ(sum[0], 4.0f);
  CHECK_EQ(square[0], 0.5f);
}

TEST(scale_and_shift_have_gradients) {
  const Floats size = {4}, sum = {8}, square = {1}, x = {2, 3}, scale_w = {3}, bias = {10};
  Floats y(2), means(1), scales(1), dx(2), dscale(1), dbias(1);
  DataNorm norm = Of(2, 1);
  norm.scale_w = scale_w.data();
  norm.bias = bias.data();
  DataNormForward(norm, {size.data(), sum.data(), square.data()}, x.data(), y.data(), means.data(),
                  scales.data());
  CHECK(y == Floats({10, 16}));
  const Floats dy = {1, 2};
  DataNormBackward(norm, x.data(), means.data(), scales.data(), dy.data(), dx.data(), dscale.data(),
                   dbias.data());
  CHECK(dx == Floats({6, 12}));
  CHECK_EQ(dscale[0], 4.0f);
  CHECK_EQ(dbias[0], 3.0f);
}
