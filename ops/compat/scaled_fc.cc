#include "compat/scaled_fc.h"

#include <algorithm>
#include <vector>

#include "dense/matmul.h"

namespace pbx {
namespace {

constexpr size_t kTerms = 64;
constexpr size_t kStrip = 48;  // rows of a whose sums stay in the cache

// c (rows, columns) = a (rows, inner) * b (inner, columns).
void Product(size_t rows, size_t inner, size_t columns, const MatrixView& a, const float* b,
             float* c) {
  std::vector<float> block(std::min(rows, kStrip) * columns);
  for (size_t first = 0; first < rows; first += kStrip) {
    const size_t n = std::min(kStrip, rows - first);
    float* to = c + first * columns;
    std::fill(to, to + n * columns, 0.0f);
    for (size_t begin = 0; begin < inner; begin += kTerms) {
      std::fill(block.begin(), block.end(), 0.0f);
      const float* from = a.data + first * a.row_stride + begin * a.column_stride;
      MatMulAdd(n, std::min(kTerms, inner - begin), columns, {from, a.row_stride, a.column_stride},
                b + begin * columns, columns, block.data(), columns);
      for (size_t i = 0; i < n * columns; ++i) to[i] += block[i];
    }
  }
}

}  // namespace

void ScaledFcForward(const ScaledFc& fc, const float* x, const float* w, const float* bias,
                     float* y) {
  Product(fc.instances, fc.inputs, fc.outputs, {x, fc.inputs, 1}, w, y);
  for (size_t n = 0; n < fc.instances; ++n, y += fc.outputs)
    for (size_t o = 0; o < fc.outputs; ++o) y[o] += bias[o];
}

void ScaledFcBackward(const ScaledFc& fc, const float* x, const float* w, const float* dy,
                      float* dx, float* dw, float* dbias) {
  std::vector<double> sums(fc.outputs);
  for (size_t n = 0; n < fc.instances; ++n)
    for (size_t o = 0; o < fc.outputs; ++o) sums[o] += dy[n * fc.outputs + o];
  for (size_t o = 0; o < fc.outputs; ++o) dbias[o] = static_cast<float>(sums[o]);

  Product(fc.inputs, fc.instances, fc.outputs, {x, 1, fc.inputs}, dy, dw);

  std::vector<float> transposed(fc.inputs * fc.outputs);
  Transpose(fc.inputs, fc.outputs, w, fc.outputs, transposed.data());
  Product(fc.instances, fc.outputs, fc.inputs, {dy, fc.outputs, 1}, transposed.data(), dx);
}

}  // namespace pbx
