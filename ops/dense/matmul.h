// MatMulAdd: the one dense product that rank_attention and batch_fc are made of.
#pragma once

#include <cstddef>

namespace pbx {

// Where element (i, k) of a matrix lies: data[i * row_stride + k * column_stride]. A transposed
// view swaps the two strides.
struct MatrixView {
  const float* data = nullptr;
  size_t row_stride = 0;
  size_t column_stride = 1;
};

// c(i, j) += sum over k of a(i, k) * b(k, j), for a (rows, inner), b (inner, columns) and c (rows,
// columns); b and c have columns that lie side by side, c overlaps neither.
//
// k ascends and there is no fused multiply-add: the same bits on every vector path, which is chosen
// at run time.
void MatMulAdd(size_t rows, size_t inner, size_t columns, const MatrixView& a, const float* b,
               size_t b_stride, float* c, size_t c_stride);

// to (columns, rows) = transposed from (rows, columns), whose rows lie from_stride apart. What
// MatMulAdd needs of a transposed b.
void Transpose(size_t rows, size_t columns, const float* from, size_t from_stride, float* to);

}  // namespace pbx
