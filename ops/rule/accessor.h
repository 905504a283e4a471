// Accessor: creates a row and applies pushes to it. These functions work on one row; the kernels of
// ops/table apply them to many.
//
// It is in ops/rule and not beside the layout because a push applies the rules.
#pragma once

#include "base/hash.h"
#include "row/layout.h"
#include "rule/dispatch.h"

namespace pbx {

struct AccessorConfig {
  uint64_t seed = 1;  // initial weights are a function of (seed, feasign)
  float nonclk_coeff = 0.1f;
  float click_coeff = 1.0f;
  float embedx_threshold = 10.0f;  // embedx is created once score(show, click) reaches it
  bool show_scale = true;  // gradients are divided by the shows of the push, in rules that use it
  RuleConfig embed;
  RuleConfig embedx;
  RuleConfig expand;  // if the layout has expand
  RowLayout layout;
  float rate = 1.0f;          // factor of all learning rates
  float weight_decay = 0.0f;  // see table/decay_clock.h
  // (65536) factor of the learning rates, by the slot of the row; null: all 1.
  const float* slot_rates = nullptr;
  // (65536) by the slot of the row: 1 if pushes add to its counts, 0 if they only train its
  // weights; null: all 1. A pass that is trained twice is counted once.
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

// A new row: no shows, embed_w initialised, embedx absent (zeros).
PBX_HOST_DEVICE inline void Create(const AccessorConfig& config, uint64_t key, uint16_t slot,
                                   float* row) {
  const RowLayout& layout = config.layout;
  for (int i = 0; i < layout.words(); ++i) row[i] = 0.0f;
  SetWord(row, 0, slot);
  row[RowLayout::kEmbed] = InitialWeight(config.seed, key, 0, config.embed.initial_range);
  rule::InitState(config.embed, 1, row + RowLayout::kEmbed, row + layout.embed_state_at());
}

// The divisor of the gradients of a push. If a push has no shows it is 1; PaddleBox divides by zero
// in this case.
PBX_INLINE float ScaleOf(const AccessorConfig& config, float show) {
  return config.show_scale && show > 0.0f ? show : 1.0f;
}

constexpr uint32_t kExpandColumn = 1u << 16;  // of InitialWeight: beyond the columns of embedx

PBX_INLINE float RateOf(const AccessorConfig& config, const float* row) {
  return config.slot_rates == nullptr ? config.rate : config.rate * config.slot_rates[SlotOf(row)];
}

PBX_INLINE float CountedOf(const AccessorConfig& config, const float* row) {
  return config.counted == nullptr ? 1.0f : config.counted[SlotOf(row)];
}

// The rule with a row's learning rate.
PBX_INLINE RuleConfig RuleFor(RuleConfig rule, float rate) {
  rule.learning_rate *= rate;
  return rule;
}

// Gives the row its embedx and its expand: initial weights and initial state.
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

// Gives the weights of a row, and the states of their rules, the values that they had when they
// were new. The counts do not change.
inline void ResetWeights(const AccessorConfig& config, uint64_t key, float* row) {
  const RowLayout& layout = config.layout;
  for (int i = RowLayout::kEmbed; i < layout.counts_at(); ++i) row[i] = 0.0f;
  row[RowLayout::kEmbed] = InitialWeight(config.seed, key, 0, config.embed.initial_range);
  rule::InitState(config.embed, 1, row + RowLayout::kEmbed, row + layout.embed_state_at());
  if (HasEmbedx(row)) CreateEmbedx(config, key, row);
}

// Multiplies embed_w, and embedx and expand, by a factor each. The states do not change.
PBX_INLINE void ScaleWeights(const RowLayout& layout, float embed, float embedx, float* row) {
  row[RowLayout::kEmbed] *= embed;
  if (!HasEmbedx(row)) return;
  for (int i = 0; i < layout.embedx_dim; ++i) row[layout.embedx_at() + i] *= embedx;
  for (int i = 0; i < layout.expand_dim; ++i) row[layout.expand_at() + i] *= embedx;
}

// The counts of a row: its words 1 to 3.
struct Counts {
  float show, click, delta_score;
};

// The counts after a push. counted: CountedOf(row).
PBX_INLINE Counts AddPush(const AccessorConfig& config, const Counts& row, float counted,
                          float show, float click) {
  return {row.show + counted * show, row.click + counted * click,
          row.delta_score + counted * Score(config, show, click)};
}

// What the push of embedx needs to know of a row whose counts and embed_w have been pushed.
struct PushedHead {
  float scale, rate, score;
};

// Applies one merged push to the counts and to embed_w. g: (1) gradient of the sum loss. late:
// occurrences in late lines, which count no shows; the gradients are divided by show + late.
PBX_INLINE PushedHead PushHead(const AccessorConfig& config, float show, float click,
                               const float* g, uint32_t day, float* row, float late = 0.0f) {
  const Counts counts =
      AddPush(config, {row[RowLayout::kShow], row[RowLayout::kClick], row[RowLayout::kDeltaScore]},
              CountedOf(config, row), show, click);
  row[RowLayout::kShow] = counts.show;
  row[RowLayout::kClick] = counts.click;
  row[RowLayout::kDeltaScore] = counts.delta_score;
  SetWord(row, RowLayout::kDay, day);
  const float scale = ScaleOf(config, show + late), rate = RateOf(config, row);
  rule::Update(RuleFor(config.embed, rate), 1, g, scale, row + RowLayout::kEmbed,
               row + config.layout.embed_state_at());
  return {scale, rate, Score(config, counts.show, counts.click)};
}

// PushHead, and one merged push of embedx_w. embedx_g: (dim). dim: the layout's embedx_dim, an
// argument so that it can be a constant. True: the row has reached the score at which embedx is
// created, and the caller must create it. As in PaddleBox, this push only initialises embedx. Its
// embedx gradient is dropped, because it was computed with zeros in place of the missing embedx.
PBX_INLINE bool PushWeights(const AccessorConfig& config, int dim, float show, float click,
                            const float* g, const float* embedx_g, uint32_t day, float* row,
                            float late = 0.0f) {
  const PushedHead head = PushHead(config, show, click, g, day, row, late);
  if (!HasEmbedx(row)) return head.score >= config.embedx_threshold;
  float* embedx = row + config.layout.embedx_at();
  rule::Update(RuleFor(config.embedx, head.rate), dim, embedx_g, head.scale, embedx, embedx + dim);
  return false;
}

// g: (1 + D), embed_w first. PushWeights, and CreateEmbedx if it is due.
PBX_HOST_DEVICE inline void Push(const AccessorConfig& config, uint64_t key, float show,
                                 float click, const float* g, uint32_t day, float* row) {
  if (PushWeights(config, config.layout.embedx_dim, show, click, g, g + 1, day, row)) {
    CreateEmbedx(config, key, row);
  }
}

// Updates the row's expand by its own rule. g: (E) merged gradient of the sum loss. Called before
// Push, so that the push that creates embedx and expand only initialises them. If the whole
// gradient is 0, no slot of the row uses expand, and the row keeps its bits. False if g is not
// finite; then the row is unchanged. late: as for PushWeights.
PBX_HOST_DEVICE inline bool PushExpand(const AccessorConfig& config, float show, const float* g,
                                       float* row, float late = 0.0f) {
  const int dim = config.layout.expand_dim;
  float size = 0.0f;
  for (int i = 0; i < dim; ++i) size += g[i] < 0.0f ? -g[i] : g[i];
  if (!rule::Finite(size)) return false;
  if (size == 0.0f || !HasEmbedx(row)) return true;
  float* const expand = row + config.layout.expand_at();
  rule::Update(RuleFor(config.expand, RateOf(config, row)), dim, g, ScaleOf(config, show + late),
               expand, expand + dim);
  SetFlag(row, kTouched);
  return true;
}

}  // namespace accessor
}  // namespace pbx
