// MatMulAdd: the matrix product of all operators but box_mlp, whose products are oneDNN's.
#pragma once

#include <cstddef>

namespace pbx {

// Element (i, k) of the matrix is data[i * row_stride + k * column_stride]. A transposed view swaps
// the strides.
struct MatrixView {
  const float* data = nullptr;
  size_t row_stride = 0;
  size_t column_stride = 1;
};

// c(i, j) += sum over k of a(i, k) * b(k, j), for a (rows, inner), b (inner, columns) and c (rows,
// columns). The columns of b and c are contiguous, and c overlaps neither a nor b.
//
// k ascends and there is no fused multiply-add, so every vector path gives the same bits. The path
// is chosen at run time. Subnormal numbers count as 0.
void MatMulAdd(size_t rows, size_t inner, size_t columns, const MatrixView& a, const float* b,
               size_t b_stride, float* c, size_t c_stride);

// to (columns, rows) = the transpose of from (rows, columns), whose rows are from_stride apart.
// MatMulAdd needs it for a transposed b.
void Transpose(size_t rows, size_t columns, const float* from, size_t from_stride, float* to);

}  // namespace pbx
