// Rows and pooled rows of a batch. A tile is some rows of the output; neighbouring threads take
// neighbouring floats of it, so that rows are read and written in whole sectors.
#include <utility>

#include "base/log.h"
#include "cuda/call.h"

namespace pbx::hbm {
namespace {

constexpr int kTile = 64;  // rows, or segments

// kDim: embedx_dim where it is a constant, which makes the divisions cheap; 0: any.
template <int kDim>
PBX_HOST_DEVICE int DimOf(const TableView& table) {
  return kDim != 0 ? kDim : table.config.layout.embedx_dim;
}

// Where column c of a pull lies in a row.
PBX_HOST_DEVICE inline int WordOf(int embedx_at, int c) {
  return c < 2 ? RowLayout::kShow + c : (c == 2 ? RowLayout::kEmbed : embedx_at + c - 3);
}

template <int kDim>
struct Pull {
  TableView table;
  const int32_t* ids;
  uint64_t m;
  float* out;

  PBX_HOST_DEVICE void operator()(const Block& block, int64_t tile) const {
    const int columns = 3 + DimOf<kDim>(table), embedx_at = table.config.layout.embedx_at();
    const uint64_t first = static_cast<uint64_t>(tile) * kTile, left = m - first;
    const int count = static_cast<int>(left < kTile ? left : kTile);
    const int32_t* __restrict__ const here = ids + first;
    float* __restrict__ const to = out + first * static_cast<uint64_t>(columns);
    block.ForEach(count * columns, [&](int i) {
      const int r = i / columns, c = i - r * columns;
      const int32_t id = here[r];
      to[i] = id < 0 ? 0.0f : table.row(id)[WordOf(embedx_at, c)];
    });
  }
};

struct Segments {
  const int32_t* ids;
  const int32_t* offsets;
  uint64_t count, slots, extra;
  float* out;
};

template <int kDim, bool kCvm>
struct PullPooled {
  TableView table;
  Segments segments;

  // A word of the rows of ids [begin, end), summed in their order.
  PBX_HOST_DEVICE float Sum(int32_t begin, int32_t end, int word) const {
    float sum = 0.0f;
    for (int32_t i = begin; i < end; ++i) {
      const int32_t id = segments.ids[i];
      if (id >= 0) sum += table.row(id)[word];
    }
    return sum;
  }

  PBX_HOST_DEVICE void operator()(const Block& block, int64_t tile) const {
    constexpr int kCounts = kCvm ? 2 : 0;
    const int columns = kCounts + 1 + DimOf<kDim>(table);
    const int embedx_at = table.config.layout.embedx_at();
    const uint64_t first = static_cast<uint64_t>(tile) * kTile, left = segments.count - first;
    const int count = static_cast<int>(left < kTile ? left : kTile);
    block.ForEach(count * columns, [&](int i) {
      const int t = i / columns, c = i - t * columns;
      const uint64_t segment = first + static_cast<uint64_t>(t);
      const int32_t begin = segments.offsets[segment], end = segments.offsets[segment + 1];
      float value = Sum(begin, end, WordOf(embedx_at, c + 2 - kCounts));
      if (kCvm && c == 0) value = Log(value + 1.0f);
      if (kCvm && c == 1) {
        value = Log(value + 1.0f) - Log(Sum(begin, end, RowLayout::kShow) + 1.0f);
      }
      segments.out[segment * static_cast<uint64_t>(columns) +
                   segment / segments.slots * segments.extra + static_cast<uint64_t>(c)] = value;
    });
  }
};

template <int kDim>
Status LaunchPull(const TableView& table, const int32_t* ids, uint64_t m, float* out,
                  Stream stream) {
  return Launch("pull", Pull<kDim>{table, ids, m, out}, TilesOf(m, kTile), 0, stream);
}

template <int kDim>
Status LaunchPooled(const TableView& table, const Segments& segments, bool cvm, Stream stream) {
  const uint64_t tiles = TilesOf(segments.count, kTile);
  return cvm ? Launch("pull_pooled", PullPooled<kDim, true>{table, segments}, tiles, 0, stream)
             : Launch("pull_pooled", PullPooled<kDim, false>{table, segments}, tiles, 0, stream);
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
  return Call(table->hbm, [&]() -> Status {
    PBX_FOR_DIM(LaunchPull, table->view, ids, m, out, static_cast<Stream>(stream))
  });
}

int pbx_hbm_pull_pooled(const pbx_hbm_table* table, const int32_t* ids, const int32_t* offsets,
                        uint64_t segments, uint64_t slots, uint64_t extra, int32_t use_cvm,
                        float* out, void* stream) {
  return Call(table->hbm, [&]() -> Status {
    if (slots == 0 || segments % slots != 0) {
      return Error(
          Code::kInvalidArgument, "pull_pooled: %llu segments of %llu slots: expected a multiple",
          static_cast<unsigned long long>(segments), static_cast<unsigned long long>(slots));
    }
    const Segments of{ids, offsets, segments, slots, extra, out};
    PBX_FOR_DIM(LaunchPooled, table->view, of, use_cvm != 0, static_cast<Stream>(stream))
  });
}
