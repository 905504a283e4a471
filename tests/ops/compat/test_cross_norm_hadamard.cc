#include "compat/cross_norm_hadamard.h"

#include "check.h"

using namespace pbx;

namespace {
using Floats = std::vector<float>;

// One instance with two pairs of two columns: a = (1, 2), b = (3, 4) and a = (5, 6), b = (7, 8).
const Floats kX = {1, 2, 3, 4, 5, 6, 7, 8};
const Floats kFeatures = {1, 2, 3, 4, 3, 8, 11, 5, 6, 7, 8, 35, 48, 83};
constexpr CrossNorm kCross{1, 2, 2, 0.25f, 0.5f};

// Sums of every feature, from which all means are 1 and all scales 2.
Floats Summary() {
  Floats summary(3 * kFeatures.size(), 4);
  for (size_t i = 0; i < kFeatures.size(); ++i) summary[2 * kFeatures.size() + i] = 1;
  return summary;
}
}  // namespace

TEST(features_of_each_pair_are_normalised) {
  const Floats summary = Summary();
  Floats y(14), means(14), scales(14), expected(14);
  for (size_t i = 0; i < 14; ++i) expected[i] = (kFeatures[i] - 1) * 2;
  CrossNormForward(kCross, summary.data(), kX.data(), y.data(), means.data(), scales.data());
  CHECK(y == expected);
  CHECK(means == Floats(14, 1));
  CHECK(scales == Floats(14, 2));
}

TEST(each_embedding_has_the_gradient_of_all_its_features) {
  Floats scales(14, 1), dy(14, 0), dx(8);
  // a: 10 and 20, b: 30 and 40, products: 1 and 2, sum: 100. The second pair has a scale of 2.
  const Floats first = {10, 20, 30, 40, 1, 2, 100};
  for (size_t i = 0; i < 7; ++i) {
    dy[i] = dy[7 + i] = first[i];
    scales[7 + i] = 2;
  }
  CrossNormBackward(kCross, kX.data(), scales.data(), dy.data(), dx.data());
  CHECK(dx == Floats({10 + 101 * 3, 20 + 102 * 4, 30 + 101 * 1, 40 + 102 * 2,  //
                      20 + 202 * 7, 40 + 204 * 8, 60 + 202 * 5, 80 + 204 * 6}));
}

TEST(the_update_adds_the_means_of_all_features) {
  Floats summary = Summary();
  CrossNormUpdate(kCross, summary.data(), kX.data(), summary.data());
  for (size_t i = 0; i < 14; ++i) {
    const float distance = kFeatures[i] - 1;
    CHECK_EQ(summary[i], 2.0f + 1);
    CHECK_EQ(summary[14 + i], 2.0f + kFeatures[i]);
    CHECK_EQ(summary[28 + i], 0.5f + distance * distance + 0.25f);
  }
}
