// The push of a batch. A block copies some rows of the plan into its shared memory and merges their
// gradients there. One thread per row applies accessor::Push, the same function as on the host.
// Then the block writes the rows back. Rows and gradients are read and written in whole sectors.
#include "cuda/call.h"
#include "cuda/planned_gradient.h"

namespace pbx::hbm {
namespace {

constexpr int kMostTile = 32;  // rows per block

constexpr int kAnyRule = -1;

// kKind: the rule of embed and embedx, if both have the same. Code for one rule needs half the
// registers of code for all rules, so twice as many blocks share a multiprocessor. kExpand: the
// gradient has columns for expand.
template <int kKind, bool kExpand>
struct Push : PlannedGradient {
  int rows_of_tile;
  // Floats of a row and of a merged gradient in shared memory. Both are odd, so that threads that
  // each have their own row use different banks.
  int row_room, sum_room;

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
    if (first >= unique) return;  // the grid was sized before the plan's size was known
    const int count =
        CountOf(static_cast<uint64_t>(unique), static_cast<uint64_t>(first), rows_of_tile);
    const int words = table.config.layout.words(), plain = 3 + table.config.layout.embedx_dim;
    const int columns = plain + (kExpand ? table.config.layout.expand_dim : 0);
    const int32_t* const starts = plan + 3 + unique + first;
    const int32_t* const segments = plan + 3 + 2 * unique + 1;
    float* const rows = block.shared<float>();
    float* const sums = rows + rows_of_tile * row_room;
    int32_t* const places = reinterpret_cast<int32_t*>(sums + rows_of_tile * sum_room);
    FindPlaces(block, first, count, places);
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
      if constexpr (kExpand) {  // before the check of the other part, as in the MEM tier
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
  const int tile = RowsOfBlock(kMostTile, of_row);
  const Push<kKind, kExpand> body{
      {table.view, plan, plan_size, gradient}, tile, row_room, sum_room};
  return Launch("push", body, TilesOf(MostRowsOf(plan_size), static_cast<uint64_t>(tile)),
                static_cast<size_t>(tile) * of_row, stream);
}

Status CheckAndLaunch(const pbx_hbm_table& table, const int32_t* plan, uint64_t plan_size,
                      const pbx_hbm_gradient& gradient, Stream stream) {
  if (plan_size < 4) {
    return Error(Code::kInvalidArgument, "push: a plan of %llu values, expected at least 4",
                 static_cast<unsigned long long>(plan_size));
  }
  if (gradient.slots < 1 || gradient.instances < 0) {
    return Error(
        Code::kInvalidArgument, "push: slots is %lld and instances %lld, expected at least 1 and 0",
        static_cast<long long>(gradient.slots), static_cast<long long>(gradient.instances));
  }
  const AccessorConfig& config = table.view.config;
  if (gradient.with_expand != 0) {
    if (config.layout.expand_dim == 0) {
      return Error(Code::kInvalidArgument,
                   "push: the gradient has expand columns, but expand_dim of the table is 0");
    }
    return LaunchPush<kAnyRule, true>(table, plan, plan_size, gradient, stream);
  }
  auto launch = LaunchPush<kAnyRule>;
  if (config.embed.kind == config.embedx.kind) {
    switch (config.embed.kind) {
      case RuleKind::kNaive: launch = LaunchPush<static_cast<int>(RuleKind::kNaive)>; break;
      case RuleKind::kAdaGrad: launch = LaunchPush<static_cast<int>(RuleKind::kAdaGrad)>; break;
      case RuleKind::kAdam: launch = LaunchPush<static_cast<int>(RuleKind::kAdam)>; break;
      default: break;  // the rarer rules share one kernel
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
