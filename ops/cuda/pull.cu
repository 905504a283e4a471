// Pulls rows and pooled rows of a batch. A tile is some rows of the output. One thread for each of
// them checks what it names. Then the block makes the tile in shared memory, where neighbouring
// threads handle neighbouring floats of a row, and copies it to the output in whole sectors.
#include <utility>

#include "base/log.h"
#include "cuda/call.h"

namespace pbx::hbm {
namespace {

// kExpand: with the columns of expand at the end.
template <int kDim, bool kExpand>
struct Pull {
  TableView table;
  const int32_t* ids;
  uint64_t m;
  float* out;
  int rows_of_tile;

  PBX_HOST_DEVICE void operator()(const Block& block, int64_t tile) const {
    const RowLayout& layout = table.config.layout;
    const int plain = 3 + DimOf<kDim>(table), embedx_at = layout.embedx_at();
    const int columns = plain + (kExpand ? layout.expand_dim : 0);
    const uint64_t first = static_cast<uint64_t>(tile) * static_cast<uint64_t>(rows_of_tile);
    const int count = CountOf(m, first, rows_of_tile);
    float* const made = block.shared<float>();  // (rows_of_tile, columns), as in the output
    int32_t* const places = reinterpret_cast<int32_t*>(made + rows_of_tile * columns);
    block.ForEach(count, [&](int r) {
      const int32_t id = ids[first + static_cast<uint64_t>(r)];
      places[r] = table.Has(id) ? id : -1;
      if (id != -1 && places[r] < 0) AddTo(&table.report->out_of_range, 1);
    });
    constexpr int kLanes = kLanesOf<kDim>;
    block.ForEachRow<kLanes, kRowsTogether>(count, [&](int r0, int step, int lane) {
      for (int base = lane; base < columns; base += kLanes * kColumns) {
        float values[kRowsTogether][kColumns];
        PBX_UNROLL
        for (int k = 0; k < kRowsTogether; ++k) {
          const int r = r0 + k * step;
          const int32_t place = r < count ? places[r] : -1;
          const float* const row = table.row(place < 0 ? 0 : place);
          PBX_UNROLL
          for (int j = 0; j < kColumns; ++j) {
            const int c = base + j * kLanes;
            const int word =
                kExpand && c >= plain ? layout.expand_at() + c - plain : WordOf(embedx_at, c);
            values[k][j] = place >= 0 && c < columns ? row[word] : 0.0f;
          }
        }
        PBX_UNROLL
        for (int k = 0; k < kRowsTogether; ++k) {
          const int r = r0 + k * step;
          PBX_UNROLL
          for (int j = 0; j < kColumns; ++j) {
            const int c = base + j * kLanes;
            if (r < count && c < columns) made[r * columns + c] = values[k][j];
          }
        }
      }
    });
    block.CopyOut(made, count * columns, out + first * static_cast<uint64_t>(columns));
  }
};

// What a block of PullPooled knows of a segment, in its shared memory.
struct PooledSegment {
  int32_t begin, end;
  int32_t first;  // the row of its first id, or -1
};

template <int kDim, bool kCvm>
struct PullPooled {
  static constexpr int kCounts = kCvm ? 2 : 0;
  TableView table;
  pbx_hbm_segments segments;
  float* out;
  int rows_of_tile;  // segments of a block

  // The range of a segment's ids. False: it is not within the batch.
  PBX_HOST_DEVICE bool Bounds(uint64_t segment, int32_t* begin, int32_t* end) const {
    uint64_t list = segment;
    if (segments.list_of != nullptr) {
      list = static_cast<uint64_t>(static_cast<uint32_t>(segments.list_of[segment]));
      if (list >= segments.lists) return false;
    }
    *begin = segments.offsets[list];
    *end = segments.offsets[list + 1];
    return *begin >= 0 && *begin <= *end && static_cast<uint64_t>(*end) <= segments.nnz;
  }

  // The row of an id, or -1.
  PBX_HOST_DEVICE int32_t RowOf(int32_t i) const {
    const int32_t id = segments.ids[i];
    return table.Has(id) ? id : -1;
  }

  // Counts ids without a row. Each of `lanes` threads looks at some of the ids.
  PBX_HOST_DEVICE void CountUnknown(const PooledSegment& here, int lane, int lanes) const {
    for (int32_t i = here.begin + lane; i < here.end; i += lanes) {
      const int32_t id = segments.ids[i];
      if (id != -1 && !table.Has(id)) AddTo(&table.report->out_of_range, 1);
    }
  }

  // Adds the word of the rows of ids [begin, end) to a sum, in their order.
  PBX_HOST_DEVICE float Added(float sum, int32_t begin, int32_t end, int word) const {
#ifdef __CUDA_ARCH__
#pragma unroll 4
#endif
    for (int32_t i = begin; i < end; ++i) {
      const int32_t id = segments.ids[i];
      if (table.Has(id)) sum += table.row(id)[word];
    }
    return sum;
  }

  PBX_HOST_DEVICE PooledSegment Look(uint64_t segment) const {
    PooledSegment found{};
    if (!Bounds(segment, &found.begin, &found.end)) {
      found.begin = found.end = 0;
      AddTo(&table.report->out_of_range, 1);
    }
    found.first = found.begin < found.end ? RowOf(found.begin) : -1;
    return found;
  }

  // Sums the rows of each segment into made: (count, columns). The first columns are the counts.
  PBX_HOST_DEVICE void Pool(const Block& block, const PooledSegment* here, int count, int columns,
                            float* made) const {
    constexpr int kLanes = kLanesOf<kDim>;
    const int embedx_at = table.config.layout.embedx_at();
    block.ForEachRow<kLanes, kRowsTogether>(count, [&](int t0, int step, int lane) {
      for (int k = 0; k < kRowsTogether && t0 + k * step < count; ++k) {
        CountUnknown(here[t0 + k * step], lane, kLanes);
      }
      for (int base = lane; base < columns; base += kLanes * kColumns) {
        float sums[kRowsTogether][kColumns];
        PBX_UNROLL
        for (int k = 0; k < kRowsTogether; ++k) {
          const int t = t0 + k * step;
          const int32_t place = t < count ? here[t].first : -1;
          const float* const row = table.row(place < 0 ? 0 : place);
          PBX_UNROLL
          for (int j = 0; j < kColumns; ++j) {
            const int c = base + j * kLanes, word = WordOf(embedx_at, c + 2 - kCounts);
            sums[k][j] = 0.0f + (place >= 0 && c < columns ? row[word] : 0.0f);
          }
        }
        PBX_UNROLL
        for (int k = 0; k < kRowsTogether; ++k) {
          const int t = t0 + k * step;
          if (t >= count) break;
          PBX_UNROLL
          for (int j = 0; j < kColumns; ++j) {
            const int c = base + j * kLanes, word = WordOf(embedx_at, c + 2 - kCounts);
            if (c >= columns) break;
            made[t * columns + c] = Added(sums[k][j], here[t].begin + 1, here[t].end, word);
          }
        }
      }
    });
  }

  PBX_HOST_DEVICE void operator()(const Block& block, int64_t tile) const {
    const int columns = kCounts + 1 + DimOf<kDim>(table);
    const uint64_t first = static_cast<uint64_t>(tile) * static_cast<uint64_t>(rows_of_tile);
    const int count = CountOf(segments.segments, first, rows_of_tile);
    float* const made = block.shared<float>();  // (rows_of_tile, columns)
    PooledSegment* const here = reinterpret_cast<PooledSegment*>(made + rows_of_tile * columns);
    block.ForEach(count, [&](int t) { here[t] = Look(first + static_cast<uint64_t>(t)); });
    Pool(block, here, count, columns, made);
    if (kCvm) {
      block.ForEach(count, [&](int t) {
        float* const counts = made + t * columns;
        counts[0] = Log(counts[0] + 1.0f);
        counts[1] = Log(counts[1] + 1.0f) - counts[0];
      });
    }
    if (segments.extra == 0) {
      return block.CopyOut(made, count * columns, out + first * static_cast<uint64_t>(columns));
    }
    block.ForEachRow<32, 1>(count, [&](int t, int, int lane) {
      const uint64_t segment = first + static_cast<uint64_t>(t);
      float* const to = out + segment * static_cast<uint64_t>(columns) +
                        segment / segments.slots * segments.extra;
      for (int c = lane; c < columns; c += 32) to[c] = made[t * columns + c];
    });
  }
};

// Rows of a block: at least four for each group of threads.
template <int kDim>
constexpr int kMostRows = kLanesOf<kDim> == 32 ? 64 : 128;

template <int kDim, bool kExpand>
Status LaunchPull(const TableView& table, const int32_t* ids, uint64_t m, float* out,
                  Stream stream) {
  const RowLayout& layout = table.config.layout;
  const int columns = 3 + layout.embedx_dim + (kExpand ? layout.expand_dim : 0);
  const size_t of_row = (static_cast<size_t>(columns) + 1) * 4;
  const int tile = RowsOfBlock(kMostRows<kDim>, of_row);
  return Launch(kExpand ? "pull_extended" : "pull", Pull<kDim, kExpand>{table, ids, m, out, tile},
                TilesOf(m, static_cast<uint64_t>(tile)), static_cast<size_t>(tile) * of_row,
                stream);
}

template <int kDim, bool kCvm>
Status LaunchPooled(const TableView& table, const pbx_hbm_segments& segments, float* out,
                    Stream stream) {
  using Body = PullPooled<kDim, kCvm>;
  const int columns = Body::kCounts + 1 + table.config.layout.embedx_dim;
  const size_t of_row = static_cast<size_t>(columns) * 4 + sizeof(PooledSegment);
  const int tile = RowsOfBlock(kMostRows<kDim>, of_row);
  return Launch("pull_pooled", Body{table, segments, out, tile},
                TilesOf(segments.segments, static_cast<uint64_t>(tile)),
                static_cast<size_t>(tile) * of_row, stream);
}

#define PBX_FOR_DIM(function, flag, ...)               \
  switch (table->view.config.layout.embedx_dim) {      \
    case 8: return function<8, flag>(__VA_ARGS__);     \
    case 16: return function<16, flag>(__VA_ARGS__);   \
    case 32: return function<32, flag>(__VA_ARGS__);   \
    case 64: return function<64, flag>(__VA_ARGS__);   \
    case 128: return function<128, flag>(__VA_ARGS__); \
    default: return function<0, flag>(__VA_ARGS__);    \
  }

}  // namespace
}  // namespace pbx::hbm

using namespace pbx;       // NOLINT(google-build-using-namespace): the C interface is outside of it
using namespace pbx::hbm;  // NOLINT(google-build-using-namespace)

int pbx_hbm_pull(const pbx_hbm_table* table, const int32_t* ids, uint64_t m, float* out,
                 void* stream) {
  return TimedCall(table->hbm, &table->hbm->pulls, stream, [&]() -> Status {
    PBX_FOR_DIM(LaunchPull, false, table->view, ids, m, out, static_cast<Stream>(stream))
  });
}

int pbx_hbm_pull_extended(const pbx_hbm_table* table, const int32_t* ids, uint64_t m, float* out,
                          void* stream) {
  return TimedCall(table->hbm, &table->hbm->pulls, stream, [&]() -> Status {
    if (table->view.config.layout.expand_dim == 0) {
      return Error(Code::kInvalidArgument,
                   "pull_extended: expand_dim is 0, rows have no expand part");
    }
    return LaunchPull<0, true>(table->view, ids, m, out, static_cast<Stream>(stream));
  });
}

int pbx_hbm_pull_pooled(const pbx_hbm_table* table, const pbx_hbm_segments* segments, float* out,
                        void* stream) {
  return TimedCall(table->hbm, &table->hbm->pulls, stream, [&]() -> Status {
    if (segments->slots == 0 || segments->segments % segments->slots != 0) {
      return Error(Code::kInvalidArgument,
                   "pull_pooled: %llu segments of %llu slots: expected a multiple",
                   static_cast<unsigned long long>(segments->segments),
                   static_cast<unsigned long long>(segments->slots));
    }
    Stream in = static_cast<Stream>(stream);
    if (segments->use_cvm != 0) { PBX_FOR_DIM(LaunchPooled, true, table->view, *segments, out, in) }
    PBX_FOR_DIM(LaunchPooled, false, table->view, *segments, out, in)
  });
}
