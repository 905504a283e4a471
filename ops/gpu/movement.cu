#include "gpu/walk.h"

namespace pbx::gpu {
namespace {

template <typename T>
struct Copied {
  Walk<2> walk;
  const T* from;
  T* to;
  PBX_HOST_DEVICE void operator()(int64_t i) const {
    int64_t at[2];
    walk.At(i, at);
    to[at[1]] = from[at[0]];
  }
};

template <typename T>
struct Filled {
  T value;
  T* to;
  PBX_HOST_DEVICE void operator()(int64_t i) const { to[i] = value; }
};

template <typename From, typename To>
struct Converted {
  const From* from;
  To* to;
  PBX_HOST_DEVICE void operator()(int64_t i) const { to[i] = static_cast<To>(from[i]); }
};

PBX_HOST_DEVICE inline int64_t RowOf(int64_t index, int64_t rows) {
  return index < 0 ? index + rows : index;
}

template <typename T, typename Index>
struct Gathered {
  const T* from;
  int64_t rows, inner;
  const Index* index;
  int64_t m;
  T absent;
  T* to;
  PBX_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t c = i % inner, k = i / inner % m, o = i / inner / m;
    const int64_t row = RowOf(index[k], rows);
    to[i] = row >= 0 && row < rows ? from[(o * rows + row) * inner + c] : absent;
  }
};

constexpr int64_t kSpans = 1024;

// Each thread adds up a column of `span` neighbouring rows. It reads all indices.
template <typename Index>
struct Scattered {
  const float* grad;
  int64_t rows, inner;
  const Index* index;
  int64_t m, span, spans;
  float* to;
  PBX_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t c = i % inner, first = i / inner % spans * span, o = i / inner / spans;
    const int64_t end = first + span < rows ? first + span : rows;
    float* const sums = to + o * rows * inner + c;
    for (int64_t row = first; row < end; ++row) sums[row * inner] = 0;
    for (int64_t k = 0; k < m; ++k) {
      const int64_t row = RowOf(index[k], rows);
      if (row >= first && row < end) sums[row * inner] += grad[(o * m + k) * inner + c];
    }
  }
};

// Calls f with a value of an unsigned type of `element` bytes.
template <class F>
Status WithElement(size_t element, const F& f) {
  switch (element) {
    case 1: return f(uint8_t{});
    case 2: return f(uint16_t{});
    case 4: return f(uint32_t{});
    case 8: return f(uint64_t{});
    default: return Error(Code::kInvalidArgument, "elements of %zu bytes", element);
  }
}

template <class F>
Status WithIndex(Type type, const F& f) {
  switch (type) {
    case Type::kInt32: return f(int32_t{});
    case Type::kInt64: return f(int64_t{});
    default: return Error(Code::kInvalidArgument, "an index that is neither int32 nor int64");
  }
}

template <class F>
Status WithType(Type type, const F& f) {
  switch (type) {
    case Type::kBool: return f(bool{});
    case Type::kInt32: return f(int32_t{});
    case Type::kInt64: return f(int64_t{});
    case Type::kFloat32: return f(float{});
    default: return f(double{});
  }
}

}  // namespace

Sizes StridesOf(const Sizes& sizes) {
  Sizes strides(sizes.size());
  int64_t stride = 1;
  for (size_t d = sizes.size(); d-- > 0; stride *= sizes[d]) strides[d] = stride;
  return strides;
}

int64_t CountOf(const Sizes& sizes) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return count;
}

Status CopyStrided(const Sizes& sizes, size_t element, const void* from, const Sizes& from_strides,
                   void* to, const Sizes& to_strides, Stream stream) {
  return WithElement(element, [&](auto value) {
    using T = decltype(value);
    Copied<T> copied{{}, static_cast<const T*>(from), static_cast<T*>(to)};
    PBX_RETURN_IF_ERROR(MakeWalk<2>(sizes, {&from_strides, &to_strides}, &copied.walk));
    return LaunchForAll("copy", CountOf(sizes), copied, stream);
  });
}

Status FillWith(const void* value, size_t element, uint64_t n, void* to, Stream stream) {
  return WithElement(element, [&](auto of) {
    using T = decltype(of);
    const Filled<T> filled{*static_cast<const T*>(value), static_cast<T*>(to)};
    return LaunchForAll("fill", static_cast<int64_t>(n), filled, stream);
  });
}

Status Cast(Type from_type, const void* from, Type to_type, void* to, uint64_t n, Stream stream) {
  return WithType(from_type, [&](auto of) {
    using From = decltype(of);
    return WithType(to_type, [&](auto in) {
      using To = decltype(in);
      const Converted<From, To> converted{static_cast<const From*>(from), static_cast<To*>(to)};
      return LaunchForAll("cast", static_cast<int64_t>(n), converted, stream);
    });
  });
}

Status Gather(const void* from, size_t element, int64_t outer, int64_t rows, int64_t inner,
              Type index_type, const void* index, int64_t m, const void* absent, void* to,
              Stream stream) {
  return WithElement(element, [&](auto value) {
    using T = decltype(value);
    return WithIndex(index_type, [&](auto of) {
      using Index = decltype(of);
      const Gathered<T, Index> gathered{static_cast<const T*>(from),
                                        rows,
                                        inner,
                                        static_cast<const Index*>(index),
                                        m,
                                        *static_cast<const T*>(absent),
                                        static_cast<T*>(to)};
      return LaunchForAll("gather", outer * m * inner, gathered, stream);
    });
  });
}

Status GatherGrad(const float* grad, int64_t outer, int64_t rows, int64_t inner, Type index_type,
                  const void* index, int64_t m, float* to, Stream stream) {
  return WithIndex(index_type, [&](auto of) {
    using Index = decltype(of);
    const int64_t span = (rows + kSpans - 1) / kSpans;
    const int64_t spans = span == 0 ? 0 : (rows + span - 1) / span;
    const Scattered<Index> scattered{grad, rows, inner, static_cast<const Index*>(index),
                                     m,    span, spans, to};
    return LaunchForAll("gather_grad", outer * spans * inner, scattered, stream);
  });
}

}  // namespace pbx::gpu
