#include "metric/bucket_auc.h"

#include <algorithm>
#include <cmath>

#include "metric/bucket_error.h"

namespace pbx {
namespace {

__extension__ typedef unsigned __int128 Wide;  // areas of 10^10 samples do not fit 64 bits

constexpr double kClip = 1e-7;

// Twice the area under the ROC curve, in units of one negative times one positive.
Wide DoubledArea(const std::vector<Bucket<uint64_t>>& buckets) {
  Wide area = 0;
  uint64_t above = 0;  // positives in higher buckets
  for (auto one = buckets.rbegin(); one != buckets.rend(); ++one) {
    area += static_cast<Wide>(one->negative) * (2 * static_cast<Wide>(above) + one->positive);
    above += one->positive;
  }
  return area;
}

}  // namespace

BucketAuc::BucketAuc(size_t buckets) : counts_(buckets) {}

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
  const size_t last = counts_.size() - 1;
  for (size_t i = 0; i < n; ++i) {
    const double p = static_cast<double>(predictions[i]);
    const bool click = labels[i] == 1;
    const size_t bucket = static_cast<size_t>(p * static_cast<double>(counts_.size()));
    counts_.Add(std::min(bucket, last), click ? 0 : 1, click ? 1 : 0);
    errors_.AddOne(p, click ? 1.0 : 0.0);
    const double clipped = std::min(std::max(p, kClip), 1 - kClip);
    log_loss_.Add(-std::log(click ? clipped : 1 - clipped));
  }
  return Status::Ok();
}

Status BucketAuc::Merge(const BucketAuc& other) {
  if (other.counts_.size() != counts_.size()) {
    return Error(Code::kInvalidArgument, "cannot merge a metric of %zu buckets with one of %zu",
                 counts_.size(), other.counts_.size());
  }
  counts_.Merge(other.counts_);
  errors_.Merge(other.errors_);
  log_loss_.Merge(other.log_loss_);
  return Status::Ok();
}

void BucketAuc::Reset() { *this = BucketAuc(counts_.size()); }

MetricValues BucketAuc::Compute() const {
  MetricValues values;
  const std::vector<Bucket<uint64_t>> buckets = counts_.buckets();
  std::vector<Bucket<double>> doubles;
  uint64_t negatives = 0, positives = 0;
  for (const auto& [index, negative, positive] : buckets) {
    negatives += negative;
    positives += positive;
    doubles.push_back({index, static_cast<double>(negative), static_cast<double>(positive)});
  }
  values.size = negatives + positives;
  if (values.size == 0) return values;
  if (negatives > 0 && positives > 0) {
    const double pairs = static_cast<double>(negatives) * static_cast<double>(positives);
    values.auc = static_cast<double>(DoubledArea(buckets)) / (2 * pairs);
  }
  const double n = static_cast<double>(values.size);
  values.bucket_error = BucketError(doubles, counts_.size());
  values.mae = errors_.mae();
  values.rmse = errors_.rmse();
  values.actual_ctr = static_cast<double>(positives) / n;
  values.predicted_ctr = errors_.predicted();
  const double predicted = errors_.predicted_sum();
  values.copc = predicted > 0 ? static_cast<double>(positives) / predicted : 0;
  values.logloss = log_loss_.value() / n;
  return values;
}

BucketAuc::State BucketAuc::state() const {
  State state;
  state.buckets = counts_.size();
  for (const auto& [index, negative, positive] : counts_.buckets()) {
    state.bucket.push_back(index);
    state.negative.push_back(negative);
    state.positive.push_back(positive);
  }
  state.sums = errors_.state();
  const auto log_loss = log_loss_.state();
  state.sums.insert(state.sums.end(), log_loss.begin(), log_loss.end());
  return state;
}

Status BucketAuc::SetState(const State& state) {
  const size_t n = state.bucket.size();
  bool fits = state.buckets == counts_.size() && state.negative.size() == n &&
              state.positive.size() == n &&
              state.sums.size() == (ErrorSums::kSums + 1) * ExactSum::kChunks;
  for (size_t i = 0; fits && i < n; ++i) fits = state.bucket[i] < counts_.size();
  if (!fits) {
    return Error(Code::kInvalidArgument,
                 "the state has %zu buckets and %zu sums, expected %zu and %zu",
                 static_cast<size_t>(state.buckets), state.sums.size(), counts_.size(),
                 (ErrorSums::kSums + 1) * ExactSum::kChunks);
  }
  Reset();
  uint64_t size = 0;
  for (size_t i = 0; i < n; ++i) {
    counts_.Add(state.bucket[i], state.negative[i], state.positive[i]);
    size += state.negative[i] + state.positive[i];
  }
  errors_.SetState(size, state.sums.data());
  log_loss_.SetState(state.sums.data() + ErrorSums::kSums * ExactSum::kChunks);
  return Status::Ok();
}

// ---- Any number as target

void ErrorSums::AddOne(double p, double y) {
  const double error = p - y;
  sums_[0].Add(std::fabs(error));
  sums_[1].Add(error * error);
  sums_[2].Add(p);
  sums_[3].Add(y);
  ++size_;
}

Status ErrorSums::Add(const float* predictions, const double* targets, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    if (std::isfinite(predictions[i]) && std::isfinite(targets[i])) continue;
    return Error(Code::kInvalidArgument,
                 "prediction %zu is %g and its target %g, expected finite numbers", i,
                 static_cast<double>(predictions[i]), targets[i]);
  }
  for (size_t i = 0; i < n; ++i) { AddOne(static_cast<double>(predictions[i]), targets[i]); }
  return Status::Ok();
}

void ErrorSums::Merge(const ErrorSums& other) {
  for (size_t i = 0; i < kSums; ++i) sums_[i].Merge(other.sums_[i]);
  size_ += other.size_;
}

double ErrorSums::rmse() const { return std::sqrt(Mean(1)); }

std::vector<int64_t> ErrorSums::state() const {
  std::vector<int64_t> chunks;
  for (const ExactSum& sum : sums_) {
    const auto of_sum = sum.state();
    chunks.insert(chunks.end(), of_sum.begin(), of_sum.end());
  }
  return chunks;
}

void ErrorSums::SetState(uint64_t size, const int64_t* chunks) {
  for (size_t i = 0; i < kSums; ++i) sums_[i].SetState(chunks + i * ExactSum::kChunks);
  size_ = size;
}

}  // namespace pbx
