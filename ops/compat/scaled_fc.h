// scaled_fc: one fully connected layer, y = x w + bias.
//
// Letters: N = instances, I = inputs, O = outputs.
//
// Products are summed in blocks of 64 terms, then the blocks are summed. So the rounding error of a
// long sum grows with the number of blocks, not with the number of terms.
#pragma once

#include <cstddef>

namespace pbx {

struct ScaledFc {
  size_t instances = 0, inputs = 0, outputs = 0;
};

// x (N, I), w (I, O), bias (O), y (N, O).
void ScaledFcForward(const ScaledFc& fc, const float* x, const float* w, const float* bias,
                     float* y);

// Writes all three gradients: dx like x, dw like w, dbias (O).
void ScaledFcBackward(const ScaledFc& fc, const float* x, const float* w, const float* dy,
                      float* dx, float* dw, float* dbias);

}  // namespace pbx
