#include "paddle/gpu/tensors.h"

namespace pbx::gpu {

void SumOver(const phi::CustomContext& context, const float* x, Sizes sizes,
             const std::vector<bool>& summed, float a, float* to) {
  const Stream stream = StreamOf(context);
  DenseTensor held[2];
  int turn = 0;
  size_t end = sizes.size();
  while (end > 0 && (!summed[end - 1] || sizes[end - 1] == 1)) --end;
  if (end == 0) {  // nothing to add up
    const auto n = static_cast<uint64_t>(CountOf(sizes));
    return Check(Apply(Map::kScale, n, x, nullptr, a, 0, to, stream));
  }
  while (true) {  // one group of neighbouring axes in each turn, from the last
    size_t first = end - 1, next = 0;
    while (first > 0 && summed[first - 1]) --first;
    for (next = first; next > 0 && (!summed[next - 1] || sizes[next - 1] == 1); --next) continue;
    const int64_t outer = CountBetween(sizes, 0, first), n = CountBetween(sizes, first, end);
    const int64_t inner = CountBetween(sizes, end, sizes.size());
    DenseTensor room;
    float* const parts = Room(context, SumRoom(outer, n, inner), &room);
    const bool last = next == 0;
    float* const out = last ? to : Room(context, static_cast<uint64_t>(outer * inner), &held[turn]);
    Check(Sum(x, outer, n, inner, last ? a : 1.0f, parts, out, stream));
    if (last) return;
    for (size_t d = first; d < end; ++d) sizes[d] = 1;
    x = out;
    end = next;
    turn ^= 1;
  }
}

Sizes BroadcastStrides(const Sizes& sizes, size_t rank, int axis) {
  const Sizes own = StridesOf(sizes);
  const size_t begin = axis < 0 ? rank - sizes.size() : static_cast<size_t>(axis);
  Sizes strides(rank, 0);
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (begin + d < rank && sizes[d] != 1) strides[begin + d] = own[d];
  }
  return strides;
}

}  // namespace pbx::gpu
