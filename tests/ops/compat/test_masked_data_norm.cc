#include "compat/masked_data_norm.h"

#include "check.h"

using namespace pbx;

namespace {
using Floats = std::vector<float>;
const Floats kScale = {3}, kBias = {10};

// One column, whose sums have mean 2 and scale 2; row 1 of three is not selected.
struct Sample {
  const bool mask[3] = {true, false, true};
  const Floats size = {4}, sum = {8}, square = {1}, x = {3, 100, 5};
  DataNorm norm;
  DataNormSums sums{size.data(), sum.data(), square.data()};

  Sample() {
    norm.instances = 3;
    norm.columns = 1;
    norm.epsilon = 0.25f;
    norm.decay = 0.5f;
    norm.scale_w = kScale.data();
    norm.bias = kBias.data();
  }
};
}  // namespace

TEST(selected_rows_are_normalised_and_others_are_zeros) {
  Sample s;
  Floats y(3, -1), means(1), scales(1);
  MaskedDataNormForward(s.norm, s.mask, s.sums, s.x.data(), y.data(), means.data(), scales.data());
  CHECK(y == Floats({2 * 3 + 10, 0, 6 * 3 + 10}));
  CHECK_EQ(means[0], 2.0f);
  CHECK_EQ(scales[0], 2.0f);
}

TEST(gradients_come_from_selected_rows) {
  Sample s;
  const Floats means = {2}, scales = {2}, dy = {1, 10, 100};
  Floats dx(3, -1), dscale(1), dbias(1);
  MaskedDataNormBackward(s.norm, s.mask, s.x.data(), means.data(), scales.data(), dy.data(),
                         dx.data(), dscale.data(), dbias.data());
  CHECK(dx == Floats({6, 0, 600}));
  CHECK_EQ(dscale[0], 2.0f * 1 + 6.0f * 100);
  CHECK_EQ(dbias[0], 101.0f);
}

TEST(sums_take_the_means_of_selected_rows) {
  Sample s;
  Floats size(1), sum(1), square(1);
  MaskedDataNormUpdate(s.norm, s.mask, s.sums, s.x.data(), size.data(), sum.data(), square.data());
  CHECK_EQ(size[0], 2.0f + 1);
  CHECK_EQ(sum[0], 4.0f + 4);             // the mean of 3 and 5
  CHECK_EQ(square[0], 0.5f + 5 + 0.25f);  // distances 1 and 3 from the mean 2
}

TEST(sums_rest_if_no_row_is_selected) {
  Sample s;
  const bool none[3] = {false, false, false};
  Floats size(1), sum(1), square(1);
  MaskedDataNormUpdate(s.norm, none, s.sums, s.x.data(), size.data(), sum.data(), square.data());
  CHECK_EQ(size[0], 4.0f);
  CHECK_EQ(sum[0], 8.0f);
  CHECK_EQ(square[0], 1.0f);
}
