// Rows with counts besides show and click (RowLayout::counts), such as conversions. These are plain
// loops beside the kernels, so tables without such counts pay nothing for them.
//
// Letters: D = embedx_dim, n = further counts, P = 3 + n + D columns [show, click, further
// counts..., embed_w, embedx...], E = expand_dim.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "row/sum_order.h"
#include "table/kernels.h"

namespace pbx {

// Sums of any number of columns, for SumInOrder.
struct ColumnSums {
  std::vector<float> of;

  void Zero() { std::fill(of.begin(), of.end(), 0.0f); }
  void Add(const ColumnSums& more) {
    for (size_t c = 0; c < of.size(); ++c) of[c] += more.of[c];
  }
};

// out: (P), and the E columns of expand if `extended`. id: -1: zeros.
void CopyColumns(const RowBlock& block, int32_t id, bool extended, float* out);

// Kernels::pull_pooled with CVM. width = P: after log(show + 1) and log(click + 1) - log(show + 1)
// there is log(c + 1) - log(click + 1) for each further count c. The other columns have the bits of
// the kernel.
void PullPooledCounts(const RowBlock& block, const int32_t* ids, const int32_t* offsets,
                      size_t begin, size_t end, const PooledOutput& output);

// InvalidArgument if a further count of an instance is negative or not finite. gradient.show_click:
// (instances, stride), with n further counts after show and click.
Status CheckCounts(const RowLayout& layout, const GradientView& gradient, size_t instances);

// The part of a push that Kernels::push leaves out: adds the further counts of the segments of the
// unique rows [begin, end) to the rows. rows, starts, segments: as in row/plan.h. left_out: rows,
// ascending, that the push left unchanged. sums: (rows of the block, n); if it is not null, adds
// the counts there instead, for the owner of the row.
void PushCounts(const RowBlock& block, const int32_t* rows, const int32_t* starts,
                const int32_t* segments, size_t begin, size_t end, const GradientView& gradient,
                const std::vector<size_t>& left_out, float* sums);

// (instances, head + 1) show_click with a column of late lines at its end. A negative show -w is
// that of a late line: it becomes 0, and the column w. Empty if there is no late line. show_click:
// (instances, head).
std::vector<float> WithLate(const float* show_click, size_t instances, size_t head);

// sums: (unique) the column gradient.late_at, added up over the segments of the rows [begin, end).
void SumLate(const int32_t* starts, const int32_t* segments, size_t begin, size_t end,
             const GradientView& gradient, float* sums);

}  // namespace pbx
