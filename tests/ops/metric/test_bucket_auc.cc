#include "metric/bucket_auc.h"

#include <limits>

#include "base/hash.h"
#include "check.h"

using namespace pbx;

namespace {

using Floats = std::vector<float>;

MetricValues Of(const Floats& predictions, const Floats& labels, size_t buckets = 1000000) {
  BucketAuc metric(buckets);
  CHECK_OK(metric.Add(predictions.data(), labels.data(), predictions.size()));
  return metric.Compute();
}

// The definition: how often a positive is above a negative, a tie being half.
double PairAuc(const Floats& predictions, const Floats& labels) {
  double wins = 0, pairs = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    for (size_t j = 0; j < labels.size(); ++j) {
      if (labels[i] != 1 || labels[j] != 0) continue;
      ++pairs;
      wins += predictions[i] > predictions[j] ? 1 : predictions[i] == predictions[j] ? 0.5 : 0;
    }
  }
  return wins / pairs;
}

// The definition of bucket_error, bucket by bucket.
double PlainBucketError(const std::vector<double>& shows_of, const std::vector<double>& clicks_of) {
  const double n = static_cast<double>(shows_of.size());
  double last = -1, shows = 0, predicted = 0, clicks = 0, error = 0, counted = 0;
  for (size_t i = 0; i < shows_of.size(); ++i) {
    const double ctr = static_cast<double>(i) / n;
    if (std::fabs(ctr - last) > 0.01) {
      last = ctr;
      shows = predicted = clicks = 0;
    }
    if (shows_of[i] == 0) continue;
    shows += shows_of[i];
    predicted += ctr * shows_of[i];
    clicks += clicks_of[i];
    const double mean = predicted / shows;
    if (std::sqrt((1 - mean) / (mean * shows)) < 0.05) {
      error += std::fabs(clicks / shows / mean - 1) * shows;
      counted += shows;
      last = -1;
    }
  }
  return counted > 0 ? error / counted : 0;
}

}  // namespace

// Pairs (positive, negative): 0.75 beats 0.25 and 0.5; 0.5 beats 0.25 and ties 0.5: 3.5 of 4.
TEST(values_worked_by_hand) {
  const MetricValues v = Of({0.75f, 0.25f, 0.5f, 0.5f}, {1, 0, 1, 0});
  CHECK_EQ(v.size, 4u);
  CHECK_EQ(v.auc, 0.875);
  CHECK_EQ(v.mae, (0.25 + 0.25 + 0.5 + 0.5) / 4);
  CHECK_NEAR(v.rmse, std::sqrt((0.0625 + 0.0625 + 0.25 + 0.25) / 4), 1e-15);
  CHECK_EQ(v.actual_ctr, 0.5);
  CHECK_EQ(v.predicted_ctr, 0.5);
  CHECK_EQ(v.copc, 1.0);
  CHECK_NEAR(v.logloss, -(2 * std::log(0.75) + 2 * std::log(0.5)) / 4, 1e-15);
}

TEST(one_class_alone_gives_minus_one_half) {
  CHECK_EQ(Of({0.5f, 0.6f}, {1, 1}).auc, -0.5);
  CHECK_EQ(Of({0.5f, 0.6f}, {0, 0}).auc, -0.5);
  const MetricValues none = Of({}, {});
  CHECK_EQ(none.auc, -0.5);
  CHECK_EQ(none.size, 0u);
  CHECK_EQ(none.copc, 0.0);
}

TEST(the_ends_of_the_range_are_counted_and_the_logloss_is_clipped) {
  const MetricValues v = Of({0, 1}, {1, 0});
  CHECK_EQ(v.auc, 0.0);
  CHECK_NEAR(v.logloss, -std::log(1e-7), 1e-7);
  CHECK_EQ(Of({0, 1}, {0, 1}).auc, 1.0);
  CHECK_EQ(Of({0, 0}, {0, 1}).copc, 0.0);
}

// 4000 predictions of 0.25 fill one group (error sqrt(0.75 / (0.25 * 4000)) < 0.05); a quarter more
// clicks than predicted is an error of 0.25. A second group with 1.5 times as many samples and no
// error: 0.25 * 4000 / 10000.
TEST(the_bucket_error_is_weighted_by_samples) {
  Floats predictions(4000, 0.25f), labels(4000, 0);
  for (size_t i = 0; i < 1250; ++i) labels[i] = 1;
  CHECK_NEAR(Of(Floats(1000, 0.25f), Floats(1000, 0)).bucket_error, 0, 0);  // too few to judge
  CHECK_NEAR(Of(predictions, labels).bucket_error, 0.25, 1e-12);
  for (size_t i = 0; i < 6000; ++i) {
    predictions.push_back(0.5f);
    labels.push_back(i < 3000 ? 1.0f : 0.0f);
  }
  CHECK_NEAR(Of(predictions, labels).bucket_error, 0.1, 1e-12);
}

TEST(auc_agrees_with_counting_pairs) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Floats predictions, labels;
    for (uint64_t i = 0; i < 120; ++i) {
      const uint64_t draw = Mix(seed * 1000 + i);
      predictions.push_back(static_cast<float>(draw % 64) / 64);  // ties are frequent
      labels.push_back((draw >> 32) % 3 == 0 ? 1.0f : 0.0f);
    }
    CHECK_NEAR(Of(predictions, labels, 64).auc, PairAuc(predictions, labels), 1e-12);
    CHECK_NEAR(Of(predictions, labels).auc, PairAuc(predictions, labels), 1e-12);
  }
}

TEST(merging_parts_is_the_same_as_adding_all) {
  Floats predictions, labels;
  for (uint64_t i = 1; i <= 999; ++i) {
    predictions.push_back(static_cast<float>(Mix(i) % 1001) / 1000);
    labels.push_back(Mix(i + 7777) % 4 == 0 ? 1.0f : 0.0f);
  }
  BucketAuc whole(1000), left(1000), right(1000);
  CHECK_OK(whole.Add(predictions.data(), labels.data(), 999));
  CHECK_OK(left.Add(predictions.data() + 500, labels.data() + 500, 499));
  CHECK_OK(right.Add(predictions.data(), labels.data(), 500));
  CHECK_OK(left.Merge(right));
  const MetricValues a = whole.Compute(), b = left.Compute();
  CHECK_EQ(a.auc, b.auc);
  CHECK_EQ(a.bucket_error, b.bucket_error);
  CHECK_EQ(a.size, b.size);
  CHECK_NEAR(a.logloss, b.logloss, 1e-12);
  CHECK_NEAR(a.rmse, b.rmse, 1e-12);
  CHECK_CODE(left.Merge(BucketAuc(999)), Code::kInvalidArgument);
  left.Reset();
  CHECK_EQ(left.Compute().size, 0u);
  CHECK_EQ(left.Compute().mae, 0.0);
}

TEST(a_batch_with_one_bad_value_adds_nothing) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  BucketAuc metric(100);
  const Floats good = {0.5f, 0.5f}, labels = {0, 1};
  for (const float bad : {nan, -0.01f, 1.01f, std::numeric_limits<float>::infinity()}) {
    const Floats predictions = {0.5f, bad};
    const Status status = metric.Add(predictions.data(), labels.data(), 2);
    CHECK_CODE(status, Code::kInvalidArgument);
    CHECK(status.message().find("prediction 1") != std::string::npos);
  }
  for (const float bad : {nan, 0.5f, 2.0f, -1.0f}) {
    const Floats odd = {0, bad};
    CHECK_CODE(metric.Add(good.data(), odd.data(), 2), Code::kInvalidArgument);
  }
  CHECK_EQ(metric.Compute().size, 0u);
}

// Empty buckets begin groups, too.
TEST(bucket_error_is_that_of_all_buckets) {
  for (const size_t buckets : {7u, 100u, 101u, 1000u, 99991u}) {
    for (uint64_t seed = 0; seed < 40; ++seed) {
      std::vector<double> shows(buckets), clicks(buckets);
      Floats predictions, labels;
      for (uint64_t i = 0; i < 40 * (1 + seed); ++i) {
        const double u = static_cast<double>(Mix(seed << 32 | i) >> 11) * 0x1p-53;
        const float p = static_cast<float>(seed % 2 ? u : u * u * u);
        const bool click = Mix(i) % 5 == 0;
        const size_t bucket =
            std::min(static_cast<size_t>(static_cast<double>(p) * static_cast<double>(buckets)),
                     buckets - 1);
        shows[bucket] += 1;
        clicks[bucket] += click;
        predictions.push_back(p);
        labels.push_back(click);
      }
      CHECK_EQ(Of(predictions, labels, buckets).bucket_error, PlainBucketError(shows, clicks));
    }
  }
}
