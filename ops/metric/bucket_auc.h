// BucketAuc: PaddleBox's metrics for a binary label, from a histogram of predictions (1,000,000
// buckets). ErrorSums: PaddleBox's metrics for a target that may be any number. Counts are integers
// and sums are exact, so results do not depend on the order of Add and Merge.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "metric/exact_sum.h"
#include "metric/histogram.h"

namespace pbx {

struct MetricValues {
  double auc = -0.5;  // -0.5 if one class is missing, as in PaddleBox
  double bucket_error = 0;
  double mae = 0;
  double rmse = 0;
  double actual_ctr = 0;
  double predicted_ctr = 0;
  double copc = 0;     // actual / predicted; 0 if predicted is 0
  double logloss = 0;  // predictions clipped to [1e-7, 1 - 1e-7]
  uint64_t size = 0;
};

// Sums of |p - y|, (p - y)^2, p and y over predictions p and targets y, each term in double.
class ErrorSums {
 public:
  static constexpr size_t kSums = 4;

  // predictions, targets: (n). If one is not finite, InvalidArgument with its index, and nothing is
  // added.
  Status Add(const float* predictions, const double* targets, size_t n);
  void AddOne(double p, double y);
  void Merge(const ErrorSums& other);

  uint64_t size() const { return size_; }
  // Means; 0 if nothing was added.
  double mae() const { return Mean(0); }
  double rmse() const;
  double predicted() const { return Mean(2); }
  double actual() const { return Mean(3); }
  double predicted_sum() const { return sums_[2].value(); }

  // (kSums * ExactSum::kChunks)
  std::vector<int64_t> state() const;
  void SetState(uint64_t size, const int64_t* chunks);

 private:
  double Mean(size_t sum) const {
    return size_ == 0 ? 0 : sums_[sum].value() / static_cast<double>(size_);
  }
  ExactSum sums_[kSums];
  uint64_t size_ = 0;
};

class BucketAuc {
 public:
  explicit BucketAuc(size_t buckets = 1000000);

  // predictions, labels: (n). If a prediction is outside [0, 1] or NaN, or a label is not 0 or 1,
  // InvalidArgument with its index, and nothing is added.
  Status Add(const float* predictions, const float* labels, size_t n);
  // Adds the counts and sums of other. InvalidArgument if its number of buckets differs.
  Status Merge(const BucketAuc& other);
  void Reset();
  MetricValues Compute() const;

  // The buckets that are not empty, ascending, with their counts, and the sums.
  struct State {
    uint64_t buckets = 0;  // number of all buckets
    std::vector<uint64_t> bucket, negative, positive;
    std::vector<int64_t> sums;  // (5 * ExactSum::kChunks)
  };
  State state() const;
  // Replaces the counts and sums. InvalidArgument for a state that no BucketAuc of this size can
  // have.
  Status SetState(const State& state);

 private:
  Histogram<uint64_t> counts_;
  ErrorSums errors_;
  ExactSum log_loss_;
};

}  // namespace pbx
