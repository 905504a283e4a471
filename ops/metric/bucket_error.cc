#include "metric/bucket_error.h"

#include <cmath>

namespace pbx {
namespace {

// PaddleBox's constants: a group of neighbouring buckets ends when it is too wide, or large enough.
constexpr double kMaxSpan = 0.01;
constexpr double kRelativeErrorBound = 0.05;

}  // namespace

double BucketError(const double* negative, const double* positive, size_t n) {
  const double buckets = static_cast<double>(n);
  double last_ctr = -1, shows = 0, predicted = 0, clicks = 0;
  double error_sum = 0, error_shows = 0;
  for (size_t i = 0; i < n; ++i) {
    const double ctr = static_cast<double>(i) / buckets;
    if (std::fabs(ctr - last_ctr) > kMaxSpan) {
      last_ctr = ctr;
      shows = predicted = clicks = 0;
    }
    const double show = negative[i] + positive[i];
    if (show == 0) continue;
    shows += show;
    predicted += ctr * show;
    clicks += positive[i];
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
