#include "dense/matmul.h"

#include <cstring>

#include "base/hash.h"
#include "check.h"

using namespace pbx;

namespace {

std::vector<float> Random(size_t n, uint64_t seed) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i)
    values[i] = static_cast<float>(Mix(seed * 1000003 + i) >> 40) / 8388608.0f - 1.0f;
  return values;
}

// The promise of the header, term by term: k ascends and every step rounds.
void Plain(size_t rows, size_t inner, size_t columns, const MatrixView& a, const float* b,
           size_t b_stride, float* c, size_t c_stride) {
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < columns; ++j) {
      volatile float sum = c[i * c_stride + j];
      for (size_t k = 0; k < inner; ++k) {
        volatile float term = a.data[i * a.row_stride + k * a.column_stride] * b[k * b_stride + j];
        sum = sum + term;
      }
      c[i * c_stride + j] = sum;
    }
  }
}

}  // namespace

TEST(product_worked_by_hand_is_added) {
  const float a[] = {1, 2, 3, 4}, b[] = {5, 6, 7, 8};
  float c[] = {100, 0, 0, 0};
  MatMulAdd(2, 2, 2, {a, 2, 1}, b, 2, c, 2);
  CHECK_EQ(c[0], 119.0f);
  CHECK_EQ(c[1], 22.0f);
  CHECK_EQ(c[2], 43.0f);
  CHECK_EQ(c[3], 50.0f);
}

TEST(swapped_strides_are_the_transposed_matrix) {
  const float a[] = {1, 2, 3, 4}, b[] = {5, 6, 7, 8};
  float c[4] = {};
  MatMulAdd(2, 2, 2, {a, 1, 2}, b, 2, c, 2);
  CHECK_EQ(c[0], 26.0f);
  CHECK_EQ(c[3], 44.0f);
}

// Every mix of tile widths and row remainders; columns past the last stay as they were.
TEST(bits_are_those_of_the_plain_loop_for_every_shape) {
  for (size_t rows : {1, 5, 6, 13}) {
    for (size_t columns : {1, 3, 4, 16, 23, 37}) {
      for (size_t inner : {0, 1, 9}) {
        const size_t stride = columns + 2;
        const std::vector<float> a = Random(rows * inner + 1, 1), b = Random(inner * stride + 1, 2);
        std::vector<float> fast = Random(rows * stride, 3), plain = fast;
        for (const MatrixView view : {MatrixView{a.data(), inner, 1}, {a.data(), 1, rows}}) {
          MatMulAdd(rows, inner, columns, view, b.data(), stride, fast.data(), stride);
          Plain(rows, inner, columns, view, b.data(), stride, plain.data(), stride);
          CHECK_EQ(std::memcmp(fast.data(), plain.data(), fast.size() * sizeof(float)), 0);
        }
      }
    }
  }
}

TEST(transpose_reads_strided_rows) {
  const float from[] = {1, 2, 9, 3, 4, 9};
  float to[4];
  Transpose(2, 2, from, 3, to);
  CHECK_EQ(to[0], 1.0f);
  CHECK_EQ(to[1], 3.0f);
  CHECK_EQ(to[2], 2.0f);
  CHECK_EQ(to[3], 4.0f);
}
