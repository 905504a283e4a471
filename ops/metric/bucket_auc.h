// BucketAuc: PaddleBox's metric set from a histogram of predictions (1,000,000 buckets), and
// ErrorSums: its set for a target that is any number. Counts are integers and sums are exact, so a
// result does not depend on the order of Add and Merge.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "metric/exact_sum.h"

namespace pbx {

struct MetricValues {
  double auc = -0.5;  // -0.5 when one class is missing, as PaddleBox
  double bucket_error = 0;
  double mae = 0;
  double rmse = 0;
  double actual_ctr = 0;
  double predicted_ctr = 0;
  double copc = 0;     // actual / predicted; 0 when predicted is 0
  double logloss = 0;  // predictions clipped to [1e-7, 1 - 1e-7]
  uint64_t size = 0;
};

// Of predictions p and targets y: sums of |p - y|, (p - y)^2, p and y, each term in double.
class ErrorSums {
 public:
  static constexpr size_t kSums = 4;

  // predictions, targets: (n), finite: InvalidArgument with the index of one that is not, and
  // nothing is added then.
  Status Add(const float* predictions, const float* targets, size_t n);
  void AddOne(double p, double y);
  void Merge(const ErrorSums& other);

  uint64_t size() const { return size_; }
  // Means; 0 where nothing was added.
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

  // predictions, labels: (n). A prediction outside [0, 1] or NaN, or a label that is not 0 or 1, is
  // InvalidArgument with its index; nothing is added then.
  Status Add(const float* predictions, const float* labels, size_t n);
  // Adds what other has seen. Another number of buckets is InvalidArgument.
  Status Merge(const BucketAuc& other);
  void Reset();
  MetricValues Compute() const;

  // Buckets that hold something, ascending, with their counts, and the sums.
  struct State {
    uint64_t buckets = 0;  // of the whole table
    std::vector<uint64_t> bucket, negative, positive;
    std::vector<int64_t> sums;  // (5 * ExactSum::kChunks)
  };
  State state() const;
  // In place of what was added. InvalidArgument for a state that no BucketAuc of this size gave.
  Status SetState(const State& state);

 private:
  std::vector<uint64_t> negative_, positive_;
  ErrorSums errors_;
  ExactSum log_loss_;
};

}  // namespace pbx
