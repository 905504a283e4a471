// Accessor: the life of a row, from creation through each push. One function for one row; the
// kernels of ops/table call it for many.
//
// It lies with the rules and not with the layout because a push applies them.
#pragma once

#include "base/hash.h"
#include "row/layout.h"
#include "rule/dispatch.h"

namespace pbx {

struct AccessorConfig {
  uint64_t seed = 1;  // of the table: initial weights are a function of (seed, feasign)
  float nonclk_coeff = 0.1f;
  float click_coeff = 1.0f;
  float embedx_threshold = 10.0f;  // embedx is created once score(show, click) reaches it
  bool show_scale = true;  // gradients are divided by the shows of the push (rules that use it)
  RuleConfig embed;
  RuleConfig embedx;
  RuleConfig expand;  // where the layout has that part
  RowLayout layout;
  // (65536) what a slot's learning rates are multiplied by, indexed by the row's slot; null: 1 all.
  const float* slot_rates = nullptr;
  // (65536) 1 where shows and clicks are counted, 0 where a push only learns, indexed by the row's
  // slot; null: counted all. Of a pass that is gone through twice one time counts.
  const float* counted = nullptr;
};

namespace accessor {

PBX_INLINE float Score(const AccessorConfig& config, float show, float click) {
  return (show - click) * config.nonclk_coeff + click * config.click_coeff;
}

// Uniform in [-range, range), a function of (seed, key, column) alone.
PBX_HOST_DEVICE inline float InitialWeight(uint64_t seed, uint64_t key, uint32_t column,
                                           float range) {
  const uint64_t h =
      Mix(Mix(seed + 0x9e3779b97f4a7c15ULL) ^ Mix(key ^ (uint64_t{column} << 40) ^ 0x5eedULL));
  const float u = static_cast<float>(h >> 40) * (1.0f / 16777216.0f);  // 24 bits: exact
  return (2.0f * u - 1.0f) * range;
}

// A row that has never been seen: no shows, embed_w initialised, embedx absent (zeros).
PBX_HOST_DEVICE inline void Create(const AccessorConfig& config, uint64_t key, uint16_t slot,
                                   float* row) {
  const RowLayout& layout = config.layout;
  for (int i = 0; i < layout.words(); ++i) row[i] = 0.0f;
  SetWord(row, 0, slot);
  row[RowLayout::kEmbed] = InitialWeight(config.seed, key, 0, config.embed.initial_range);
  rule::InitState(config.embed, 1, row + RowLayout::kEmbed, row + layout.embed_state_at());
}

// What a push's gradients are divided by. PaddleBox divides by zero where a push has no show.
PBX_INLINE float ScaleOf(const AccessorConfig& config, float show) {
  return config.show_scale && show > 0.0f ? show : 1.0f;
}

constexpr uint32_t kExpandColumn = 1u << 16;  // of InitialWeight: apart from those of embedx

PBX_INLINE float RateOf(const AccessorConfig& config, const float* row) {
  return config.slot_rates == nullptr ? 1.0f : config.slot_rates[SlotOf(row)];
}

PBX_INLINE float CountedOf(const AccessorConfig& config, const float* row) {
  return config.counted == nullptr ? 1.0f : config.counted[SlotOf(row)];
}

// The rule with a row's learning rate.
PBX_INLINE RuleConfig RuleFor(RuleConfig rule, float rate) {
  rule.learning_rate *= rate;
  return rule;
}

// Gives the row its embedx, and its expand with it: initial weights and a fresh state.
PBX_HOST_DEVICE inline void CreateEmbedx(const AccessorConfig& config, uint64_t key, float* row) {
  const RowLayout& layout = config.layout;
  float* embedx = row + layout.embedx_at();
  for (int i = 0; i < layout.embedx_dim; ++i) {
    embedx[i] =
        InitialWeight(config.seed, key, static_cast<uint32_t>(i) + 1, config.embedx.initial_range);
  }
  rule::InitState(config.embedx, layout.embedx_dim, embedx, row + layout.embedx_state_at());
  if (layout.expand_dim != 0) {
    float* expand = row + layout.expand_at();
    for (int i = 0; i < layout.expand_dim; ++i) {
      expand[i] = InitialWeight(config.seed, key, kExpandColumn + static_cast<uint32_t>(i),
                                config.expand.initial_range);
    }
    rule::InitState(config.expand, layout.expand_dim, expand, row + layout.expand_state_at());
  }
  SetFlag(row, kHasEmbedx);
}

// Applies one merged push. g, embedx_g: (1), (dim) gradients of the sum loss; dim: the layout's
// embedx_dim, given apart so that it can be a constant. True: the row has reached the score at
// which embedx is created, which is the caller's to do: the push that creates embedx only
// initialises it, as PaddleBox does, because its gradient was taken at zeros that the row did not
// own.
PBX_INLINE bool PushWeights(const AccessorConfig& config, int dim, float show, float click,
                            const float* g, const float* embedx_g, uint32_t day, float* row) {
  const RowLayout& layout = config.layout;
  const float counted = CountedOf(config, row);
  row[RowLayout::kShow] += counted * show;
  row[RowLayout::kClick] += counted * click;
  row[RowLayout::kDeltaScore] += counted * Score(config, show, click);
  SetWord(row, RowLayout::kDay, day);
  const float scale = ScaleOf(config, show), rate = RateOf(config, row);
  rule::Update(RuleFor(config.embed, rate), 1, g, scale, row + RowLayout::kEmbed,
               row + layout.embed_state_at());
  if (HasEmbedx(row)) {
    float* embedx = row + layout.embedx_at();
    rule::Update(RuleFor(config.embedx, rate), dim, embedx_g, scale, embedx, embedx + dim);
    return false;
  }
  return Score(config, row[RowLayout::kShow], row[RowLayout::kClick]) >= config.embedx_threshold;
}

// g: (1 + D), embed_w first.
PBX_HOST_DEVICE inline void Push(const AccessorConfig& config, uint64_t key, float show,
                                 float click, const float* g, uint32_t day, float* row) {
  if (PushWeights(config, config.layout.embedx_dim, show, click, g, g + 1, day, row)) {
    CreateEmbedx(config, key, row);
  }
}

// Updates the row's expand by its own rule. g: (E) merged gradient of the sum loss. Before the push
// of embedx: the one that creates both parts only initialises them. A row whose gradient is 0 keeps
// its bits: none of its slots asks for expand. False, and the row as it was: g is not finite.
PBX_HOST_DEVICE inline bool PushExpand(const AccessorConfig& config, float show, const float* g,
                                       float* row) {
  const int dim = config.layout.expand_dim;
  float size = 0.0f;
  for (int i = 0; i < dim; ++i) size += g[i] < 0.0f ? -g[i] : g[i];
  if (!(size * 0.0f == 0.0f)) return false;  // infinite, or NaN
  if (size == 0.0f || !HasEmbedx(row)) return true;
  float* const expand = row + config.layout.expand_at();
  rule::Update(RuleFor(config.expand, RateOf(config, row)), dim, g, ScaleOf(config, show), expand,
               expand + dim);
  SetFlag(row, kTouched);
  return true;
}

}  // namespace accessor
}  // namespace pbx
