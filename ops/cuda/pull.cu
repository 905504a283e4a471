// Pulls rows and pooled rows of a batch. A tile is some rows of the output; neighbouring threads
// handle neighbouring floats of it, so that rows are read and written in whole sectors.
#include <utility>

#include "base/log.h"
#include "cuda/call.h"

namespace pbx::hbm {
namespace {

constexpr int kTile = 64;  // rows, or segments

// kDim: embedx_dim as a constant, which makes divisions cheap; 0: any.
template <int kDim>
PBX_HOST_DEVICE int DimOf(const TableView& table) {
  return kDim != 0 ? kDim : table.config.layout.embedx_dim;
}

// kExpand: with the columns of expand at the end.
template <int kDim, bool kExpand>
struct Pull {
  TableView table;
  const int32_t* ids;
  uint64_t m;
  float* out;

  PBX_HOST_DEVICE void operator()(const Block& block, int64_t tile) const {
    const RowLayout& layout = table.config.layout;
    const int plain = 3 + DimOf<kDim>(table), embedx_at = layout.embedx_at();
    const int columns = plain + (kExpand ? layout.expand_dim : 0);
    const uint64_t first = static_cast<uint64_t>(tile) * kTile;
    const int count = CountOf(m, first, kTile);
    const int32_t* __restrict__ const here = ids + first;
    float* __restrict__ const to = out + first * static_cast<uint64_t>(columns);
    block.ForEach(count * columns, [&](int i) {
      const int r = i / columns, c = i - r * columns;
      const int32_t id = here[r];
      const int word =
          kExpand && c >= plain ? layout.expand_at() + c - plain : WordOf(embedx_at, c);
      to[i] = table.Has(id) ? table.row(id)[word] : 0.0f;
      if (c == 0 && id != -1 && !table.Has(id)) AddTo(&table.report->out_of_range, 1);
    });
  }
};

template <int kDim, bool kCvm>
struct PullPooled {
  TableView table;
  pbx_hbm_segments segments;
  float* out;

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

  // Called by the thread of the first column, so that an id is counted once.
  PBX_HOST_DEVICE void CountUnknown(int32_t begin, int32_t end) const {
    for (int32_t i = begin; i < end; ++i) {
      const int32_t id = segments.ids[i];
      if (id != -1 && !table.Has(id)) AddTo(&table.report->out_of_range, 1);
    }
  }

  // The sum of a word over the rows of ids [begin, end), in their order.
  PBX_HOST_DEVICE float Sum(int32_t begin, int32_t end, int word) const {
    float sum = 0.0f;
    for (int32_t i = begin; i < end; ++i) {
      const int32_t id = segments.ids[i];
      if (table.Has(id)) sum += table.row(id)[word];
    }
    return sum;
  }

  PBX_HOST_DEVICE void operator()(const Block& block, int64_t tile) const {
    constexpr int kCounts = kCvm ? 2 : 0;
    const int columns = kCounts + 1 + DimOf<kDim>(table);
    const int embedx_at = table.config.layout.embedx_at();
    const uint64_t first = static_cast<uint64_t>(tile) * kTile;
    const int count = CountOf(segments.segments, first, kTile);
    block.ForEach(count * columns, [&](int i) {
      const int t = i / columns, c = i - t * columns;
      const uint64_t segment = first + static_cast<uint64_t>(t);
      int32_t begin = 0, end = 0;
      const bool sound = Bounds(segment, &begin, &end);
      if (!sound) begin = end = 0;
      if (c == 0 && !sound) AddTo(&table.report->out_of_range, 1);
      if (c == 0) CountUnknown(begin, end);
      float value = Sum(begin, end, WordOf(embedx_at, c + 2 - kCounts));
      if (kCvm && c == 0) value = Log(value + 1.0f);
      if (kCvm && c == 1) {
        value = Log(value + 1.0f) - Log(Sum(begin, end, RowLayout::kShow) + 1.0f);
      }
      out[segment * static_cast<uint64_t>(columns) + segment / segments.slots * segments.extra +
          static_cast<uint64_t>(c)] = value;
    });
  }
};

template <int kDim>
Status LaunchPull(const TableView& table, const int32_t* ids, uint64_t m, float* out,
                  Stream stream) {
  return Launch("pull", Pull<kDim, false>{table, ids, m, out}, TilesOf(m, kTile), 0, stream);
}

template <int kDim>
Status LaunchPooled(const TableView& table, const pbx_hbm_segments& segments, float* out,
                    Stream stream) {
  const uint64_t tiles = TilesOf(segments.segments, kTile);
  if (segments.use_cvm != 0) {
    const PullPooled<kDim, true> body{table, segments, out};
    return Launch("pull_pooled", body, tiles, 0, stream);
  }
  const PullPooled<kDim, false> body{table, segments, out};
  return Launch("pull_pooled", body, tiles, 0, stream);
}

#define PBX_FOR_DIM(function, ...)                \
  switch (table->view.config.layout.embedx_dim) { \
    case 8: return function<8>(__VA_ARGS__);      \
    case 16: return function<16>(__VA_ARGS__);    \
    case 32: return function<32>(__VA_ARGS__);    \
    case 64: return function<64>(__VA_ARGS__);    \
    case 128: return function<128>(__VA_ARGS__);  \
    default: return function<0>(__VA_ARGS__);     \
  }

}  // namespace
}  // namespace pbx::hbm

using namespace pbx;       // NOLINT(google-build-using-namespace): the C interface is outside of it
using namespace pbx::hbm;  // NOLINT(google-build-using-namespace)

int pbx_hbm_pull(const pbx_hbm_table* table, const int32_t* ids, uint64_t m, float* out,
                 void* stream) {
  return TimedCall(table->hbm, &table->hbm->pulls, stream, [&]() -> Status {
    PBX_FOR_DIM(LaunchPull, table->view, ids, m, out, static_cast<Stream>(stream))
  });
}

int pbx_hbm_pull_extended(const pbx_hbm_table* table, const int32_t* ids, uint64_t m, float* out,
                          void* stream) {
  return TimedCall(table->hbm, &table->hbm->pulls, stream, [&]() -> Status {
    if (table->view.config.layout.expand_dim == 0) {
      return Error(Code::kInvalidArgument,
                   "pull_extended: expand_dim is 0, rows have no expand part");
    }
    return Launch("pull_extended", Pull<0, true>{table->view, ids, m, out}, TilesOf(m, kTile), 0,
                  static_cast<Stream>(stream));
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
    PBX_FOR_DIM(LaunchPooled, table->view, *segments, out, static_cast<Stream>(stream))
  });
}
