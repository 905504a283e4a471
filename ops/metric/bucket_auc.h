// BucketAuc: PaddleBox's metric set from a histogram of predictions (1,000,000 buckets). Sums are
// kept in double and integers, so the result depends on the order of Add only in the last bits of
// the sums, and not at all for AUC and bucket error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"

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

 private:
  std::vector<uint64_t> negative_, positive_;
  double abs_error_ = 0, squared_error_ = 0, predicted_sum_ = 0, log_loss_ = 0;
};

}  // namespace pbx
