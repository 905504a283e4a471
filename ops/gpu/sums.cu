// Sums as trees: each thread adds up to kLeaf neighbours in their order, and so do the next levels.
#include "base/bfloat16.h"
#include "gpu/walk.h"

namespace pbx::gpu {
namespace {

constexpr int64_t kLeaf = 64;

int64_t PartsOf(int64_t summed) { return (summed + kLeaf - 1) / kLeaf; }

template <typename T>
struct Leaf {
  const T* x;  // (outer, summed, inner)
  int64_t summed, inner, parts;
  float a;
  float* out;  // (outer, parts, inner)
  PBX_HOST_DEVICE void operator()(int64_t i) const {
    const int64_t c = i % inner, part = i / inner % parts, o = i / inner / parts;
    const int64_t first = part * kLeaf;
    const int64_t end = first + kLeaf < summed ? first + kLeaf : summed;
    float sum = 0;
    for (int64_t s = first; s < end; ++s) sum += ToFloat(x[(o * summed + s) * inner + c]);
    out[i] = sum * a;
  }
};

struct AddedTo {
  const float* x;
  float* out;
  PBX_HOST_DEVICE void operator()(int64_t i) const { out[i] += x[i]; }
};

}  // namespace

uint64_t SumRoom(int64_t outer, int64_t summed, int64_t inner) {
  uint64_t room = 0;
  while (summed > kLeaf) {
    summed = PartsOf(summed);
    room += static_cast<uint64_t>(outer * summed * inner);
  }
  return room;
}

template <typename T>
Status Sum(const T* x, int64_t outer, int64_t summed, int64_t inner, float a, float* room,
           float* out, Stream stream) {
  if (summed <= kLeaf) {
    return LaunchForAll("sum", outer * inner, Leaf<T>{x, summed, inner, 1, a, out}, stream);
  }
  const int64_t parts = PartsOf(summed), n = outer * parts * inner;
  PBX_RETURN_IF_ERROR(LaunchForAll("sum", n, Leaf<T>{x, summed, inner, parts, 1.0f, room}, stream));
  return Sum<float>(room, outer, parts, inner, a, room + n, out, stream);
}
template Status Sum(const float*, int64_t, int64_t, int64_t, float, float*, float*, Stream);
template Status Sum(const uint16_t*, int64_t, int64_t, int64_t, float, float*, float*, Stream);

Status AddAll(const std::vector<const float*>& arrays, uint64_t n, float* out, Stream stream) {
  const auto count = static_cast<int64_t>(n);
  if (arrays.size() > 1) {
    PBX_RETURN_IF_ERROR(Apply(Map::kAdd, n, arrays[0], arrays[1], 0, 0, out, stream));
  } else if (arrays[0] != out) {
    return Apply(Map::kScale, n, arrays[0], nullptr, 1, 0, out, stream);
  }
  for (size_t k = 2; k < arrays.size(); ++k) {
    PBX_RETURN_IF_ERROR(LaunchForAll("add_n", count, AddedTo{arrays[k], out}, stream));
  }
  return Status::Ok();
}

}  // namespace pbx::gpu
