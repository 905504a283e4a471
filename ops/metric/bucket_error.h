// PaddleBox's calibration error of a histogram of predictions.
#pragma once

#include <cstddef>
#include <vector>

#include "metric/histogram.h"

namespace pbx {

// buckets: those of n that are not empty, ascending, with samples or sums of weights. Bucket i
// holds predictions of about i / n. Neighbouring buckets are joined over a range of at most 0.01,
// until the relative error of their mean prediction is below 0.05. The value is the mean of
// abs(rate of positives / mean prediction - 1) over these groups, weighted by samples.
double BucketError(const std::vector<Bucket<double>>& buckets, size_t n);

}  // namespace pbx
