#include "metric/bucket_auc.h"

#include <algorithm>
#include <cmath>

namespace pbx {
namespace {

__extension__ typedef unsigned __int128 Wide;  // areas of 10^10 samples do not fit 64 bits

// PaddleBox's constants: a group of neighbouring buckets is closed as too wide or as large enough.
constexpr double kMaxSpan = 0.01;
constexpr double kRelativeErrorBound = 0.05;
constexpr double kClip = 1e-7;

// Twice the area under the curve, in units of one negative times one positive.
Wide DoubledArea(const std::vector<uint64_t>& negative, const std::vector<uint64_t>& positive) {
  Wide area = 0;
  uint64_t above = 0;  // positives in higher buckets
  for (size_t i = negative.size(); i-- > 0;) {
    area += static_cast<Wide>(negative[i]) * (2 * static_cast<Wide>(above) + positive[i]);
    above += positive[i];
  }
  return area;
}

double BucketError(const std::vector<uint64_t>& negative, const std::vector<uint64_t>& positive) {
  const double buckets = static_cast<double>(negative.size());
  double last_ctr = -1, shows = 0, predicted = 0, clicks = 0;
  double error_sum = 0, error_shows = 0;
  for (size_t i = 0; i < negative.size(); ++i) {
    const double ctr = static_cast<double>(i) / buckets;
    if (std::fabs(ctr - last_ctr) > kMaxSpan) {
      last_ctr = ctr;
      shows = predicted = clicks = 0;
    }
    const double show = static_cast<double>(negative[i] + positive[i]);
    if (show == 0) continue;
    shows += show;
    predicted += ctr * show;
    clicks += static_cast<double>(positive[i]);
    const double adjusted = predicted / shows;
    const double relative_error = std::sqrt((1 - adjusted) / (adjusted * shows));
    if (relative_error < kRelativeErrorBound) {  // false for adjusted == 0, where it is infinite
      error_sum += std::fabs(clicks / shows / adjusted - 1) * shows;
      error_shows += shows;
      last_ctr = -1;
    }
  }
  return error_shows > 0 ? error_sum / error_shows : 0;
}

}  // namespace

BucketAuc::BucketAuc(size_t buckets)
    : negative_(std::max<size_t>(buckets, 1)), positive_(std::max<size_t>(buckets, 1)) {}

Status BucketAuc::Add(const float* predictions, const float* labels, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    if (!(predictions[i] >= 0 && predictions[i] <= 1)) {
      return Error(Code::kInvalidArgument, "prediction %zu is %g, expected a number in [0, 1]", i,
                   static_cast<double>(predictions[i]));
    }
    if (!(labels[i] == 0 || labels[i] == 1)) {
      return Error(Code::kInvalidArgument, "label %zu is %g, expected 0 or 1", i,
                   static_cast<double>(labels[i]));
    }
  }
  const size_t last = negative_.size() - 1;
  for (size_t i = 0; i < n; ++i) {
    const double p = static_cast<double>(predictions[i]);
    const bool click = labels[i] == 1;
    const size_t bucket = static_cast<size_t>(p * static_cast<double>(negative_.size()));
    ++(click ? positive_ : negative_)[std::min(bucket, last)];
    const double error = p - (click ? 1.0 : 0.0);
    abs_error_ += std::fabs(error);
    squared_error_ += error * error;
    predicted_sum_ += p;
    const double clipped = std::min(std::max(p, kClip), 1 - kClip);
    log_loss_ -= std::log(click ? clipped : 1 - clipped);
  }
  return Status::Ok();
}

Status BucketAuc::Merge(const BucketAuc& other) {
  if (other.negative_.size() != negative_.size()) {
    return Error(Code::kInvalidArgument, "a metric of %zu buckets cannot take in one of %zu",
                 negative_.size(), other.negative_.size());
  }
  for (size_t i = 0; i < negative_.size(); ++i) {
    negative_[i] += other.negative_[i];
    positive_[i] += other.positive_[i];
  }
  abs_error_ += other.abs_error_;
  squared_error_ += other.squared_error_;
  predicted_sum_ += other.predicted_sum_;
  log_loss_ += other.log_loss_;
  return Status::Ok();
}

void BucketAuc::Reset() { *this = BucketAuc(negative_.size()); }

MetricValues BucketAuc::Compute() const {
  MetricValues values;
  uint64_t negatives = 0, positives = 0;
  for (size_t i = 0; i < negative_.size(); ++i) {
    negatives += negative_[i];
    positives += positive_[i];
  }
  values.size = negatives + positives;
  if (values.size == 0) return values;
  if (negatives > 0 && positives > 0) {
    const double pairs = static_cast<double>(negatives) * static_cast<double>(positives);
    values.auc = static_cast<double>(DoubledArea(negative_, positive_)) / (2 * pairs);
  }
  const double n = static_cast<double>(values.size);
  values.bucket_error = BucketError(negative_, positive_);
  values.mae = abs_error_ / n;
  values.rmse = std::sqrt(squared_error_ / n);
  values.actual_ctr = static_cast<double>(positives) / n;
  values.predicted_ctr = predicted_sum_ / n;
  values.copc = predicted_sum_ > 0 ? static_cast<double>(positives) / predicted_sum_ : 0;
  values.logloss = log_loss_ / n;
  return values;
}

}  // namespace pbx
