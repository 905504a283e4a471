// The push of a batch. A block takes some rows of the plan into its own memory, merges their
// gradients there, lets one thread a row apply the accessor's push, the host's own function, and
// writes them back. Rows and gradients are read and written in whole sectors.
#include "cuda/call.h"

namespace pbx::hbm {
namespace {

constexpr int kMostTile = 32;              // rows of a block
constexpr size_t kMostShared = 40 * 1024;  // so that several blocks share a multiprocessor

// NaN and infinities times 0 are NaN.
PBX_HOST_DEVICE inline bool Finite(float x) { return x * 0.0f == 0.0f; }

PBX_HOST_DEVICE inline float Mended(float x, float bound) {
  return Finite(x) ? x : (x > 0 ? bound : (x < 0 ? -bound : 0.0f));
}

constexpr int kAnyRule = -1;

// kKind: the rule of embed and embedx, where it is the same. Code for one rule takes half of the
// registers of code for all, so that twice as many blocks share a multiprocessor. kExpand: the
// gradient has columns for expand.
template <int kKind, bool kExpand>
struct Push {
  TableView table;
  const int32_t* plan;
  uint64_t plan_size;
  pbx_hbm_gradient gradient;
  int rows_of_tile;
  // Floats of a row and of a merged gradient in the block's memory: odd, so that threads with a row
  // each use different banks.
  int row_room, sum_room;

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

  // False: the row stays as it is.
  PBX_HOST_DEVICE bool Check(const float* row, float* sums, int columns) const {
    bool good = true;
    for (int c = 0; c < columns; ++c) good = good && Finite(sums[c]);
    if (good) return true;
    CountBad(row);
    if (gradient.clip == 0) return false;
    for (int c = 0; c < 2; ++c) sums[c] = Finite(sums[c]) ? sums[c] : 0.0f;
    for (int c = 2; c < columns; ++c) sums[c] = Mended(sums[c], gradient.bound);
    return true;
  }

  PBX_HOST_DEVICE void CountBad(const float* row) const {
    AddTo(&table.report->bad_rows, 1);
    AddTo(table.bad_by_slot + SlotOf(row), 1);
  }

  // Whether the plan is of these rows, and as long as it says.
  PBX_HOST_DEVICE bool Fits() const {
    const int64_t unique = plan[1], occurrences = plan[2];
    return plan[0] == table.stamp && unique >= 0 && occurrences >= 0 &&
           static_cast<uint64_t>(4 + 2 * unique + occurrences) <= plan_size;
  }

  PBX_HOST_DEVICE void operator()(const Block& block, int64_t tile) const {
    if (!Fits()) {
      if (tile == 0) block.ForEach(1, [&](int) { AddTo(&table.report->out_of_range, 1); });
      return;
    }
    AccessorConfig config = table.config;
    if constexpr (kKind != kAnyRule) {
      config.embed.kind = config.embedx.kind = static_cast<RuleKind>(kKind);
    }
    const int64_t unique = plan[1], first = tile * rows_of_tile;
    const int32_t occurrences = plan[2];
    if (first >= unique) return;  // tiles were counted before the plan's size was known
    const int count =
        CountOf(static_cast<uint64_t>(unique), static_cast<uint64_t>(first), rows_of_tile);
    const int words = table.config.layout.words(), plain = 3 + table.config.layout.embedx_dim;
    const int columns = plain + (kExpand ? table.config.layout.expand_dim : 0);
    const int32_t* const ids = plan + 3 + first;
    const int32_t* const starts = plan + 3 + unique + first;
    const int32_t* const segments = plan + 3 + 2 * unique + 1;
    float* const rows = block.shared<float>();
    float* const sums = rows + rows_of_tile * row_room;
    int32_t* const places = reinterpret_cast<int32_t*>(sums + rows_of_tile * sum_room);
    // A row that is not there, or whose place in the plan is not: -1.
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
    block.ForEach(count * words, [&](int i) {
      const int r = i / words, word = i % words;
      if (places[r] >= 0) rows[r * row_room + word] = table.row(places[r])[word];
    });
    block.ForEach(count * columns, [&](int i) {
      const int r = i / columns, c = i % columns;
      if (places[r] >= 0) sums[r * sum_room + c] = Sum(segments, starts[r], starts[r + 1], c);
    });
    block.ForEach(count, [&](int r) {
      if (places[r] < 0) return;
      float* const row = rows + r * row_room;
      float* const sum = sums + r * sum_room;
      if constexpr (kExpand) {  // whatever becomes of the other part, as in the host's tier
        if (!accessor::PushExpand(config, sum[0], sum + plain, row)) CountBad(row);
      }
      if (!Check(row, sum, plain)) return;
      SetFlag(row, kTouched);
      accessor::Push(config, table.keys[places[r]], sum[0], sum[1], sum + 2, gradient.day, row);
    });
    block.ForEach(count * words, [&](int i) {
      const int r = i / words, word = i % words;
      if (places[r] >= 0) table.row(places[r])[word] = rows[r * row_room + word];
    });
  }
};

template <int kKind, bool kExpand = false>
Status LaunchPush(const pbx_hbm_table& table, const int32_t* plan, uint64_t plan_size,
                  const pbx_hbm_gradient& gradient, Stream stream) {
  const RowLayout& layout = table.view.config.layout;
  const int columns = 3 + layout.embedx_dim + (kExpand ? layout.expand_dim : 0);
  const int row_room = layout.words() | 1, sum_room = columns | 1;
  const size_t of_row = static_cast<size_t>(row_room + sum_room + 1) * 4;
  int tile = kMostTile;
  while (tile > 1 && static_cast<size_t>(tile) * of_row > kMostShared) tile /= 2;
  // 3 + U + (U + 1) + M values, and no row without an occurrence.
  const uint64_t most_rows = (plan_size - 4) / 3;
  const Push<kKind, kExpand> body{table.view, plan, plan_size, gradient, tile, row_room, sum_room};
  return Launch("push", body, TilesOf(most_rows, static_cast<uint64_t>(tile)),
                static_cast<size_t>(tile) * of_row, stream);
}

Status CheckAndLaunch(const pbx_hbm_table& table, const int32_t* plan, uint64_t plan_size,
                      const pbx_hbm_gradient& gradient, Stream stream) {
  if (plan_size < 4) {
    return Error(Code::kInvalidArgument, "push: a plan of %llu values, 4 are the least",
                 static_cast<unsigned long long>(plan_size));
  }
  if (gradient.slots < 1 || gradient.instances < 0) {
    return Error(Code::kInvalidArgument, "push: slots is %lld and instances %lld, expected 1 and 0",
                 static_cast<long long>(gradient.slots),
                 static_cast<long long>(gradient.instances));
  }
  const AccessorConfig& config = table.view.config;
  if (gradient.with_expand != 0) {
    if (config.layout.expand_dim == 0) {
      return Error(Code::kInvalidArgument,
                   "push: a gradient for expand, expand_dim is 0: rows have no such part");
    }
    return LaunchPush<kAnyRule, true>(table, plan, plan_size, gradient, stream);
  }
  auto launch = LaunchPush<kAnyRule>;
  if (config.embed.kind == config.embedx.kind) {
    switch (config.embed.kind) {
      case RuleKind::kNaive: launch = LaunchPush<static_cast<int>(RuleKind::kNaive)>; break;
      case RuleKind::kAdaGrad: launch = LaunchPush<static_cast<int>(RuleKind::kAdaGrad)>; break;
      case RuleKind::kAdam: launch = LaunchPush<static_cast<int>(RuleKind::kAdam)>; break;
      default: break;  // the rarer ones share one code
    }
  }
  return launch(table, plan, plan_size, gradient, stream);
}

}  // namespace
}  // namespace pbx::hbm

using namespace pbx;       // NOLINT(google-build-using-namespace): the C interface is outside of it
using namespace pbx::hbm;  // NOLINT(google-build-using-namespace)

int pbx_hbm_push(pbx_hbm_table* table, const int32_t* plan, uint64_t plan_size,
                 const pbx_hbm_gradient* gradient, void* stream) {
  return TimedCall(table->hbm, &table->hbm->pushes, stream, [&] {
    return CheckAndLaunch(*table, plan, plan_size, *gradient, static_cast<Stream>(stream));
  });
}
