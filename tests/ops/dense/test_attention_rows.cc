#include "dense/attention_rows.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "check.h"

using namespace pbx;

namespace {

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

TEST(buckets_are_two_for_each_doubling) {
  const int64_t times[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 16, -1, -100, 1000, 1 << 20};
  const uint32_t expected[kLanes] = {0, 1, 3, 4, 5, 5, 6, 6, 7, 7, 8, 9, 0, 0, 19, 19};
  int64_t before[kLanes];
  int32_t narrow[kLanes];
  for (size_t i = 0; i < kLanes; ++i) {
    before[i] = (1 << 21) - times[i];
    narrow[i] = static_cast<int32_t>(before[i]);
  }
  uint32_t found[kLanes];
  TimeBuckets(kLanes, int64_t{1} << 21, before, 20, found);
  for (size_t i = 0; i < kLanes; ++i) CHECK_EQ(found[i], expected[i]);
  TimeBuckets(kLanes, int32_t{1} << 21, narrow, 20, found);
  for (size_t i = 0; i < kLanes; ++i) CHECK_EQ(found[i], expected[i]);
}

TEST(differences_that_no_int64_holds_have_the_last_bucket) {
  int64_t times[kLanes];
  for (int64_t& time : times) time = std::numeric_limits<int64_t>::min();
  uint32_t found[kLanes];
  TimeBuckets(kLanes, std::numeric_limits<int64_t>::max(), times, 64, found);
  CHECK_EQ(found[0], 63u);
}

TEST(biases_are_added_to_scaled_scores) {
  float scores[kLanes], positions[kLanes];
  uint32_t buckets[kLanes];
  const float times[] = {100, 200, 300};
  for (size_t j = 0; j < kLanes; ++j) {
    scores[j] = static_cast<float>(j);
    positions[j] = static_cast<float>(1000 * j);
    buckets[j] = static_cast<uint32_t>(j % 3);
  }
  AddBiases(kLanes, 2.0f, positions, times, buckets, scores);
  CHECK_EQ(scores[0], 100.0f);
  CHECK_EQ(scores[4], 8.0f + 4000.0f + 200.0f);
  AddBiases(kLanes, 1.0f, positions, times, nullptr, scores);
  CHECK_EQ(scores[4], 4208.0f + 4000.0f + 100.0f);
}

TEST(pointwise_weights_and_gradients_are_those_of_silu) {
  float scores[kLanes], again[kLanes], gradients[kLanes];
  for (size_t j = 0; j < kLanes; ++j) {
    scores[j] = again[j] = static_cast<float>(j) - 8.0f;
    gradients[j] = 2.0f;
  }
  Pointwise(kLanes, 0.25f, scores);
  PointwiseBackward(kLanes, 0.25f, again, gradients);
  for (size_t j = 0; j < kLanes; ++j) {
    const double s = static_cast<double>(j) - 8.0, sigmoid = Sigmoid(s);
    CHECK_NEAR(scores[j], s * sigmoid / 4, 1e-6);
    CHECK_EQ(again[j], scores[j]);
    CHECK_NEAR(gradients[j], (sigmoid + s * sigmoid * (1 - sigmoid)) / 2, 1e-6);
  }
}

TEST(a_softmax_leaves_out_what_is_not_seen) {
  float scores[2 * kLanes], gradients[2 * kLanes];
  for (size_t j = 0; j < 2 * kLanes; ++j) {
    scores[j] = kNothing;
    gradients[j] = 5.0f;
  }
  scores[3] = 500.0f;
  scores[20] = 500.0f + std::log(3.0f);
  Softmax(2 * kLanes, scores);
  CHECK_NEAR(scores[3], 0.25, 1e-5);
  CHECK_NEAR(scores[20], 0.75, 1e-5);
  CHECK_EQ(scores[0], 0.0f);
  gradients[3] = 1.0f;
  SoftmaxBackward(2 * kLanes, scores, gradients);
  CHECK_NEAR(gradients[3], 0.25 * (1 - 4), 1e-4);
  CHECK_NEAR(gradients[20], 0.75 * (5 - 4), 1e-4);
  CHECK_EQ(gradients[1], 0.0f);
}

TEST(bfloat16_rounds_to_even_and_keeps_nan) {
  float values[] = {1.0f, 1.00390625f, 1.01171875f, -3.0f, std::nanf("")};
  RoundToBfloat16(5, values, values);
  CHECK_EQ(values[0], 1.0f);
  CHECK_EQ(values[1], 1.0f);       // half way, to the even 1
  CHECK_EQ(values[2], 1.015625f);  // half way, to the even 1 + 2/128
  CHECK_EQ(values[3], -3.0f);
  CHECK(std::isnan(values[4]));
}
