#include "metric/bucket_error.h"

#include <algorithm>
#include <cmath>

namespace pbx {
namespace {

// PaddleBox's constants: a group of neighbouring buckets ends when it is too wide, or large enough.
constexpr double kMaxSpan = 0.01;
constexpr double kRelativeErrorBound = 0.05;

// A bucket farther than kMaxSpan from `last`, the begin of a group, begins the next one, even if it
// is empty. Returns the begin of the group of bucket `index` of n, if no bucket from `next` on has
// begun one yet.
double GroupBegin(double last, size_t next, size_t index, size_t n) {
  const double buckets = static_cast<double>(n);
  const auto begins = [&](size_t i) {
    return std::fabs(static_cast<double>(i) / buckets - last) > kMaxSpan;
  };
  while (begins(index)) {
    size_t first = next;
    if (!begins(first)) {  // the first that does is near last + kMaxSpan
      first = std::max(next, static_cast<size_t>((last + kMaxSpan) * buckets));
      while (first > next && begins(first - 1)) --first;
      while (!begins(first)) ++first;
    }
    last = static_cast<double>(first) / buckets;
    next = first;
  }
  return last;
}

}  // namespace

double BucketError(const std::vector<Bucket<double>>& buckets, size_t n) {
  double last_ctr = -1, shows = 0, predicted = 0, clicks = 0;
  double error_sum = 0, error_shows = 0;
  size_t next = 0;
  for (const Bucket<double>& bucket : buckets) {
    const double ctr = static_cast<double>(bucket.index) / static_cast<double>(n);
    const double begin = GroupBegin(last_ctr, next, bucket.index, n);
    next = bucket.index + 1;
    if (begin != last_ctr) {
      last_ctr = begin;
      shows = predicted = clicks = 0;
    }
    const double show = bucket.negative + bucket.positive;
    shows += show;
    predicted += ctr * show;
    clicks += bucket.positive;
    const double adjusted = predicted / shows;
    const double relative_error = std::sqrt((1 - adjusted) / (adjusted * shows));
    if (relative_error < kRelativeErrorBound) {  // false if adjusted == 0: infinite error
      error_sum += std::fabs(clicks / shows / adjusted - 1) * shows;
      error_shows += shows;
      last_ctr = -1;
    }
  }
  return error_shows > 0 ? error_sum / error_shows : 0;
}

}  // namespace pbx
