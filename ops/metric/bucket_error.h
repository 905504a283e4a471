// PaddleBox's calibration error of a histogram of predictions.
#pragma once

#include <cstddef>

namespace pbx {

// negative, positive: (n) samples, or sums of weights, of each bucket. Bucket i holds predictions of
// about i / n. Neighbouring buckets are joined over a range of at most 0.01, until the relative
// error of their mean prediction is below 0.05. The value is the mean of abs(rate of positives /
// mean prediction - 1) over these groups, weighted by samples.
double BucketError(const double* negative, const double* positive, size_t n);

}  // namespace pbx
