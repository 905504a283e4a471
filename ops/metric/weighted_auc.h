// WeightedAuc: the metrics of BucketAuc for samples that have weights and targets in [0, 1]. A
// sample of weight w and target y counts as w * y positives and w * (1 - y) negatives. With weights
// of 1 and targets of 0 and 1, the values are those of BucketAuc, up to rounding. The sums of a
// bucket are multiples of 2^-64, so results do not depend on the order of Add and Merge. AUC and
// bucket_error see only that part of a weight; the other values see all of it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "metric/bucket_auc.h"
#include "metric/exact_sum.h"
#include "metric/histogram.h"

namespace pbx {

struct WeightedValues : MetricValues {  // size counts the samples
  double weight = 0;                    // the sum of the weights
};

class WeightedAuc {
 public:
  static constexpr double kMaxWeight = 4294967296.0;  // 2^32
  static constexpr size_t kSums = 6;

  explicit WeightedAuc(size_t buckets = 1000000);

  // predictions, targets, weights: (n). If a prediction or target is outside [0, 1], or a weight
  // outside [0, kMaxWeight], InvalidArgument with its index, and nothing is added.
  Status Add(const float* predictions, const float* targets, const float* weights, size_t n);
  // Adds the sums of other. InvalidArgument if its number of buckets differs.
  Status Merge(const WeightedAuc& other);
  WeightedValues Compute() const;

  // The buckets that are not empty, ascending, and the sums.
  struct State {
    uint64_t buckets = 0, size = 0;  // numbers of all buckets and of samples
    std::vector<uint64_t> bucket;    // (b)
    std::vector<uint64_t> negative;  // (2 b) the low and the high half of each
    std::vector<uint64_t> positive;  // (2 b)
    std::vector<int64_t> sums;       // (kSums * ExactSum::kChunks)
  };
  State state() const;
  // Replaces the sums. InvalidArgument for a state that no WeightedAuc of this size can have.
  Status SetState(const State& state);

 private:
  __extension__ typedef unsigned __int128 Fixed;  // in units of 2^-64
  static Fixed ToFixed(double x);
  static double ToDouble(Fixed x);

  Histogram<Fixed> weights_;
  std::array<ExactSum, kSums> sums_;  // of w |p - y|, w (p - y)^2, w p, w y, w log loss, w
  uint64_t size_ = 0;
};

}  // namespace pbx
