// The push of a batch. A block merges the gradients of some rows of the plan in its shared memory,
// and copies the rows there. One thread per row applies accessor::Push, the same function as on the
// host. With AdaGrad, the default, it applies PushHead and creates embedx, and all threads share
// the update of embedx. Then the block writes the rows back. Rows and gradients are read and
// written in whole sectors.
#include <algorithm>

#include "cuda/call.h"
#include "cuda/planned_gradient.h"

namespace pbx::hbm {
namespace {

constexpr int kMostTile = 32;  // rows per block

constexpr int kAnyRule = -1;

// kKind: the rule of embed and embedx, if both have the same. Code for one rule needs half the
// registers of code for all rules, so twice as many blocks share a multiprocessor. kDim: see DimOf.
// kExpand: the gradient has columns for expand.
template <int kKind, int kDim, bool kExpand>
struct Push : PlannedGradient<kDim> {
  using Base = PlannedGradient<kDim>;
  using Base::gradient, Base::kLanes, Base::plan, Base::room, Base::rows_of_tile, Base::table;
  int row_room;  // floats of a row in shared memory; odd, as `room`

  // If so, all threads of a block share the update of embedx.
  static constexpr bool kShared = kKind == static_cast<int>(RuleKind::kAdaGrad) && !kExpand;

  // What is needed for the update of a row's embedx. scale is 0 if there is none.
  struct Step {
    float step, scale;
  };

  PBX_HOST_DEVICE Step PushRow(const AccessorConfig& config, int32_t place, const float* sum,
                               float* row) const {
    SetFlag(row, kTouched);
    if constexpr (!kShared) {
      accessor::Push(config, table.keys[place], sum[0], sum[1], sum + 2, gradient.day, row);
      return {0.0f, 0.0f};
    }
    const accessor::PushedHead head =
        accessor::PushHead(config, sum[0], sum[1], sum + 2, gradient.day, row);
    if (!HasEmbedx(row)) {
      if (head.score >= config.embedx_threshold) {
        accessor::CreateEmbedx(config, table.keys[place], row);
      }
      return {0.0f, 0.0f};
    }
    return {rule::AdaGradStep(accessor::RuleFor(config.embedx, head.rate).learning_rate,
                              config.embedx.initial_g2sum, row[config.layout.embedx_state_at()],
                              head.scale),
            head.scale};
  }

  PBX_HOST_DEVICE void operator()(const Block& block, int64_t tile) const {
    if (!this->Fits()) {
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
    const int plain = 3 + DimOf<kDim>(table);
    const int columns = plain + (kExpand ? config.layout.expand_dim : 0);
    const SumMemory m = this->MemoryOf(block);
    this->SumRows(block, first, count, columns, plain, m);
    float* const rows = m.stage;
    static_assert(kMostTile * (sizeof(Step) + 8 * sizeof(float)) <= 8 * kMostFound);
    Step* const steps = reinterpret_cast<Step*>(m.gradient_at);
    float* const lanes = reinterpret_cast<float*>(steps + rows_of_tile);  // (rows, 8)
    ReadRows(block, count, m.places, rows);
    block.ForEach(count, [&](int r) {
      steps[r] = {0.0f, 0.0f};
      if (m.places[r] < 0) return;
      float* const row = rows + r * row_room;
      float* const sum = m.sums + r * room;
      if constexpr (kExpand) {  // before the check of the other part, as in the MEM tier
        if (!accessor::PushExpand(config, sum[0], sum + plain, row)) this->CountBad(row);
      }
      if (!this->Check(row, m.bad[r] != 0, sum, plain)) return;
      steps[r] = PushRow(config, m.places[r], sum, row);
    });
    if constexpr (kShared) {
      block.ForEach(count * 8, [&](int i) {
        if (steps[i / 8].scale == 0.0f) return;
        lanes[i] = rule::SquaresOfLane(m.sums + i / 8 * room + 3, DimOf<kDim>(table), i % 8);
      });
    }
    WriteRows(block, config, count, m, steps, lanes);
  }

  PBX_HOST_DEVICE void ReadRows(const Block& block, int count, const int32_t* places,
                                float* rows) const {
    const int words = table.config.layout.words();
    block.template ForEachRow<kLanes, kRowsTogether>(count, [&](int r0, int step, int lane) {
      for (int base = lane; base < words; base += kLanes * kColumns) {
        float values[kRowsTogether][kColumns];
        PBX_UNROLL
        for (int k = 0; k < kRowsTogether; ++k) {
          const int r = r0 + k * step;
          const int32_t place = r < count ? places[r] : -1;
          const float* const row = table.row(place < 0 ? 0 : place) + base;
          PBX_UNROLL
          for (int j = 0; j < kColumns; ++j) {
            const bool has = place >= 0 && base + j * kLanes < words;
            values[k][j] = has ? row[j * kLanes] : 0.0f;
          }
        }
        PBX_UNROLL
        for (int k = 0; k < kRowsTogether; ++k) {
          const int r = r0 + k * step;
          PBX_UNROLL
          for (int j = 0; j < kColumns; ++j) {
            const int word = base + j * kLanes;
            if (r < count && word < words) rows[r * row_room + word] = values[k][j];
          }
        }
      }
    });
  }

  // Writes the rows back. With kShared, it updates embedx and its state on the way.
  PBX_HOST_DEVICE void WriteRows(const Block& block, const AccessorConfig& config, int count,
                                 const SumMemory& m, const Step* steps, const float* lanes) const {
    const int words = config.layout.words(), embedx_at = config.layout.embedx_at();
    const int dim = DimOf<kDim>(table);
    block.template ForEachRow<kLanes, 1>(count, [&](int r, int, int lane) {
      const int32_t place = m.places[r];
      if (place < 0) return;
      const float* const row = m.stage + r * row_room;
      const float* const embedx_g = m.sums + r * room + 3;
      float* const to = table.row(place);
      const Step step = steps[r];
      for (int word = lane; word < words; word += kLanes) {
        float value = row[word];
        const int i = word - embedx_at;
        if (kShared && step.scale != 0.0f && i >= 0 && i <= dim) {
          if (i < dim) {
            rule::TakeStep(config.embedx, step.step, embedx_g[i], &value);
          } else {
            value = rule::AdaGradGrown(value, rule::SumOfLanes(lanes + 8 * r), step.scale, dim);
          }
        }
        to[word] = value;
      }
    });
  }
};

template <int kKind, int kDim = 0, bool kExpand = false>
Status LaunchPush(pbx_hbm_table* table, const int32_t* plan, uint64_t plan_size,
                  const pbx_hbm_gradient& gradient, Stream stream) {
  const RowLayout& layout = table->view.config.layout;
  const int columns = 3 + layout.embedx_dim + (kExpand ? layout.expand_dim : 0);
  const int row_room = layout.words() | 1, room = columns | 1;
  const size_t of_row = static_cast<size_t>(row_room + room) * 4;
  const int tile = RowsOfBlock(kMostTile, of_row);
  const Result<float*> chunk_sums =
      LaunchSumChunks(table->view, plan, plan_size, gradient, columns, &table->chunk_sums, stream);
  if (!chunk_sums.ok()) return chunk_sums.status();
  const Push<kKind, kDim, kExpand> body{
      {table->view, plan, plan_size, gradient, tile, room,
       std::max({kStageFloats, tile * row_room, columns}), chunk_sums.value()},
      row_room};
  return Launch("push", body, TilesOf(MostRowsOf(plan_size), static_cast<uint64_t>(tile)),
                body.SharedBytes(), stream);
}

// AdaGrad is the default, so it has kernels for the usual sizes.
auto LaunchAdaGrad(int dim) {
  constexpr int kAdaGrad = static_cast<int>(RuleKind::kAdaGrad);
  switch (dim) {
    case 8: return LaunchPush<kAdaGrad, 8>;
    case 16: return LaunchPush<kAdaGrad, 16>;
    case 32: return LaunchPush<kAdaGrad, 32>;
    case 64: return LaunchPush<kAdaGrad, 64>;
    default: return LaunchPush<kAdaGrad>;
  }
}

Status CheckAndLaunch(pbx_hbm_table* table, const int32_t* plan, uint64_t plan_size,
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
  const AccessorConfig& config = table->view.config;
  if (gradient.with_expand != 0) {
    if (config.layout.expand_dim == 0) {
      return Error(Code::kInvalidArgument,
                   "push: the gradient has expand columns, but expand_dim of the table is 0");
    }
    return LaunchPush<kAnyRule, 0, true>(table, plan, plan_size, gradient, stream);
  }
  auto launch = LaunchPush<kAnyRule>;
  if (config.embed.kind == config.embedx.kind) {
    switch (config.embed.kind) {
      case RuleKind::kNaive: launch = LaunchPush<static_cast<int>(RuleKind::kNaive)>; break;
      case RuleKind::kAdaGrad: launch = LaunchAdaGrad(config.layout.embedx_dim); break;
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
    return CheckAndLaunch(table, plan, plan_size, *gradient, static_cast<Stream>(stream));
  });
}
