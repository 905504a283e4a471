#include "metric/weighted_auc.h"

#include <limits>

#include "base/hash.h"
#include "check.h"

using namespace pbx;

namespace {

using Floats = std::vector<float>;

WeightedValues Of(const Floats& predictions, const Floats& targets, const Floats& weights,
                  size_t buckets = 1000000) {
  WeightedAuc metric(buckets);
  CHECK_OK(metric.Add(predictions.data(), targets.data(), weights.data(), predictions.size()));
  return metric.Compute();
}

struct Samples {
  Floats predictions, targets, weights;
};

// Weights are multiples of 1/4 and targets of 1/8, so that sums in double are exact.
Samples Draw(uint64_t seed, size_t n) {
  Samples drawn;
  for (uint64_t i = 0; i < n; ++i) {
    const uint64_t draw = Mix(seed * 100000 + i);
    drawn.predictions.push_back(static_cast<float>(draw % 64) / 64);  // ties are frequent
    drawn.targets.push_back(static_cast<float>((draw >> 20) % 9) / 8);
    drawn.weights.push_back(static_cast<float>((draw >> 40) % 12) / 4);
  }
  return drawn;
}

// The definition: how often a positive is above a negative, a tie being half.
double PairAuc(const Samples& s) {
  double wins = 0, pairs = 0;
  for (size_t i = 0; i < s.targets.size(); ++i) {
    for (size_t j = 0; j < s.targets.size(); ++j) {
      const double pair = static_cast<double>(s.weights[i]) * static_cast<double>(s.targets[i]) *
                          static_cast<double>(s.weights[j]) *
                          (1 - static_cast<double>(s.targets[j]));
      pairs += pair;
      wins += pair * (s.predictions[i] > s.predictions[j]    ? 1
                      : s.predictions[i] == s.predictions[j] ? 0.5
                                                             : 0);
    }
  }
  return wins / pairs;
}

void CheckSame(const WeightedValues& a, const WeightedValues& b) {
  CHECK_EQ(a.auc, b.auc);
  CHECK_EQ(a.bucket_error, b.bucket_error);
  CHECK_EQ(a.mae, b.mae);
  CHECK_EQ(a.rmse, b.rmse);
  CHECK_EQ(a.actual_ctr, b.actual_ctr);
  CHECK_EQ(a.predicted_ctr, b.predicted_ctr);
  CHECK_EQ(a.copc, b.copc);
  CHECK_EQ(a.logloss, b.logloss);
  CHECK_EQ(a.size, b.size);
  CHECK_EQ(a.weight, b.weight);
}

}  // namespace

// Positives: 2 at 0.75 and 1 at 0.25; negatives: 1 at 0.5 and 3 at 0.25. Wins: 2 * 4 and half of
// 1 * 3: 9.5 of 12.
TEST(values_worked_by_hand) {
  const WeightedValues v = Of({0.75f, 0.5f, 0.25f}, {1, 0, 0.25f}, {2, 1, 4});
  CHECK_EQ(v.size, 3u);
  CHECK_EQ(v.weight, 7.0);
  CHECK_NEAR(v.auc, 9.5 / 12, 1e-15);
  CHECK_NEAR(v.mae, (2 * 0.25 + 0.5) / 7, 1e-15);
  CHECK_NEAR(v.rmse, std::sqrt((2 * 0.0625 + 0.25) / 7), 1e-15);
  CHECK_NEAR(v.actual_ctr, 3.0 / 7, 1e-15);
  CHECK_NEAR(v.predicted_ctr, (2 * 0.75 + 0.5 + 1) / 7, 1e-15);
  CHECK_EQ(v.copc, 1.0);
  const double of_third = 4 * (0.25 * std::log(0.25) + 0.75 * std::log(0.75));
  CHECK_NEAR(v.logloss, -(2 * std::log(0.75) + std::log(0.5) + of_third) / 7, 1e-15);
}

TEST(weights_of_one_and_targets_of_zero_and_one_give_the_values_of_bucket_auc) {
  Samples s = Draw(1, 5000);
  for (float& y : s.targets) y = y > 0.5f ? 1.0f : 0.0f;
  s.weights.assign(s.targets.size(), 1);
  BucketAuc plain;
  CHECK_OK(plain.Add(s.predictions.data(), s.targets.data(), s.targets.size()));
  const MetricValues expected = plain.Compute();
  const WeightedValues found = Of(s.predictions, s.targets, s.weights);
  CHECK_EQ(found.auc, expected.auc);
  CHECK(expected.bucket_error > 0);
  CHECK_EQ(found.bucket_error, expected.bucket_error);
  CHECK_EQ(found.mae, expected.mae);
  CHECK_EQ(found.rmse, expected.rmse);
  CHECK_EQ(found.actual_ctr, expected.actual_ctr);
  CHECK_EQ(found.predicted_ctr, expected.predicted_ctr);
  CHECK_EQ(found.copc, expected.copc);
  CHECK_EQ(found.logloss, expected.logloss);
  CHECK_EQ(found.size, expected.size);
  CHECK_EQ(found.weight, 5000.0);
}

TEST(auc_agrees_with_counting_pairs) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const Samples s = Draw(seed, 120);
    CHECK_NEAR(Of(s.predictions, s.targets, s.weights).auc, PairAuc(s), 1e-12);
  }
}

TEST(a_weight_of_two_counts_as_two_samples) {
  const WeightedValues once = Of({0.5f, 0.25f}, {0.5f, 0}, {2, 1});
  const WeightedValues twice = Of({0.5f, 0.5f, 0.25f}, {0.5f, 0.5f, 0}, {1, 1, 1});
  CHECK_EQ(once.auc, twice.auc);
  CHECK_EQ(once.logloss, twice.logloss);
  CHECK_EQ(once.weight, twice.weight);
  CHECK_EQ(once.size, 2u);
}

TEST(one_class_alone_and_no_weight_give_minus_one_half) {
  CHECK_EQ(Of({0.5f, 0.6f}, {1, 1}, {1, 2}).auc, -0.5);
  CHECK_EQ(Of({0.5f, 0.6f}, {0, 0}, {1, 2}).auc, -0.5);
  const WeightedValues none = Of({0.5f, 0.6f}, {1, 0}, {0, 0});
  CHECK_EQ(none.auc, -0.5);
  CHECK_EQ(none.mae, 0.0);
  CHECK_EQ(none.size, 2u);
  CHECK_EQ(none.weight, 0.0);
}

// 0.1 has no finite binary fraction, so a sum in double would depend on the order.
TEST(neither_order_nor_parts_nor_a_saved_state_change_the_values) {
  Samples s = Draw(3, 999);
  for (size_t i = 0; i < s.weights.size(); ++i) {
    s.weights[i] = 0.1f * s.weights[i] + (i % 7 == 0 ? 1e9f : 0);
  }
  WeightedAuc left(1000), right(1000), loaded(1000);
  for (size_t i = s.targets.size(); i-- > 0;) {
    WeightedAuc& part = i % 3 == 0 ? left : right;
    CHECK_OK(part.Add(&s.predictions[i], &s.targets[i], &s.weights[i], 1));
  }
  CHECK_OK(loaded.SetState(left.state()));
  CHECK_OK(loaded.Merge(right));
  CheckSame(loaded.Compute(), Of(s.predictions, s.targets, s.weights, 1000));
  CHECK_CODE(loaded.Merge(WeightedAuc(999)), Code::kInvalidArgument);
  CHECK_CODE(WeightedAuc(999).SetState(loaded.state()), Code::kInvalidArgument);
  WeightedAuc::State torn = loaded.state();
  torn.negative.pop_back();
  CHECK_CODE(loaded.SetState(torn), Code::kInvalidArgument);
}

// 2^31 samples of the largest weight in one bucket would be 2^63.
TEST(a_bucket_holds_many_of_the_largest_weights) {
  WeightedAuc metric(10);
  const Floats p(1000, 0.5f), y(1000, 1), w(1000, static_cast<float>(WeightedAuc::kMaxWeight));
  CHECK_OK(metric.Add(p.data(), y.data(), w.data(), 1000));
  for (size_t i = 0; i < 21; ++i) {
    WeightedAuc same(10);
    CHECK_OK(same.Merge(metric));
    CHECK_OK(metric.Merge(same));
  }
  const float low = 0.25f, negative = 0, one = 1;
  CHECK_OK(metric.Add(&low, &negative, &one, 1));
  CHECK_EQ(metric.Compute().auc, 1.0);
}

TEST(a_batch_with_one_bad_value_adds_nothing) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  WeightedAuc metric(100);
  const Floats good = {0.5f, 0.5f};
  for (const float bad : {nan, -0.01f, 1.01f, std::numeric_limits<float>::infinity()}) {
    const Floats odd = {0.5f, bad};
    const Status status = metric.Add(odd.data(), good.data(), good.data(), 2);
    CHECK_CODE(status, Code::kInvalidArgument);
    CHECK(status.message().find("prediction 1") != std::string::npos);
    CHECK_CODE(metric.Add(good.data(), odd.data(), good.data(), 2), Code::kInvalidArgument);
  }
  for (const float bad : {nan, -1.0f, 5e9f}) {
    const Floats odd = {1, bad};
    CHECK_CODE(metric.Add(good.data(), good.data(), odd.data(), 2), Code::kInvalidArgument);
  }
  CHECK_EQ(metric.Compute().size, 0u);
}
