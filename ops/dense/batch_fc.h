// batch_fc: one fully connected layer for each of G groups, y_g = x_g w_g + bias_g.
//
// Letters: G = groups, N = instances, I = inputs and O = outputs of a group.
#pragma once

#include <cstddef>

#include "base/status.h"

namespace pbx {

// A matrix for each group: element (i, j) of group g is at g * group_stride + i * row_stride + j.
// The three forms of the operator differ only in these strides.
struct GroupStrides {
  size_t group = 0;
  size_t row = 0;
};

struct BatchFc {
  size_t groups = 0, instances = 0, inputs = 0, outputs = 0;
  GroupStrides x, w, y;  // (N, I), (I, O), (N, O) for each group; bias is (G, O)
};

void BatchFcForward(const BatchFc& fc, const float* x, const float* w, const float* bias, float* y);

// Writes all three gradients: dx like x, dw like w, dbias (G, O).
void BatchFcBackward(const BatchFc& fc, const float* x, const float* w, const float* dy, float* dx,
                     float* dw, float* dbias);

}  // namespace pbx
