#include "dense/rank_attention.h"

#include <cstring>
#include <vector>

#include "dense/matmul.h"

namespace pbx {
namespace {

// Calls fn(instance, block, row) for every pair that counts, in order. block: the number of one of
// the R * R blocks of param.
template <typename Fn>
void ForEachPair(const RankAttention& attention, Fn fn) {
  const size_t stride = 2 * attention.max_rank + 1;
  for (size_t i = 0; i < attention.instances; ++i) {
    const int32_t* line = attention.ranks + i * stride;
    if (line[0] < 1) continue;
    for (const int32_t* pair = line + 1; pair < line + stride; pair += 2) {
      if (pair[0] < 1) continue;
      const size_t own = static_cast<size_t>(line[0]) - 1, other = static_cast<size_t>(pair[0]) - 1;
      fn(i, own * attention.max_rank + other, static_cast<size_t>(pair[1]));
    }
  }
}

}  // namespace

Status CheckRanks(const RankAttention& attention) {
  const size_t stride = 2 * attention.max_rank + 1;
  const int32_t highest = static_cast<int32_t>(attention.max_rank);
  for (size_t i = 0; i < attention.instances; ++i) {
    const int32_t* line = attention.ranks + i * stride;
    for (size_t at = 0; at < stride; at += at == 0 ? 1 : 2) {
      if (line[at] > highest) {
        return Error(Code::kInvalidArgument,
                     "RankOffset: row %zu, column %zu has rank %d, expected at most MaxRank = %d",
                     i, at, line[at], highest);
      }
      if (at == 0 || line[at] < 1) continue;
      const int32_t row = line[at + 1];
      if (row < 0 || static_cast<size_t>(row) >= attention.instances) {
        return Error(Code::kInvalidArgument,
                     "RankOffset: row %zu, column %zu names row %d, but X has %zu rows", i, at + 1,
                     row, attention.instances);
      }
    }
  }
  return Status::Ok();
}

void RankAttentionForward(const RankAttention& attention, const float* x, const float* param,
                          float* y) {
  const size_t in = attention.inputs, out = attention.outputs;
  std::memset(y, 0, attention.instances * out * sizeof(float));
  ForEachPair(attention, [&](size_t i, size_t block, size_t row) {
    MatMulAdd(1, in, out, {x + row * in, in, 1}, param + block * in * out, out, y + i * out, out);
  });
}

void RankAttentionBackward(const RankAttention& attention, const float* x, const float* param,
                           const float* dy, float* dx, float* dparam) {
  const size_t in = attention.inputs, out = attention.outputs;
  const size_t blocks = attention.max_rank * attention.max_rank;
  std::memset(dparam, 0, blocks * in * out * sizeof(float));
  ForEachPair(attention, [&](size_t i, size_t block, size_t row) {
    MatMulAdd(in, 1, out, {x + row * in, 1, in}, dy + i * out, out, dparam + block * in * out, out);
  });
  if (dx == nullptr) return;
  std::memset(dx, 0, attention.instances * in * sizeof(float));
  std::vector<float> transposed(blocks * in * out);
  for (size_t b = 0; b < blocks; ++b)
    Transpose(in, out, param + b * in * out, out, transposed.data() + b * in * out);
  ForEachPair(attention, [&](size_t i, size_t block, size_t row) {
    MatMulAdd(1, out, in, {dy + i * out, out, 1}, transposed.data() + block * in * out, in,
              dx + row * in, in);
  });
}

}  // namespace pbx
