#include "dense/matmul.h"

#include <cstring>

// The runtime of the thread sanitizer is not initialised yet when the loader chooses a clone.
#if defined(__SANITIZE_THREAD__)
#define PBX_VECTOR_CLONES
#else
#define PBX_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#endif

namespace pbx {
namespace {

typedef float Float16 __attribute__((vector_size(64)));
typedef float Float4 __attribute__((vector_size(16)));

constexpr size_t kRows = 6;  // rows of c that are in registers together with one row of b

// c(0..rows, 0..lanes of V) += a * b. Rows is a constant so that the sums stay in registers.
template <typename V, size_t Rows>
__attribute__((always_inline)) inline void Tile(size_t inner, const MatrixView& a, const float* b,
                                                size_t b_stride, float* c, size_t c_stride) {
  V sums[Rows];
  for (size_t r = 0; r < Rows; ++r) std::memcpy(&sums[r], c + r * c_stride, sizeof(V));
  const float* from = a.data;
  for (size_t k = 0; k < inner; ++k, from += a.column_stride, b += b_stride) {
    V row;
    std::memcpy(&row, b, sizeof(V));
    for (size_t r = 0; r < Rows; ++r) sums[r] += from[r * a.row_stride] * row;
  }
  for (size_t r = 0; r < Rows; ++r) std::memcpy(c + r * c_stride, &sums[r], sizeof(V));
}

template <typename V>
__attribute__((always_inline)) inline void Strip(size_t rows, size_t inner, MatrixView a,
                                                 const float* b, size_t b_stride, float* c,
                                                 size_t c_stride) {
  size_t r = 0;
  for (; r + kRows <= rows; r += kRows, a.data += kRows * a.row_stride, c += kRows * c_stride)
    Tile<V, kRows>(inner, a, b, b_stride, c, c_stride);
  for (; r < rows; ++r, a.data += a.row_stride, c += c_stride)
    Tile<V, 1>(inner, a, b, b_stride, c, c_stride);
}

}  // namespace

PBX_VECTOR_CLONES
void MatMulAdd(size_t rows, size_t inner, size_t columns, const MatrixView& a, const float* b,
               size_t b_stride, float* c, size_t c_stride) {
  size_t j = 0;
  for (; j + 16 <= columns; j += 16)
    Strip<Float16>(rows, inner, a, b + j, b_stride, c + j, c_stride);
  for (; j + 4 <= columns; j += 4) Strip<Float4>(rows, inner, a, b + j, b_stride, c + j, c_stride);
  for (; j < columns; ++j) Strip<float>(rows, inner, a, b + j, b_stride, c + j, c_stride);
}

void Transpose(size_t rows, size_t columns, const float* from, size_t from_stride, float* to) {
  for (size_t r = 0; r < rows; ++r)
    for (size_t c = 0; c < columns; ++c) to[c * rows + r] = from[r * from_stride + c];
}

}  // namespace pbx
