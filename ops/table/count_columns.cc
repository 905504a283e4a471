#include "table/count_columns.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/log.h"

namespace pbx {
namespace {

constexpr size_t kListsPerCall = 256;  // of the kernel: their output stays in the cache

const float* RowAt(const RowBlock& block, int32_t id) {
  return reinterpret_cast<const float*>(block.rows + static_cast<size_t>(id) * block.row_bytes);
}

// Sums click, then the further counts, over the ids [begin, end). sums: (1 + n).
void SumCounts(const RowBlock& block, const int32_t* ids, int32_t begin, int32_t end,
               std::vector<float>* sums) {
  const RowLayout& layout = block.config->layout;
  std::fill(sums->begin(), sums->end(), 0.0f);
  for (int32_t i = begin; i < end; ++i) {
    if (ids[i] < 0) continue;
    const float* const row = RowAt(block, ids[i]);
    const float* const counts = row + layout.counts_at();
    (*sums)[0] += row[RowLayout::kClick];
    for (size_t c = 1; c < sums->size(); ++c) (*sums)[c] += counts[c - 1];
  }
}

// The features of the sums, in place.
void MakeFeatures(std::vector<float>* sums) {
  for (float& sum : *sums) sum = Log(sum + 1.0f);
  for (size_t c = 1; c < sums->size(); ++c) (*sums)[c] -= (*sums)[0];
}

// Inserts the further features of a segment behind the first two. from: (3 + D), of the kernel.
void Insert(const float* from, const std::vector<float>& features, size_t dim, float* to) {
  const size_t more = features.size() - 1;
  std::memcpy(to, from, 2 * sizeof(float));
  std::memcpy(to + 2, features.data() + 1, more * sizeof(float));
  std::memcpy(to + 2 + more, from + 2, (1 + dim) * sizeof(float));
}

}  // namespace

void CopyColumns(const RowBlock& block, int32_t id, bool extended, float* out) {
  const RowLayout& layout = block.config->layout;
  const auto head = static_cast<size_t>(layout.head_columns());
  const auto plain = static_cast<size_t>(layout.pull_columns());
  const auto expand = static_cast<size_t>(extended ? layout.expand_dim : 0);
  if (id < 0) {
    std::fill(out, out + plain + expand, 0.0f);
    return;
  }
  const float* const row = RowAt(block, id);
  out[0] = row[RowLayout::kShow];
  out[1] = row[RowLayout::kClick];
  std::memcpy(out + 2, row + layout.counts_at(), (head - 2) * sizeof(float));
  out[head] = row[RowLayout::kEmbed];
  std::memcpy(out + head + 1, row + layout.embedx_at(), (plain - head - 1) * sizeof(float));
  std::memcpy(out + plain, row + layout.expand_at(), expand * sizeof(float));
  if (block.decay == nullptr) return;
  const Factors by = block.decay->Of(row);
  out[head] *= by.embed;
  for (float* weight = out + head + 1; weight < out + plain + expand; ++weight)
    *weight *= by.embedx;
}

void PullPooledCounts(const RowBlock& block, const int32_t* ids, const int32_t* offsets,
                      size_t begin, size_t end, const PooledOutput& output) {
  const RowLayout& layout = block.config->layout;
  const auto dim = static_cast<size_t>(layout.embedx_dim);
  const auto width = static_cast<size_t>(layout.pull_columns());
  std::vector<float> plain(std::min(kListsPerCall, end - begin) * (3 + dim));
  std::vector<float> sums(1 + static_cast<size_t>(layout.counts));
  const auto place = [&](size_t segment) {
    return output.out + segment * width + segment / output.slots * output.extra;
  };
  for (size_t first = begin; first < end; first += kListsPerCall) {
    const size_t count = std::min(kListsPerCall, end - first);
    PooledOutput of_kernel;
    of_kernel.out = plain.data();
    of_kernel.factors = output.factors;
    ActiveKernels().pull_pooled(block, ids, offsets + first, 0, count, true, of_kernel);
    for (size_t i = 0; i < count; ++i) {
      const size_t list = first + i;
      SumCounts(block, ids, offsets[list], offsets[list + 1], &sums);
      MakeFeatures(&sums);
      const float* const from = plain.data() + i * (3 + dim);
      if (output.first == nullptr) {
        Insert(from, sums, dim, place(list));
        continue;
      }
      for (int32_t at = output.first[list]; at >= 0; at = output.next[at]) {
        Insert(from, sums, dim, place(static_cast<size_t>(at)));
      }
    }
  }
}

Status CheckCounts(const RowLayout& layout, const GradientView& gradient, size_t instances) {
  const auto head = static_cast<size_t>(layout.head_columns());
  for (size_t i = 0; i < instances; ++i) {
    const float* const counts = gradient.show_click + i * gradient.show_click_stride;
    for (size_t c = 2; c < head; ++c) {
      if (std::isfinite(counts[c]) && counts[c] >= 0.0f) continue;
      return Error(Code::kInvalidArgument,
                   "push: count %zu of instance %zu is %g, expected a finite number of 0 or more; "
                   "no row is changed",
                   c - 2, i, static_cast<double>(counts[c]));
    }
  }
  return Status::Ok();
}

void PushCounts(const RowBlock& block, const int32_t* rows, const int32_t* starts,
                const int32_t* segments, size_t begin, size_t end, const GradientView& gradient,
                const std::vector<size_t>& left_out, float* sums) {
  const AccessorConfig& config = *block.config;
  const auto n = static_cast<size_t>(config.layout.counts);
  ColumnSums merged{std::vector<float>(n)};
  const auto add = [&](int64_t i, ColumnSums* to_sums) {
    const auto segment = static_cast<size_t>(segments[i] & INT32_MAX);
    const float* const from = gradient.show_click + 2 +
                              segment / gradient.segments_per_instance * gradient.show_click_stride;
    for (size_t c = 0; c < n; ++c) to_sums->of[c] += from[c];
  };
  for (size_t u = begin; u < end; ++u) {
    const auto id = static_cast<size_t>(rows[u]);
    if (std::binary_search(left_out.begin(), left_out.end(), id)) continue;
    SumInOrder(starts[u], starts[u + 1], add, &merged);
    auto* const row = reinterpret_cast<float*>(block.rows + id * block.row_bytes);
    float* const to = sums != nullptr ? sums + id * n : row + config.layout.counts_at();
    const float counted = sums != nullptr ? 1.0f : accessor::CountedOf(config, row);
    for (size_t c = 0; c < n; ++c) to[c] += counted * merged.of[c];
  }
}

std::vector<float> WithLate(const float* show_click, size_t instances, size_t head) {
  const auto late = [&](size_t i) {
    const float show = show_click[i * head];
    return show < 0.0f && std::isfinite(show);
  };
  size_t first = 0;
  while (first < instances && !late(first)) ++first;
  if (first == instances) return {};
  std::vector<float> out(instances * (head + 1));
  for (size_t i = 0; i < instances; ++i) {
    float* const to = out.data() + i * (head + 1);
    std::copy_n(show_click + i * head, head, to);
    if (!late(i)) continue;
    to[head] = -to[0];
    to[0] = 0.0f;
  }
  return out;
}

void SumLate(const int32_t* starts, const int32_t* segments, size_t begin, size_t end,
             const GradientView& gradient, float* sums) {
  const float* const column = gradient.show_click + gradient.late_at;
  const auto add = [&](int64_t i, ColumnSums* to) {
    const auto segment = static_cast<size_t>(segments[i] & INT32_MAX);
    to->of[0] += column[segment / gradient.segments_per_instance * gradient.show_click_stride];
  };
  ColumnSums sum{std::vector<float>(1)};
  for (size_t u = begin; u < end; ++u) {
    SumInOrder(starts[u], starts[u + 1], add, &sum);
    sums[u] = sum.of[0];
  }
}

}  // namespace pbx
