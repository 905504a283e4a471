// The host's tier behind C functions: pull, pull_pooled and push of ops/table on plain arrays. Not
// part of any product.
#include <cstdint>
#include <cstring>
#include <vector>

#include "cuda/hbm.h"
#include "reference.h"
#include "row/codec.h"
#include "row/plan.h"
#include "table/count_columns.h"
#include "table/kernels.h"

namespace {

pbx::RuleConfig RuleOf(const pbx_hbm_rule& from) {
  pbx::RuleConfig to;
  to.kind = static_cast<pbx::RuleKind>(from.kind);
  to.learning_rate = from.learning_rate;
  to.initial_range = from.initial_range;
  to.initial_g2sum = from.initial_g2sum;
  to.beta1 = from.beta1;
  to.beta2 = from.beta2;
  to.epsilon = from.epsilon;
  to.beta = from.beta;
  to.l1 = from.l1;
  to.l2 = from.l2;
  to.min_bound = from.min_bound;
  to.max_bound = from.max_bound;
  return to;
}

pbx::AccessorConfig AccessorOf(const pbx_hbm_config& from) {
  pbx::AccessorConfig to;
  to.seed = from.seed;
  to.nonclk_coeff = from.nonclk_coeff;
  to.click_coeff = from.click_coeff;
  to.embedx_threshold = from.embedx_threshold;
  to.show_scale = from.show_scale != 0;
  to.embed = RuleOf(from.embed);
  to.embedx = RuleOf(from.embedx);
  to.layout.embedx_dim = from.embedx_dim;
  to.layout.embed_state = pbx::rule::StateSize(to.embed.kind, 1);
  to.layout.embedx_state = pbx::rule::StateSize(to.embedx.kind, from.embedx_dim);
  if (from.expand_dim != 0) {
    to.expand = RuleOf(from.expand);
    to.layout.expand_dim = from.expand_dim;
    to.layout.expand_state = pbx::rule::StateSize(to.expand.kind, from.expand_dim);
  }
  to.slot_rates = from.slot_rates;
  return to;
}

pbx::RowBlock BlockOf(const pbx::AccessorConfig& config, const uint64_t* keys, float* rows) {
  return {reinterpret_cast<char*>(rows), keys, config.layout.bytes(), &config};
}

// The expand part of a push, as ops/table/extended.cc has it; one segment an instance.
void PushExpand(const pbx::AccessorConfig& config, float* rows, const int32_t* plan,
                const pbx_hbm_gradient& gradient) {
  const int32_t* const starts = plan + 3 + plan[1];
  const int32_t* const segments = starts + plan[1] + 1;
  const auto dim = static_cast<size_t>(config.layout.expand_dim);
  const auto at = static_cast<size_t>(3 + config.layout.embedx_dim);
  for (int32_t u = 0; u < plan[1]; ++u) {
    pbx::ColumnSums merged{std::vector<float>(dim + 1)};  // expand, show
    const auto add = [&](int64_t i, pbx::ColumnSums* to) {
      const int64_t segment = segments[i] & INT32_MAX;
      for (size_t c = 0; c < dim; ++c) {
        to->of[c] += gradient.grad[static_cast<size_t>(segment * gradient.stride) + at + c];
      }
      to->of[dim] += gradient.show_click[segment * gradient.show_click_stride];
    };
    pbx::SumInOrder(starts[u], starts[u + 1], add, &merged);
    for (size_t c = 0; c < dim; ++c) merged.of[c] *= gradient.scale;
    pbx::accessor::PushExpand(config, merged.of[dim], merged.of.data(),
                              rows + static_cast<int64_t>(plan[3 + u]) * config.layout.words());
  }
}

}  // namespace

extern "C" {

// keys: (n) mixed. rows: (n, W).
PBX_HBM_API void pbx_reference_create(const pbx_hbm_config* config, const uint64_t* keys,
                                      const uint16_t* slots, uint64_t n, float* rows) {
  const pbx::AccessorConfig accessor = AccessorOf(*config);
  for (uint64_t i = 0; i < n; ++i) {
    pbx::accessor::Create(accessor, keys[i], slots[i],
                          rows + i * static_cast<uint64_t>(accessor.layout.words()));
  }
}

PBX_HBM_API uint64_t pbx_reference_mix(uint64_t feasign) { return pbx::Mix(feasign); }

PBX_HBM_API void pbx_reference_pull(const pbx_hbm_config* config, float* rows, const int32_t* ids,
                                    uint64_t m, float* out) {
  const pbx::AccessorConfig accessor = AccessorOf(*config);
  pbx::ActiveKernels().pull(BlockOf(accessor, nullptr, rows), ids, m, out);
}

PBX_HBM_API void pbx_reference_pull_pooled(const pbx_hbm_config* config, float* rows,
                                           const int32_t* ids, const int32_t* offsets,
                                           uint64_t segments, uint64_t slots, uint64_t extra,
                                           int32_t use_cvm, float* out) {
  const pbx::AccessorConfig accessor = AccessorOf(*config);
  pbx::PooledOutput output;
  output.out = out;
  output.slots = slots;
  output.extra = extra;
  pbx::ActiveKernels().pull_pooled(BlockOf(accessor, nullptr, rows), ids, offsets, 0, segments,
                                   use_cvm != 0, output);
}

// plan: room for 4 + 3 * offsets[segments]. Returns how many int32 it has.
PBX_HBM_API uint64_t pbx_reference_plan(const int32_t* ids, const int32_t* offsets,
                                        uint64_t segments, int32_t stamp, int32_t* plan) {
  std::vector<int32_t> made;
  pbx::BuildPlan(ids, offsets, segments, stamp, &made);
  std::memcpy(plan, made.data(), made.size() * sizeof(int32_t));
  return made.size();
}

PBX_HBM_API void pbx_reference_push(const pbx_hbm_config* config, const uint64_t* keys, float* rows,
                                    const int32_t* plan, const pbx_hbm_gradient* gradient) {
  const pbx::AccessorConfig accessor = AccessorOf(*config);
  pbx::GradientView view = ViewOf(*gradient);
  const auto unique = static_cast<size_t>(plan[1]);
  if (gradient->with_expand != 0) PushExpand(accessor, rows, plan, *gradient);
  pbx::ActiveKernels().push(BlockOf(accessor, keys, rows), plan + 3, plan + 3 + unique,
                            plan + 3 + 2 * unique + 1, 0, unique, view, gradient->day);
}

// Rounds all rows.
PBX_HBM_API void pbx_reference_round(const pbx_hbm_config* config, const uint64_t* keys, uint64_t n,
                                     int32_t precision, uint64_t pass, float* rows) {
  const pbx::RowLayout layout = AccessorOf(*config).layout;
  const pbx::RowCodec codec(layout, static_cast<pbx::Precision>(precision));
  for (uint64_t i = 0; i < n; ++i) {
    codec.Round(config->seed, keys[i], pass, rows + i * static_cast<uint64_t>(layout.words()));
  }
}

}  // extern "C"
