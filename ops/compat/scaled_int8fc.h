// scaled_int8fc: a fully connected layer that multiplies numbers of 8 bits. Its gradients are those
// of the layer without quantisation, which ScaledFcBackward (compat/scaled_fc.h) computes.
//
// Letters: N = instances, I = inputs, O = outputs.
#pragma once

#include <cstddef>

#include "base/status.h"

namespace pbx {

// How one operand becomes integers.
struct Int8Scale {
  float expand = 1.0f;  // multiplies every value first
  float clip = 2.0f;    // then values are clipped to [-clip, clip]
};

struct ScaledInt8Fc {
  size_t instances = 0, inputs = 0, outputs = 0;
  Int8Scale x, w;
  float range = 240.0f;  // number of steps of 2 * clip / range from -clip to clip
};

// InvalidArgument unless all factors are positive and finite, and I is at most 131071, so that no
// sum of int32 overflows.
Status CheckScaledInt8Fc(const ScaledInt8Fc& fc);

// to[i] = the integer of from[i], as a float:
//
//     e = from * expand
//     c = clip if e - clip > 1e-6; -clip if e + clip < 1e-6; otherwise e
//     to = trunc(c / (2 * clip / range) + 0.5), at least -128 and at most 127; 0 for NaN
//
// All steps are float32, but for the comparisons and the addition of 0.5, which are double. trunc
// rounds towards zero: 1.5 becomes 2, and -1.5 becomes -1.
void QuantizeInt8(size_t n, const float* from, const Int8Scale& scale, float range, float* to);

// y (N, O) = (sum over i of q(x) * q(w)) / (x.expand * w.expand) * (2 * x.clip / range) + bias (O),
// with q = QuantizeInt8. The sum is exact; all other steps are float32. x (N, I), w (I, O).
// REQUIRES: CheckScaledInt8Fc.
void ScaledInt8FcForward(const ScaledInt8Fc& fc, const float* x, const float* w, const float* bias,
                         float* y);

}  // namespace pbx
