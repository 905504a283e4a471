// The part that the push of a pass and the merge of a batch share: how a block reads its part of a
// dedup plan and adds up the gradients of a row's occurrences, in the order of row/sum_order.h.
//
// Blocks of their own (SumChunks) sum the whole chunks of frequent rows before. They need no list
// of chunks, because a whole chunk has exactly one place in the plan that is a multiple of kChunk:
// block p searches the row that has place p * kChunk, and if the place is in a whole chunk, sums
// this chunk as sum p. The block that has the row in its tile adds up these sums by the tree, and
// then the rest of the row. Not taken: one block that copies the next occurrences of a row while it
// adds others, which would keep all sums in the order of occurrences, but is a chain of additions
// as long as the row.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cuda/call.h"
#include "row/sum_order.h"

namespace pbx::hbm {

constexpr int kMostFound = kThreads;  // occurrences whose segments are found at once
constexpr int kStageFloats = 3072;    // at least; with 64 columns, 48 occurrences
static_assert(kChunk <= kMostFound);

// The part of a block's shared memory in which the sums of its rows are made. Afterwards,
// gradient_at, instance and the stage may be used for something else.
struct SumMemory {
  int64_t* gradient_at;    // (kMostFound) where column 0 would be in grad
  int32_t* instance;       // (kMostFound) -1: the batch has no such instance
  int32_t *places, *bad;   // (rows of the tile)
  int32_t *begins, *ends;  // (rows of the tile) of their occurrences; see SumRows
  int32_t* shifts;         // (rows of the tile) see LeaveOutChunks
  float* sums;             // (rows of the tile, room)
  float* stage;            // (stage floats)
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
  float* chunk_sums;  // (chunks, columns), of SumChunks

  size_t SharedBytes() const {
    return 12 * size_t{kMostFound} +
           4 * (static_cast<size_t>(rows_of_tile) * (5 + static_cast<size_t>(room)) +
                static_cast<size_t>(stage_floats));
  }

  PBX_HOST_DEVICE SumMemory MemoryOf(const Block& block) const {
    SumMemory m;
    m.gradient_at = block.shared<int64_t>();
    m.instance = reinterpret_cast<int32_t*>(m.gradient_at + kMostFound);
    m.places = m.instance + kMostFound;
    m.bad = m.places + rows_of_tile;
    m.begins = m.bad + rows_of_tile;
    m.ends = m.begins + rows_of_tile;
    m.shifts = m.ends + rows_of_tile;
    m.sums = reinterpret_cast<float*>(m.shifts + rows_of_tile);
    m.stage = m.sums + rows_of_tile * room;
    return m;
  }

  // Finds the segment of occurrence `at` of the plan.
  PBX_HOST_DEVICE void FindSegment(int64_t first, int count, int32_t at, int o,
                                   const SumMemory& m) const {
    const int64_t segment = plan[3 + 2 * int64_t{plan[1]} + 1 + at] & INT32_MAX;
    const int64_t instance = segment / gradient.slots;
    m.gradient_at[o] =
        segment * gradient.stride + instance * gradient.extra + gradient.weights_at - 2;
    m.instance[o] = instance < gradient.instances ? static_cast<int32_t>(instance) : -1;
    if (m.instance[o] >= 0) return;
    const int32_t* const starts = plan + 3 + plan[1] + first;
    for (int r = 0; r < count; ++r) {
      if (starts[r] > at || at >= starts[r + 1] || !IsSound(first, count, r)) continue;
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

  // The occurrences in the stage, whether their sums begin with 0, and whether they are the last
  // ones of their tile.
  struct Staged {
    int32_t at;
    int n;
    bool begins, is_last;
  };

  // Adds the occurrences of each row that are in the stage, in their order.
  PBX_HOST_DEVICE void AddStaged(const Block& block, const Staged& staged, int count, int columns,
                                 int checked, const SumMemory& m) const {
    block.template ForEachRow<kLanes, 1>(count, [&](int r, int, int lane) {
      const int begin = m.begins[r] > staged.at ? m.begins[r] - staged.at : 0;
      const int end = m.ends[r] - staged.at < staged.n ? m.ends[r] - staged.at : staged.n;
      for (int c = lane; c < columns; c += kLanes) {
        float sum = staged.begins ? 0.0f : m.sums[r * room + c];
#ifdef __CUDA_ARCH__
#pragma unroll 4
#endif
        for (int o = begin; o < end; ++o) sum += m.stage[o * columns + c];
        if (staged.is_last && c >= 2) sum *= gradient.scale;
        if (staged.is_last && c < checked && !rule::Finite(sum)) m.bad[r] = 1;
        m.sums[r * room + c] = sum;
      }
    });
  }

  // Of a row whose occurrences are at [begin, end) of the plan: sum 0 of its whole chunks.
  PBX_HOST_DEVICE float* ChunkSums(int32_t begin, int columns) const {
    return chunk_sums + (int64_t{begin} + kChunk - 1) / kChunk * columns;
  }

  // For a tile of kChunk occurrences or more: finds the places of its rows, sets the sums of each
  // row to those of its whole chunks, and makes begins and ends count only the other occurrences,
  // of which it returns the number. Occurrence o of row r is then at o + shifts[r] of the plan.
  PBX_HOST_DEVICE int32_t LeaveOutChunks(const Block& block, int64_t first, int count, int columns,
                                         const SumMemory& m) const {
    block.ForEach(count, [&](int r) { FindPlace(first, count, r, m); });
    for (int r = 0; r < count; ++r) {
      const int64_t chunks = (m.ends[r] - m.begins[r]) / kChunk;
      float* const sums = ChunkSums(m.begins[r], columns);
      for (int64_t s = 1; s < chunks; s *= 2) {
        block.ForEach(static_cast<int>((chunks + s - 1) / (2 * s)) * columns, [&](int i) {
          float* const sum = sums + i / columns * 2 * s * columns + i % columns;
          *sum += sum[s * columns];
        });
      }
    }
    block.ForEach(count * columns, [&](int i) {
      const int r = i / columns, c = i % columns;
      const bool has = m.ends[r] - m.begins[r] >= kChunk;
      m.sums[r * room + c] = has ? ChunkSums(m.begins[r], columns)[c] : 0.0f;
    });
    block.ForEach(1, [&](int) {
      int32_t rest = 0;
      for (int r = 0; r < count; ++r) {
        const int32_t more = (m.ends[r] - m.begins[r]) % kChunk;
        m.shifts[r] = m.ends[r] - more - rest;
        m.begins[r] = rest;
        m.ends[r] = rest += more;
      }
    });
    return m.ends[count - 1];
  }

  // The place in the plan of occurrence o, after LeaveOutChunks.
  PBX_HOST_DEVICE int32_t PlaceOf(int32_t o, const SumMemory& m) const {
    int r = 0;
    while (m.ends[r] <= o) ++r;
    return o + m.shifts[r];
  }

  // Finds the places of the rows of the plan from `first` on, and sums their gradients over their
  // segments, in their order. The occurrences of a tile follow each other in the plan. The block
  // copies them to shared memory, some at a time, and adds them there, so that the sum of a row
  // with hundreds of occurrences does not wait for memory at each of them. bad: whether one of the
  // first `checked` sums is not finite.
  PBX_HOST_DEVICE void SumRows(const Block& block, int64_t first, int count, int columns,
                               int checked, const SumMemory& m) const {
    int32_t begin = BeginOf(first), end = EndOf(first + count);
    const bool has_chunks = end - begin >= kChunk;  // or may have
    if (has_chunks) {
      end = LeaveOutChunks(block, first, count, columns, m);
      begin = 0;
    }
    const int most = stage_floats / columns;
    int32_t found = begin;
    do {
      const int left = end > found ? end - found : 0, n = left < kMostFound ? left : kMostFound;
      block.ForEach(n > count ? n : count, [&](int i) {
        if (found == begin && i < count && !has_chunks) FindPlace(first, count, i, m);
        if (i >= n) return;
        FindSegment(first, count, has_chunks ? PlaceOf(found + i, m) : found + i, i, m);
      });
      int from = 0;
      do {
        const int staged = n - from < most ? n - from : most;
        Stage(block, from, staged, columns, m);
        const int32_t at = found + from;
        const bool begins = at == begin && !has_chunks;
        AddStaged(block, {at, staged, begins, at + staged >= end}, count, columns, checked, m);
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

// Block p sums the whole chunk that has place p * kChunk of the plan.
struct SumChunks : PlannedGradient<0> {
  int columns;

  PBX_HOST_DEVICE void operator()(const Block& block, int64_t p) const {
    const int64_t place = p * kChunk;
    if (!Fits() || place >= plan[2]) return;  // the push counts a plan that does not fit
    const SumMemory m = MemoryOf(block);
    const int64_t row = RowAt(block, place, m);
    const int32_t* const starts = plan + 3 + plan[1] + row;
    if (!IsSound(row, 1, 0) || place < starts[0]) return;
    const int64_t at = place - (place - starts[0]) % kChunk;
    if (at + kChunk > starts[1]) return;
    block.ForEach(kChunk, [&](int o) { FindSegment(row, 1, static_cast<int32_t>(at) + o, o, m); });
    const int most = stage_floats / columns;
    for (int from = 0; from < kChunk; from += most) {
      const int staged = kChunk - from < most ? kChunk - from : most;
      Stage(block, from, staged, columns, m);
      block.ForEach(columns, [&](int c) {
        float sum = from == 0 ? 0.0f : m.sums[c];
        for (int o = 0; o < staged; ++o) sum += m.stage[o * columns + c];
        m.sums[c] = sum;
        if (from + staged == kChunk) chunk_sums[p * columns + c] = sum;
      });
    }
  }

  // The last row that begins at or before a place, if starts ascend. Each turn divides the rows
  // among all threads. It leaves the result of the turn before alone: a thread may still read it.
  PBX_HOST_DEVICE int64_t RowAt(const Block& block, int64_t place, const SumMemory& m) const {
    const int32_t* const starts = plan + 3 + plan[1];
    int64_t first = 0, rows = plan[1];
    for (int turn = 0; rows > 1; ++turn) {
      int32_t* const found = turn % 2 == 0 ? m.begins : m.ends;
      const int64_t step = (rows + kThreads - 1) / kThreads;
      block.ForEach(kThreads, [&](int i) {
        const int64_t begin = i * step, end = begin + step;
        if (begin >= rows || (i != 0 && starts[first + begin] > place)) return;
        if (end < rows && starts[first + end] <= place) return;
        *found = i;
      });
      first += *found * step;
      rows = rows - *found * step < step ? rows - *found * step : step;
    }
    return first;
  }
};

// The most rows that a plan of plan_size values can have. A plan has 3 + U + (U + 1) + M values,
// and M >= U.
inline uint64_t MostRowsOf(uint64_t plan_size) { return (plan_size - 4) / 3; }

// Sums the whole chunks of a plan, which has plan_size - 4 occurrences at most, into `sums`, of
// which it returns the beginning. columns: of the gradient.
inline Result<float*> LaunchSumChunks(const TableView& table, const int32_t* plan,
                                      uint64_t plan_size, const pbx_hbm_gradient& gradient,
                                      int columns, Memory* sums, Stream stream) {
  if (plan_size < 4 + kChunk) return Result<float*>(nullptr);
  const uint64_t chunks = TilesOf(plan_size - 4, kChunk);
  PBX_RETURN_IF_ERROR(
      sums->Grow("sums of frequent rows", chunks * static_cast<uint64_t>(columns) * 4));
  const SumChunks body{{table, plan, plan_size, gradient, 1, columns,
                        std::max(kStageFloats, columns), sums->as<float>()},
                       columns};
  PBX_RETURN_IF_ERROR(Launch("sums of frequent rows", body, chunks, body.SharedBytes(), stream));
  return Result<float*>(sums->as<float>());
}

}  // namespace pbx::hbm
