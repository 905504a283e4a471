#include "metric/weighted_auc.h"

#include <algorithm>
#include <cmath>

#include "metric/bucket_error.h"

namespace pbx {
namespace {

constexpr double kClip = 1e-7;
constexpr int kFractionBits = 64;

enum Sum : size_t { kAbsolute, kSquared, kPredicted, kActual, kLogLoss, kWeight };

bool IsWithin(float x, double high) { return x >= 0 && static_cast<double>(x) <= high; }

// The share of (positive, negative) pairs whose positive is in the higher bucket; ties count half.
double Area(const std::vector<Bucket<double>>& buckets) {
  double area = 0, above = 0, negatives = 0;
  for (auto one = buckets.rbegin(); one != buckets.rend(); ++one) {
    area += one->negative * (2 * above + one->positive);
    above += one->positive;
    negatives += one->negative;
  }
  return above > 0 && negatives > 0 ? area / (2 * above * negatives) : -0.5;
}

}  // namespace

WeightedAuc::WeightedAuc(size_t buckets) : weights_(buckets) {}

WeightedAuc::Fixed WeightedAuc::ToFixed(double x) {
  return static_cast<Fixed>(std::ldexp(x, kFractionBits));
}

double WeightedAuc::ToDouble(Fixed x) { return std::ldexp(static_cast<double>(x), -kFractionBits); }

Status WeightedAuc::Add(const float* predictions, const float* targets, const float* weights,
                        size_t n) {
  for (size_t i = 0; i < n; ++i) {
    if (IsWithin(predictions[i], 1) && IsWithin(targets[i], 1) && IsWithin(weights[i], kMaxWeight))
      continue;
    return Error(
        Code::kInvalidArgument,
        "prediction %zu is %g, its label %g and its weight %g, expected a prediction and a "
        "label in [0, 1] and a weight in [0, 2^32]",
        i, static_cast<double>(predictions[i]), static_cast<double>(targets[i]),
        static_cast<double>(weights[i]));
  }
  const size_t last = weights_.size() - 1;
  for (size_t i = 0; i < n; ++i) {
    const double p = static_cast<double>(predictions[i]), y = static_cast<double>(targets[i]);
    const double w = static_cast<double>(weights[i]);
    const size_t bucket = static_cast<size_t>(p * static_cast<double>(weights_.size()));
    const Fixed positive = ToFixed(w * y);
    weights_.Add(std::min(bucket, last), ToFixed(w) - positive, positive);
    const double clipped = std::min(std::max(p, kClip), 1 - kClip);
    const double error = p - y;
    sums_[kAbsolute].Add(w * std::fabs(error));
    sums_[kSquared].Add(w * error * error);
    sums_[kPredicted].Add(w * p);
    sums_[kActual].Add(w * y);
    sums_[kLogLoss].Add(-w * (y * std::log(clipped) + (1 - y) * std::log(1 - clipped)));
    sums_[kWeight].Add(w);
  }
  size_ += n;
  return Status::Ok();
}

Status WeightedAuc::Merge(const WeightedAuc& other) {
  if (other.weights_.size() != weights_.size()) {
    return Error(Code::kInvalidArgument, "cannot merge a metric of %zu buckets with one of %zu",
                 weights_.size(), other.weights_.size());
  }
  weights_.Merge(other.weights_);
  for (size_t i = 0; i < kSums; ++i) sums_[i].Merge(other.sums_[i]);
  size_ += other.size_;
  return Status::Ok();
}

WeightedValues WeightedAuc::Compute() const {
  WeightedValues values;
  values.size = size_;
  values.weight = sums_[kWeight].value();
  if (!(values.weight > 0)) return values;
  std::vector<Bucket<double>> buckets;
  for (const auto& [index, negative, positive] : weights_.buckets()) {
    buckets.push_back({index, ToDouble(negative), ToDouble(positive)});
  }
  values.auc = Area(buckets);
  values.bucket_error = BucketError(buckets, weights_.size());
  values.mae = sums_[kAbsolute].value() / values.weight;
  values.rmse = std::sqrt(sums_[kSquared].value() / values.weight);
  values.actual_ctr = sums_[kActual].value() / values.weight;
  const double predicted = sums_[kPredicted].value();
  values.predicted_ctr = predicted / values.weight;
  values.copc = predicted > 0 ? sums_[kActual].value() / predicted : 0;
  values.logloss = sums_[kLogLoss].value() / values.weight;
  return values;
}

WeightedAuc::State WeightedAuc::state() const {
  State state;
  state.buckets = weights_.size();
  state.size = size_;
  for (const Bucket<Fixed>& one : weights_.buckets()) {
    state.bucket.push_back(one.index);
    for (const auto& [halves, sum] :
         {std::pair(&state.negative, one.negative), std::pair(&state.positive, one.positive)}) {
      halves->push_back(static_cast<uint64_t>(sum));
      halves->push_back(static_cast<uint64_t>(sum >> 64));
    }
  }
  for (const ExactSum& sum : sums_) {
    const auto chunks = sum.state();
    state.sums.insert(state.sums.end(), chunks.begin(), chunks.end());
  }
  return state;
}

Status WeightedAuc::SetState(const State& state) {
  const size_t n = state.bucket.size();
  bool fits = state.buckets == weights_.size() && state.negative.size() == 2 * n &&
              state.positive.size() == 2 * n && state.sums.size() == kSums * ExactSum::kChunks;
  for (size_t i = 0; fits && i < n; ++i) fits = state.bucket[i] < weights_.size();
  if (!fits) {
    return Error(Code::kInvalidArgument,
                 "the state has %zu buckets, %zu and %zu halves for %zu of them, and %zu sums, "
                 "expected %zu buckets, 2 halves for each of those that it lists, and %zu sums",
                 static_cast<size_t>(state.buckets), state.negative.size(), state.positive.size(),
                 n, state.sums.size(), weights_.size(), kSums * ExactSum::kChunks);
  }
  *this = WeightedAuc(weights_.size());
  const auto joined = [](const std::vector<uint64_t>& halves, size_t i) {
    return static_cast<Fixed>(halves[2 * i + 1]) << 64 | halves[2 * i];
  };
  for (size_t i = 0; i < n; ++i) {
    weights_.Add(state.bucket[i], joined(state.negative, i), joined(state.positive, i));
  }
  for (size_t i = 0; i < kSums; ++i) sums_[i].SetState(state.sums.data() + i * ExactSum::kChunks);
  size_ = state.size;
  return Status::Ok();
}

}  // namespace pbx
