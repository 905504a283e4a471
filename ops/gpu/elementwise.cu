#include <cmath>

#include "base/drops.h"
#include "gpu/walk.h"

namespace pbx::gpu {
namespace {

PBX_HOST_DEVICE inline float SigmoidOf(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// log(1 + exp(x)), without overflow.
PBX_HOST_DEVICE inline float SoftplusOf(float x) {
  return (x > 0 ? x : 0.0f) + std::log1p(std::exp(x > 0 ? -x : x));
}

template <Map kMap>
PBX_HOST_DEVICE float MapOf(float x, float y, float a, float b) {
  switch (kMap) {
    case Map::kScale: return a * x + b;
    case Map::kScaleOfSum: return a * (x + b);
    case Map::kRelu: return x > 0 ? x : 0.0f;
    case Map::kLeakyRelu: return x < 0 ? a * x : x;
    case Map::kSigmoid: return SigmoidOf(x);
    case Map::kLogSigmoid: return -SoftplusOf(-x);
    case Map::kTanh: return std::tanh(x);
    case Map::kExp: return std::exp(x);
    case Map::kLog: return std::log(x);
    case Map::kSqrt: return std::sqrt(x);
    case Map::kSquare: return x * x;
    case Map::kAdd: return x + y;
    case Map::kSubtract: return x - y;
    case Map::kMultiply: return x * y;
    case Map::kDivide: return x / y;
    case Map::kDivideNegated: return -x / y;
    case Map::kLeast: return std::fmin(x, y);
    case Map::kGreatest: return std::fmax(x, y);
    case Map::kReluGrad: return x > 0 ? y : 0.0f;
    case Map::kLeakyReluGrad: return x < 0 ? a * y : y;
    case Map::kSigmoidGrad: return y * x * (1.0f - x);
    case Map::kLogSigmoidGrad: return y * SigmoidOf(-x);
    case Map::kTanhGrad: return y * (1.0f - x * x);
    case Map::kLogGrad: return y / x;
    case Map::kSqrtGrad: return 0.5f * y / x;
    case Map::kSquareGrad: return 2.0f * x * y;
    case Map::kLogLoss:
      return y == a ? 0.0f : (x > 0 ? x : 0.0f) - x * y + SoftplusOf(-std::fabs(x));
  }
  return 0;
}

template <Map kMap>
struct Mapped {
  Walk<3> walk;  // x, y, out
  const float* x;
  const float* y;
  float a, b;
  float* out;
  PBX_HOST_DEVICE void operator()(int64_t i) const {
    int64_t at[3];
    walk.At(i, at);
    out[at[2]] = MapOf<kMap>(x[at[0]], y == nullptr ? 0.0f : y[at[1]], a, b);
  }
};

template <Map kMap>
struct MappedInLine {
  const float* x;
  const float* y;
  float a, b;
  float* out;
  PBX_HOST_DEVICE void operator()(int64_t i) const {
    out[i] = MapOf<kMap>(x[i], y == nullptr ? 0.0f : y[i], a, b);
  }
};

struct LossGrad {
  const float* x;
  const float* label;
  const float* grad;
  float ignored;
  float* out;
  PBX_HOST_DEVICE void operator()(int64_t i) const {
    out[i] = label[i] == ignored ? 0.0f : (SigmoidOf(x[i]) - label[i]) * grad[i];
  }
};

template <Map kMap>
Status ApplyOne(const Sizes& sizes, const float* x, const Sizes& x_strides, const float* y,
                const Sizes& y_strides, float a, float b, float* out, Stream stream) {
  Mapped<kMap> mapped{{}, x, y, a, b, out};
  const Sizes out_strides = StridesOf(sizes);
  const Sizes& second = y == nullptr ? x_strides : y_strides;
  PBX_RETURN_IF_ERROR(MakeWalk<3>(sizes, {&x_strides, &second, &out_strides}, &mapped.walk));
  const int64_t n = CountOf(sizes);
  const bool in_line =
      mapped.walk.rank == 0 ||
      (mapped.walk.rank == 1 && mapped.walk.strides[0][0] == 1 && mapped.walk.strides[1][0] == 1);
  if (!in_line) return LaunchForAll("map", n, mapped, stream);
  return LaunchForAll("map", n, MappedInLine<kMap>{x, y, a, b, out}, stream);
}

template <typename T>
struct ScaledWhole {
  const T* x;
  T a, b;
  T* out;
  PBX_HOST_DEVICE void operator()(int64_t i) const { out[i] = a * x[i] + b; }
};

template <typename T>
Status ScaleAs(uint64_t n, const void* x, int64_t a, int64_t b, void* out, Stream stream) {
  const ScaledWhole<T> scaled{static_cast<const T*>(x), static_cast<T>(a), static_cast<T>(b),
                              static_cast<T*>(out)};
  return LaunchForAll("scale", static_cast<int64_t>(n), scaled, stream);
}

struct Dropped {
  const float* x;
  Drops drops;
  float scale;
  float* out;
  uint8_t* mask;
  PBX_HOST_DEVICE void operator()(int64_t i) const {
    const bool keeps = drops.keeps(static_cast<uint32_t>(i));
    mask[i] = keeps ? 1 : 0;
    out[i] = keeps ? x[i] * scale : 0.0f;
  }
};

struct DroppedGrad {
  const uint8_t* mask;
  const float* grad;
  float scale;
  float* out;
  PBX_HOST_DEVICE void operator()(int64_t i) const { out[i] = mask[i] != 0 ? grad[i] * scale : 0; }
};

template <typename T>
PBX_HOST_DEVICE bool Holds(Comparison comparison, T x, T y) {
  switch (comparison) {
    case Comparison::kEqual: return x == y;
    case Comparison::kNotEqual: return x != y;
    case Comparison::kLess: return x < y;
    case Comparison::kLessEqual: return x <= y;
    case Comparison::kGreater: return x > y;
    case Comparison::kGreaterEqual: return x >= y;
  }
  return false;
}

template <typename T>
struct Compared {
  Comparison comparison;
  Walk<3> walk;
  const T* x;
  const T* y;
  bool* out;
  PBX_HOST_DEVICE void operator()(int64_t i) const {
    int64_t at[3];
    walk.At(i, at);
    out[at[2]] = Holds(comparison, x[at[0]], y[at[1]]);
  }
};

template <typename T>
Status CompareAs(Comparison comparison, const Sizes& sizes, const void* x, const Sizes& x_strides,
                 const void* y, const Sizes& y_strides, void* out, Stream stream) {
  Compared<T> compared{
      comparison, {}, static_cast<const T*>(x), static_cast<const T*>(y), static_cast<bool*>(out)};
  const Sizes out_strides = StridesOf(sizes);
  PBX_RETURN_IF_ERROR(MakeWalk<3>(sizes, {&x_strides, &y_strides, &out_strides}, &compared.walk));
  return LaunchForAll("compare", CountOf(sizes), compared, stream);
}

}  // namespace

// clang-format off
#define PBX_FOR_EACH_MAP(X)                                                                       \
  X(kScale) X(kScaleOfSum) X(kRelu) X(kLeakyRelu) X(kSigmoid) X(kLogSigmoid) X(kTanh) X(kExp)     \
  X(kLog) X(kSqrt) X(kSquare) X(kAdd) X(kSubtract) X(kMultiply) X(kDivide) X(kDivideNegated)      \
  X(kLeast) X(kGreatest)                                                                          \
  X(kReluGrad) X(kLeakyReluGrad) X(kSigmoidGrad) X(kLogSigmoidGrad) X(kTanhGrad) X(kLogGrad)      \
  X(kSqrtGrad) X(kSquareGrad) X(kLogLoss)
// clang-format on

Status Apply(Map map, const Sizes& sizes, const float* x, const Sizes& x_strides, const float* y,
             const Sizes& y_strides, float a, float b, float* out, Stream stream) {
  switch (map) {
#define PBX_CASE(name) \
  case Map::name: return ApplyOne<Map::name>(sizes, x, x_strides, y, y_strides, a, b, out, stream);
    PBX_FOR_EACH_MAP(PBX_CASE)
#undef PBX_CASE
  }
  return Status::Ok();
}

Status Apply(Map map, uint64_t n, const float* x, const float* y, float a, float b, float* out,
             Stream stream) {
  const Sizes one{1};
  return Apply(map, {static_cast<int64_t>(n)}, x, one, y, one, a, b, out, stream);
}

Status ScaleWhole(Type type, uint64_t n, const void* x, int64_t a, int64_t b, void* out,
                  Stream stream) {
  switch (type) {
    case Type::kInt32: return ScaleAs<int32_t>(n, x, a, b, out, stream);
    case Type::kInt64: return ScaleAs<int64_t>(n, x, a, b, out, stream);
    default: return Error(Code::kInvalidArgument, "scale of whole numbers of another type");
  }
}

Status LogLossGrad(uint64_t n, const float* x, const float* label, const float* grad, float ignored,
                   float* out, Stream stream) {
  return LaunchForAll("log_loss_grad", static_cast<int64_t>(n),
                      LossGrad{x, label, grad, ignored, out}, stream);
}

Status Dropout(uint64_t n, const float* x, float rate, uint64_t seed, bool scaled, float* out,
               uint8_t* mask, Stream stream) {
  const Drops drops(rate, seed, 0);
  return LaunchForAll("dropout", static_cast<int64_t>(n),
                      Dropped{x, drops, scaled ? drops.scale : 1.0f, out, mask}, stream);
}
Status DropoutGrad(uint64_t n, const uint8_t* mask, const float* grad, float scale, float* out,
                   Stream stream) {
  return LaunchForAll("dropout_grad", static_cast<int64_t>(n), DroppedGrad{mask, grad, scale, out},
                      stream);
}

Status Compare(Comparison comparison, Type type, const Sizes& sizes, const void* x,
               const Sizes& x_strides, const void* y, const Sizes& y_strides, void* out,
               Stream stream) {
  switch (type) {
    case Type::kBool:
      return CompareAs<bool>(comparison, sizes, x, x_strides, y, y_strides, out, stream);
    case Type::kInt32:
      return CompareAs<int32_t>(comparison, sizes, x, x_strides, y, y_strides, out, stream);
    case Type::kInt64:
      return CompareAs<int64_t>(comparison, sizes, x, x_strides, y, y_strides, out, stream);
    case Type::kFloat32:
      return CompareAs<float>(comparison, sizes, x, x_strides, y, y_strides, out, stream);
    default: return CompareAs<double>(comparison, sizes, x, x_strides, y, y_strides, out, stream);
  }
}

}  // namespace pbx::gpu
