#include "dense/batch_fc.h"

#include <cstring>
#include <vector>

#include "dense/matmul.h"

namespace pbx {

void BatchFcForward(const BatchFc& fc, const float* x, const float* w, const float* bias,
                    float* y) {
  for (size_t g = 0; g < fc.groups; ++g) {
    float* to = y + g * fc.y.group;
    for (size_t n = 0; n < fc.instances; ++n)
      std::memcpy(to + n * fc.y.row, bias + g * fc.outputs, fc.outputs * sizeof(float));
    MatMulAdd(fc.instances, fc.inputs, fc.outputs, {x + g * fc.x.group, fc.x.row, 1},
              w + g * fc.w.group, fc.w.row, to, fc.y.row);
  }
}

void BatchFcBackward(const BatchFc& fc, const float* x, const float* w, const float* dy, float* dx,
                     float* dw, float* dbias) {
  const size_t row_bytes_x = fc.inputs * sizeof(float), row_bytes_w = fc.outputs * sizeof(float);
  std::vector<float> transposed(fc.inputs * fc.outputs);
  for (size_t g = 0; g < fc.groups; ++g) {
    const float* gradient = dy + g * fc.y.group;
    float* bias = dbias + g * fc.outputs;
    std::memset(bias, 0, row_bytes_w);
    for (size_t n = 0; n < fc.instances; ++n)
      for (size_t o = 0; o < fc.outputs; ++o) bias[o] += gradient[n * fc.y.row + o];

    float* weights = dw + g * fc.w.group;
    for (size_t i = 0; i < fc.inputs; ++i) std::memset(weights + i * fc.w.row, 0, row_bytes_w);
    MatMulAdd(fc.inputs, fc.instances, fc.outputs, {x + g * fc.x.group, 1, fc.x.row}, gradient,
              fc.y.row, weights, fc.w.row);

    float* inputs = dx + g * fc.x.group;
    for (size_t n = 0; n < fc.instances; ++n) std::memset(inputs + n * fc.x.row, 0, row_bytes_x);
    Transpose(fc.inputs, fc.outputs, w + g * fc.w.group, fc.w.row, transposed.data());
    MatMulAdd(fc.instances, fc.outputs, fc.inputs, {gradient, fc.y.row, 1}, transposed.data(),
              fc.inputs, inputs, fc.x.row);
  }
}

}  // namespace pbx
