#include "base/bfloat16.h"
#include "gpu/products_by_cublas.h"
#include "gpu/walk.h"

namespace pbx::gpu {
namespace {

constexpr int kStrip = 8;  // columns of a thread

// Without cuBLAS: each thread computes a strip of a row, adding up in order.
template <typename T>
struct Strips {
  Product of;
  const T* x;
  const T* y;
  float* out;
  int64_t strips;  // of a row
  PBX_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t strip = i % strips, row = i / strips % of.rows, batch = i / strips / of.rows;
    const int64_t first = strip * kStrip;
    const int count = static_cast<int>(of.columns - first < kStrip ? of.columns - first : kStrip);
    const T* const left = x + batch * of.x_batch + row * of.x_row;
    const T* const right = y + batch * of.y_batch + first * of.y_column;
    float sums[kStrip] = {};
    for (int64_t k = 0; k < of.summed; ++k) {
      const float value = ToFloat(left[k * of.x_column]);
      const T* const line = right + k * of.y_row;
      if (count == kStrip && of.y_column == 1) {
        for (int j = 0; j < kStrip; ++j) sums[j] += value * ToFloat(line[j]);
      } else {
        for (int j = 0; j < count; ++j) sums[j] += value * ToFloat(line[j * of.y_column]);
      }
    }
    float* const to = out + (batch * of.rows + row) * of.columns + first;
    for (int j = 0; j < count; ++j) to[j] = sums[j];
  }
};

// The strides of a product, from the arguments of cuBLAS. So the tests without a GPU check them.
Product AsCublasReads(Product product, const Gemm& gemm) {
  product.y_row = gemm.y.transposed ? 1 : gemm.y.leading;
  product.y_column = gemm.y.transposed ? gemm.y.leading : 1;
  product.x_row = gemm.x.transposed ? 1 : gemm.x.leading;
  product.x_column = gemm.x.transposed ? gemm.x.leading : 1;
  return product;
}

// out (rows, columns) = relu(out + bias), in place.
struct Activated {
  const float* bias;
  bool relu;
  int64_t columns;
  float* out;
  PBX_HOST_DEVICE void operator()(int64_t i) const {
    const float value = bias == nullptr ? out[i] : out[i] + bias[Column(i)];
    out[i] = relu && value < 0 ? 0.0f : value;  // NaN stays
  }
  // A division of 64 bits takes longer than the rest.
  PBX_HOST_DEVICE int64_t Column(int64_t i) const {
    if (i > UINT32_MAX) return i % columns;
    return static_cast<uint32_t>(i) % static_cast<uint32_t>(columns);
  }
};

struct Contracted {
  Walk<2> kept, summed;
  int64_t summed_count;
  const float* x;
  const float* y;
  float* out;
  PBX_HOST_DEVICE void operator()(int64_t i) const {
    int64_t at[2], inner[2];
    kept.At(i, at);
    float sum = 0;
    for (int64_t s = 0; s < summed_count; ++s) {
      summed.At(s, inner);
      sum += x[at[0] + inner[0]] * (y == nullptr ? 1.0f : y[at[1] + inner[1]]);
    }
    out[i] = sum;
  }
};

Sizes Part(const Sizes& of, size_t first, size_t end) {
  return {of.begin() + static_cast<int64_t>(first), of.begin() + static_cast<int64_t>(end)};
}

template <typename T>
Status MultiplyStrips(const Product& of, const void* x, const void* y, float* out, Stream stream) {
  const int64_t strips = (of.columns + kStrip - 1) / kStrip;
  const Strips<T> all{of, static_cast<const T*>(x), static_cast<const T*>(y), out, strips};
  return LaunchForAll("multiply", of.batch * of.rows * strips, all, stream);
}

}  // namespace

Status Multiply(const Product& product, const void* x, const void* y, float* out, Stream stream) {
  if (product.batch * product.rows * product.columns == 0) return Status::Ok();
  Gemm gemm;
  PBX_RETURN_IF_ERROR(GemmOf(product, &gemm));
  if (HasCublas()) return MultiplyByCublas(product, gemm, x, y, out, stream);
  const auto multiply = product.bfloat16 ? MultiplyStrips<uint16_t> : MultiplyStrips<float>;
  return multiply(AsCublasReads(product, gemm), x, y, out, stream);
}

Status MultiplyAndActivate(const Product& product, const void* x, const void* y, const float* bias,
                           bool relu, float* out, Stream stream) {
  if (bias == nullptr && !relu) return Multiply(product, x, y, out, stream);
  const int64_t n = product.batch * product.rows * product.columns;
  if (n == 0) return Status::Ok();
  Gemm gemm;
  PBX_RETURN_IF_ERROR(GemmOf(product, &gemm));
  if (ActivateByCublas(gemm, x, y, bias, relu, out, stream)) return Status::Ok();
  PBX_RETURN_IF_ERROR(Multiply(product, x, y, out, stream));
  return LaunchForAll("activate", n, Activated{bias, relu, product.columns, out}, stream);
}

Status Contract(const Sizes& sizes, size_t kept, const float* x, const Sizes& x_strides,
                const float* y, const Sizes& y_strides, float* out, Stream stream) {
  const size_t rank = sizes.size();
  const Sizes of_kept = Part(sizes, 0, kept), of_summed = Part(sizes, kept, rank);
  const Sizes& second = y == nullptr ? x_strides : y_strides;
  const Sizes x_kept = Part(x_strides, 0, kept), x_summed = Part(x_strides, kept, rank);
  const Sizes y_kept = Part(second, 0, kept), y_summed = Part(second, kept, rank);
  Contracted contracted{{}, {}, CountOf(of_summed), x, y, out};
  PBX_RETURN_IF_ERROR(MakeWalk<2>(of_kept, {&x_kept, &y_kept}, &contracted.kept));
  PBX_RETURN_IF_ERROR(MakeWalk<2>(of_summed, {&x_summed, &y_summed}, &contracted.summed));
  return LaunchForAll("contract", CountOf(of_kept), contracted, stream);
}

}  // namespace pbx::gpu
