#include "dense/matmul.h"

#include <cstring>

#include "base/flush_subnormals.h"
#include "base/host_device.h"

namespace pbx {
namespace {

typedef float Float16 __attribute__((vector_size(64)));
typedef float Float8 __attribute__((vector_size(32)));
typedef float Float4 __attribute__((vector_size(16)));

constexpr size_t kColumns = 16;  // of c, that are in registers together
constexpr size_t kRows = 6;      // likewise, with one row of b

// c(0..Rows, 0..N vectors) += a * b. The sizes are constants so that the sums stay in registers.
template <typename V, size_t N, size_t Rows>
PBX_INLINE void Tile(size_t inner, const MatrixView& a, const float* b, size_t b_stride, float* c,
                     size_t c_stride) {
  constexpr size_t kLanes = sizeof(V) / 4;  // floats in a V
  V sums[Rows][N];
  for (size_t r = 0; r < Rows; ++r)
    for (size_t n = 0; n < N; ++n)
      std::memcpy(&sums[r][n], c + r * c_stride + n * kLanes, sizeof(V));
  const float* from = a.data;
  for (size_t k = 0; k < inner; ++k, from += a.column_stride, b += b_stride) {
    V row[N];
    for (size_t n = 0; n < N; ++n) std::memcpy(&row[n], b + n * kLanes, sizeof(V));
    for (size_t r = 0; r < Rows; ++r)
      for (size_t n = 0; n < N; ++n) sums[r][n] += from[r * a.row_stride] * row[n];
  }
  for (size_t r = 0; r < Rows; ++r)
    for (size_t n = 0; n < N; ++n)
      std::memcpy(c + r * c_stride + n * kLanes, &sums[r][n], sizeof(V));
}

template <typename V, size_t N>
PBX_INLINE void Strip(size_t rows, size_t inner, MatrixView a, const float* b, size_t b_stride,
                      float* c, size_t c_stride) {
  size_t r = 0;
  for (; r + kRows <= rows; r += kRows, a.data += kRows * a.row_stride, c += kRows * c_stride)
    Tile<V, N, kRows>(inner, a, b, b_stride, c, c_stride);
  for (; r < rows; ++r, a.data += a.row_stride, c += c_stride)
    Tile<V, N, 1>(inner, a, b, b_stride, c, c_stride);
}

// V: the vector type of the path. A longer one than the processor's would go through memory.
template <typename V>
PBX_INLINE void Product(size_t rows, size_t inner, size_t columns, const MatrixView& a,
                        const float* b, size_t b_stride, float* c, size_t c_stride) {
  constexpr size_t kVectors = kColumns * sizeof(float) / sizeof(V);
  size_t j = 0;
  for (; j + kColumns <= columns; j += kColumns)
    Strip<V, kVectors>(rows, inner, a, b + j, b_stride, c + j, c_stride);
  for (; j + 4 <= columns; j += 4)
    Strip<Float4, 1>(rows, inner, a, b + j, b_stride, c + j, c_stride);
  for (; j < columns; ++j) Strip<float, 1>(rows, inner, a, b + j, b_stride, c + j, c_stride);
}

using Path = void (*)(size_t, size_t, size_t, const MatrixView&, const float*, size_t, float*,
                      size_t);

__attribute__((target("avx512f"))) void Avx512(size_t rows, size_t inner, size_t columns,
                                               const MatrixView& a, const float* b, size_t b_stride,
                                               float* c, size_t c_stride) {
  Product<Float16>(rows, inner, columns, a, b, b_stride, c, c_stride);
}

__attribute__((target("avx2"))) void Avx2(size_t rows, size_t inner, size_t columns,
                                          const MatrixView& a, const float* b, size_t b_stride,
                                          float* c, size_t c_stride) {
  Product<Float8>(rows, inner, columns, a, b, b_stride, c, c_stride);
}

void Plain(size_t rows, size_t inner, size_t columns, const MatrixView& a, const float* b,
           size_t b_stride, float* c, size_t c_stride) {
  Product<Float4>(rows, inner, columns, a, b, b_stride, c, c_stride);
}

Path FastestPath() {
  if (__builtin_cpu_supports("avx512f")) return Avx512;
  return __builtin_cpu_supports("avx2") ? Avx2 : Plain;
}

}  // namespace

void MatMulAdd(size_t rows, size_t inner, size_t columns, const MatrixView& a, const float* b,
               size_t b_stride, float* c, size_t c_stride) {
  const FlushSubnormals flush;
  static const Path path = FastestPath();
  path(rows, inner, columns, a, b, b_stride, c, c_stride);
}

void Transpose(size_t rows, size_t columns, const float* from, size_t from_stride, float* to) {
  for (size_t r = 0; r < rows; ++r)
    for (size_t c = 0; c < columns; ++c) to[c * rows + r] = from[r * from_stride + c];
}

}  // namespace pbx
