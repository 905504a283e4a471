// The part that the push of a pass and the merge of a batch share: how a block reads its part of a
// dedup plan and adds up the gradients of a row's occurrences. Only this file decides the order of
// each sum.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/call.h"

namespace pbx::hbm {

struct PlannedGradient {
  TableView table;
  const int32_t* plan;
  uint64_t plan_size;
  pbx_hbm_gradient gradient;

  // Column c of [show, click, embed_w, embedx..., expand...], summed over segments in their order.
  PBX_HOST_DEVICE float Sum(const int32_t* segments, int32_t begin, int32_t end, int c) const {
    float sum = 0.0f;
#ifdef __CUDA_ARCH__
#pragma unroll 8
#endif
    for (int32_t i = begin; i < end; ++i) {
      const int64_t segment = segments[i] & INT32_MAX;
      const int64_t instance = segment / gradient.slots;
      if (instance >= gradient.instances) {
        if (c == 0) AddTo(&table.report->out_of_range, 1);
        continue;
      }
      sum += c < 2 ? gradient.show_click[instance * gradient.show_click_stride + c]
                   : gradient.grad[segment * gradient.stride + instance * gradient.extra +
                                   gradient.weights_at + c - 2];
    }
    return c < 2 ? sum : sum * gradient.scale;
  }

  // False: the row stays unchanged, and nothing is sent for it.
  PBX_HOST_DEVICE bool Check(const float* row, float* sums, int columns) const {
    bool good = true;
    for (int c = 0; c < columns; ++c) good = good && rule::Finite(sums[c]);
    if (good) return true;
    CountBad(row);
    if (gradient.clip == 0) return false;
    for (int c = 0; c < 2; ++c) sums[c] = rule::Finite(sums[c]) ? sums[c] : 0.0f;
    for (int c = 2; c < columns; ++c) sums[c] = rule::Mended(sums[c], gradient.bound);
    return true;
  }

  PBX_HOST_DEVICE void CountBad(const float* row) const {
    AddTo(&table.report->bad_rows, 1);
    AddTo(table.bad_by_slot + SlotOf(row), 1);
  }

  // Whether the plan belongs to these rows and has the length that its header says.
  PBX_HOST_DEVICE bool Fits() const {
    const int64_t unique = plan[1], occurrences = plan[2];
    return plan[0] == table.stamp && unique >= 0 && occurrences >= 0 &&
           static_cast<uint64_t>(4 + 2 * unique + occurrences) <= plan_size;
  }

  // places: (count) for rows of the plan from `first` on. -1: the table has no such row, or the
  // plan is malformed there.
  PBX_HOST_DEVICE void FindPlaces(const Block& block, int64_t first, int count,
                                  int32_t* places) const {
    const int64_t unique = plan[1];
    const int32_t occurrences = plan[2];
    const int32_t* const ids = plan + 3 + first;
    const int32_t* const starts = plan + 3 + unique + first;
    block.ForEach(count, [&](int r) {
      const bool ascends = first + r == 0 || ids[r - 1] < ids[r];
      const bool sound = starts[r] >= 0 && starts[r] <= starts[r + 1] &&
                         starts[r + 1] <= occurrences && ascends && table.Has(ids[r]);
      places[r] = sound ? ids[r] : -1;
      if (!sound) AddTo(&table.report->out_of_range, 1);
      if (first + r != 0) return;
      AddTo(&table.report->rows_pushed, static_cast<uint64_t>(unique));
      AddTo(&table.report->ids_pushed, static_cast<uint64_t>(occurrences));
    });
  }
};

// In bytes: small enough that several blocks share a multiprocessor.
constexpr size_t kMostSharedOfRows = 40 * 1024;

// How many rows a block handles, at most `most`, if each takes row_bytes of its shared memory.
inline int RowsOfBlock(int most, size_t row_bytes) {
  int rows = most;
  while (rows > 1 && static_cast<size_t>(rows) * row_bytes > kMostSharedOfRows) rows /= 2;
  return rows;
}

// The most rows that a plan of plan_size values can have. A plan has 3 + U + (U + 1) + M values,
// and M >= U.
inline uint64_t MostRowsOf(uint64_t plan_size) { return (plan_size - 4) / 3; }

}  // namespace pbx::hbm
