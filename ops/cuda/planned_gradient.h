// The part that the push of a pass and the merge of a batch share: how a block reads its part of a
// dedup plan and adds up the gradients of a row's occurrences. Only this file decides the order of
// each sum.
//
// Rows with many occurrences are slow, because one block adds all of them. With 1 M ids of Zipf
// 1.05 and D 64, one row has 49,000 occurrences, and the push takes 4.6 ms instead of 0.6. Two ways
// to make it faster, of which none is built or measured:
//
// 1. Keep the order, and with it the bits. Most of the 4 us for each stage of 48 occurrences is
//    waiting for memory. With two or more stages that are filled by asynchronous copies while
//    another one is added, what remains is the chain of 49,000 additions in each column, about
//    0.2 ms. It needs more shared memory, so fewer blocks share a multiprocessor: it should be a
//    kernel of its own for long rows, which the other blocks leave out.
// 2. Sum chunks of K occurrences (K 256, counted from the row's first one) in order, by blocks of
//    their own, and add the sums of a row's n whole chunks by a tree that depends on n alone: sum i
//    takes in sum i + s, for s = 1, 2, 4, ... and i a multiple of 2 s. Then the push block adds the
//    rest of the row, fewer than K occurrences, in order. Rows with less than K occurrences keep
//    their bits.
//      No list of chunks is needed: a whole chunk has exactly one place in the plan that is a
//    multiple of K. Block p finds the row that holds place p K by a search in `starts`, sums the
//    chunk around that place, and writes sum p. The grid has M / K blocks, and the sums take 4
//    bytes for each column of each block: 1 MB here. The push block of a row computes p of each of
//    its chunks in the same way.
//      The host must add in the same order (table/kernels_push.inl: keep one sum for each bit of n,
//    and carry as in a binary counter), because both must train the same rows. So this changes the
//    digests of all runs that have such rows, and no store can be continued to the same bits.
//
// The first one should be measured first: it changes no results.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/call.h"

namespace pbx::hbm {

constexpr int kMostFound = kThreads;  // occurrences whose segments are found at once
constexpr int kStageFloats = 3072;    // at least; with 64 columns, 48 occurrences

// The part of a block's shared memory in which the sums of its rows are made. Afterwards,
// gradient_at, instance and the stage may be used for something else.
struct SumMemory {
  int64_t* gradient_at;                   // (kMostFound) where column 0 would be in grad
  int32_t* instance;                      // (kMostFound) -1: the batch has no such instance
  int32_t *places, *begins, *ends, *bad;  // (rows of the tile)
  float* sums;                            // (rows of the tile, room)
  float* stage;                           // (stage floats)
};

// kDim: see DimOf.
template <int kDim>
struct PlannedGradient {
  static constexpr int kLanes = kLanesOf<kDim>;

  TableView table;
  const int32_t* plan;
  uint64_t plan_size;
  pbx_hbm_gradient gradient;
  int rows_of_tile;
  int room;          // floats of a row's sums; odd, so that threads with a row each use other banks
  int stage_floats;  // at least kStageFloats and the columns of a row

  size_t SharedBytes() const {
    return 12 * size_t{kMostFound} +
           4 * (static_cast<size_t>(rows_of_tile) * (4 + static_cast<size_t>(room)) +
                static_cast<size_t>(stage_floats));
  }

  PBX_HOST_DEVICE SumMemory MemoryOf(const Block& block) const {
    SumMemory m;
    m.gradient_at = block.shared<int64_t>();
    m.instance = reinterpret_cast<int32_t*>(m.gradient_at + kMostFound);
    m.places = m.instance + kMostFound;
    m.begins = m.places + rows_of_tile;
    m.ends = m.begins + rows_of_tile;
    m.bad = m.ends + rows_of_tile;
    m.sums = reinterpret_cast<float*>(m.bad + rows_of_tile);
    m.stage = m.sums + rows_of_tile * room;
    return m;
  }

  // Finds the segment of occurrence at + o of the plan.
  PBX_HOST_DEVICE void FindSegment(int64_t first, int count, int32_t at, int o,
                                   const SumMemory& m) const {
    const int64_t segment = plan[3 + 2 * int64_t{plan[1]} + 1 + at + o] & INT32_MAX;
    const int64_t instance = segment / gradient.slots;
    m.gradient_at[o] =
        segment * gradient.stride + instance * gradient.extra + gradient.weights_at - 2;
    m.instance[o] = instance < gradient.instances ? static_cast<int32_t>(instance) : -1;
    if (m.instance[o] >= 0) return;
    const int32_t* const starts = plan + 3 + plan[1] + first;
    for (int r = 0; r < count; ++r) {
      if (starts[r] > at + o || at + o >= starts[r + 1] || !IsSound(first, count, r)) continue;
      AddTo(&table.report->out_of_range, 1);
    }
  }

  // Copies the gradients of n occurrences, of those found from `from` on, to the stage: [show,
  // click, embed_w, embedx..., expand...].
  PBX_HOST_DEVICE void Stage(const Block& block, int from, int n, int columns,
                             const SumMemory& m) const {
    block.template ForEachRow<kLanes, kRowsTogether>(n, [&](int o0, int step, int lane) {
      for (int base = lane; base < columns; base += kLanes * kColumns) {
        float values[kRowsTogether][kColumns];
        PBX_UNROLL
        for (int k = 0; k < kRowsTogether; ++k) {
          const int o = o0 + k * step;
          const int32_t instance = o < n ? m.instance[from + o] : -1;
          const float* const counts =
              gradient.show_click + (instance < 0 ? 0 : instance) * gradient.show_click_stride;
          const float* const grad = gradient.grad + (o < n ? m.gradient_at[from + o] : 0);
          PBX_UNROLL
          for (int j = 0; j < kColumns; ++j) {
            const int c = base + j * kLanes;
            const float* const column = (c < 2 ? counts : grad) + c;
            values[k][j] = instance >= 0 && c < columns ? *column : 0.0f;
          }
        }
        PBX_UNROLL
        for (int k = 0; k < kRowsTogether; ++k) {
          const int o = o0 + k * step;
          PBX_UNROLL
          for (int j = 0; j < kColumns; ++j) {
            const int c = base + j * kLanes;
            if (o < n && c < columns) m.stage[o * columns + c] = values[k][j];
          }
        }
      }
    });
  }

  // The occurrences of a chunk, and whether it is the first or the last one of its tile.
  struct Chunk {
    int32_t at;
    int n;
    bool is_first, is_last;
  };

  // Adds the occurrences of each row that are in the stage, in their order.
  PBX_HOST_DEVICE void AddStaged(const Block& block, const Chunk& chunk, int count, int columns,
                                 int checked, const SumMemory& m) const {
    block.template ForEachRow<kLanes, 1>(count, [&](int r, int, int lane) {
      const int begin = m.begins[r] > chunk.at ? m.begins[r] - chunk.at : 0;
      const int end = m.ends[r] - chunk.at < chunk.n ? m.ends[r] - chunk.at : chunk.n;
      for (int c = lane; c < columns; c += kLanes) {
        float sum = chunk.is_first ? 0.0f : m.sums[r * room + c];
#ifdef __CUDA_ARCH__
#pragma unroll 4
#endif
        for (int o = begin; o < end; ++o) sum += m.stage[o * columns + c];
        if (chunk.is_last && c >= 2) sum *= gradient.scale;
        if (chunk.is_last && c < checked && !rule::Finite(sum)) m.bad[r] = 1;
        m.sums[r * room + c] = sum;
      }
    });
  }

  // Finds the places of the rows of the plan from `first` on, and sums their gradients over their
  // segments, in their order. The occurrences of a tile follow each other in the plan. The block
  // copies them to shared memory, one chunk after the other, and adds them there, so that the sum
  // of a row with thousands of occurrences does not wait for memory at each of them. bad: whether
  // one of the first `checked` sums is not finite.
  PBX_HOST_DEVICE void SumRows(const Block& block, int64_t first, int count, int columns,
                               int checked, const SumMemory& m) const {
    const int32_t begin = BeginOf(first), end = EndOf(first + count);
    const int most = stage_floats / columns;
    int32_t found = begin;
    do {
      const int left = end > found ? end - found : 0, n = left < kMostFound ? left : kMostFound;
      block.ForEach(n > count ? n : count, [&](int i) {
        if (found == begin && i < count) FindPlace(first, count, i, m);
        if (i < n) FindSegment(first, count, found, i, m);
      });
      int from = 0;
      do {
        const int staged = n - from < most ? n - from : most;
        Stage(block, from, staged, columns, m);
        const int32_t at = found + from;
        AddStaged(block, {at, staged, at == begin, at + staged >= end}, count, columns, checked, m);
        from += staged;
      } while (from < n);
      found += n;
    } while (found < end);
  }

  // False: the row stays unchanged, and nothing is sent for it.
  PBX_HOST_DEVICE bool Check(const float* row, bool bad, float* sums, int columns) const {
    if (!bad) return true;
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

  // The range of the occurrences of the plan's rows [first, last), within those of the plan.
  PBX_HOST_DEVICE int32_t BeginOf(int64_t first) const {
    const int32_t begin = plan[3 + plan[1] + first];
    return begin > 0 ? begin : 0;
  }
  PBX_HOST_DEVICE int32_t EndOf(int64_t last) const {
    const int32_t end = plan[3 + plan[1] + last];
    return end < 0 ? 0 : (end < plan[2] ? end : plan[2]);
  }

  // Whether the plan is well formed at row r of a tile of `count` rows, and the table has the row.
  PBX_HOST_DEVICE bool IsSound(int64_t first, int count, int r) const {
    const int32_t* const ids = plan + 3 + first;
    const int32_t* const starts = plan + 3 + plan[1] + first;
    const bool ascends = first + r == 0 || ids[r - 1] < ids[r];
    return starts[r] >= BeginOf(first) && starts[r] <= starts[r + 1] &&
           starts[r + 1] <= EndOf(first + count) && ascends && table.Has(ids[r]);
  }

  // places: row r of the tile that begins at row `first` of the plan. -1: it is not sound.
  PBX_HOST_DEVICE void FindPlace(int64_t first, int count, int r, const SumMemory& m) const {
    const bool sound = IsSound(first, count, r);
    const int32_t* const starts = plan + 3 + plan[1] + first;
    m.places[r] = sound ? plan[3 + first + r] : -1;
    m.begins[r] = sound ? starts[r] : 0;
    m.ends[r] = sound ? starts[r + 1] : 0;
    m.bad[r] = 0;
    if (!sound) AddTo(&table.report->out_of_range, 1);
    if (first + r != 0) return;
    AddTo(&table.report->rows_pushed, static_cast<uint64_t>(plan[1]));
    AddTo(&table.report->ids_pushed, static_cast<uint64_t>(plan[2]));
  }
};

// The most rows that a plan of plan_size values can have. A plan has 3 + U + (U + 1) + M values,
// and M >= U.
inline uint64_t MostRowsOf(uint64_t plan_size) { return (plan_size - 4) / 3; }

}  // namespace pbx::hbm
