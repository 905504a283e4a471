// data_norm: normalises columns by running sums over all data so far, not over the batch.
//
// Letters: N = instances, C = columns.
#pragma once

#include <cstddef>

namespace pbx {

struct DataNorm {
  size_t instances = 0, columns = 0;
  // Width of a slot whose first column is its show count. A slot whose show count is 0 (within
  // 1e-7) gives zeros and does not count. 0: no such slots. Divides C.
  size_t slot_dim = 0;
  float epsilon = 1e-5f;           // added to the mean square of a batch
  float decay = 0.9999999f;        // of the sums, per step
  const float* scale_w = nullptr;  // (C), and bias (C): applied last; null: ones and zeros
  const float* bias = nullptr;
};

// The running sums, each (C): sums over instances, weighted by their age.
struct DataNormSums {
  const float* size = nullptr;
  const float* sum = nullptr;
  const float* square_sum = nullptr;  // of squared distances from the mean at that time
};

// y (N, C) = (x - means) * scales * scale_w + bias, with means = sum / size and
// scales = sqrt(size / square_sum).
void DataNormForward(const DataNorm& norm, const DataNormSums& sums, const float* x, float* y,
                     float* means, float* scales);

// dx (N, C); dscale_w and dbias (C).
void DataNormBackward(const DataNorm& norm, const float* x, const float* means, const float* scales,
                      const float* dy, float* dx, float* dscale_w, float* dbias);

// to = sums * decay + the terms of the batch. The terms are 1, the mean of x, and the mean of (x -
// means)^2 + epsilon. A column without an instance that counts gets no terms. scale_w and bias are
// not used. `to` may be the same arrays as sums.
void DataNormUpdate(const DataNorm& norm, const DataNormSums& sums, const float* x, float* size,
                    float* sum, float* square_sum);

}  // namespace pbx
