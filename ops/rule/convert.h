// RowConverter: converts a row of one table to a row of another table with other slots, widths or
// rules. It keeps the weights, counts and states for which the other layout has a place. The rest
// is as in a new row of the other table, a function of (seed of that table, feasign).
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "row/feasign.h"
#include "rule/accessor.h"

namespace pbx {

// Maps the slots of the first table to slots of the other table.
struct SlotMap {
  static constexpr int32_t kDropped = -1;
  std::vector<int32_t> slots;  // new index of slot 0, 1, ... or kDropped; later slots: unchanged
  bool in_feasigns = false;    // key_space: per_slot: feasigns change with their slot
  // For slot 0, 1, ...: the slot number in its feasigns, before and after. Empty: the slot's index.
  std::vector<std::pair<uint32_t, uint32_t>> keys = {};
  // For each further count of the other table, its index in the first table, or kDropped: it starts
  // at 0.
  std::vector<int32_t> counts = {};

  std::pair<uint32_t, uint32_t> KeysOf(uint16_t slot) const {
    if (slot < keys.size()) return keys[slot];
    return {slot, static_cast<uint32_t>(Of(slot))};
  }
  int32_t Of(uint16_t slot) const { return slot < slots.size() ? slots[slot] : slot; }
  // Whether the map changes keys of rows. Then the order of rows changes too.
  bool MovesKeys() const {
    if (!in_feasigns) return false;
    for (size_t i = 0; i < slots.size(); ++i) {
      if (slots[i] == kDropped) continue;
      const auto [from, to] = KeysOf(static_cast<uint16_t>(i));
      if (from != to) return true;
    }
    return false;
  }
};

class RowConverter {
 public:
  RowConverter(const AccessorConfig& from, const AccessorConfig& to, SlotMap map)
      : from_(from), to_(to), map_(std::move(map)) {}

  bool keeps_embedx() const { return from_.layout.embedx_dim == to_.layout.embedx_dim; }
  bool keeps_expand() const {
    return to_.layout.expand_dim != 0 && from_.layout.expand_dim == to_.layout.expand_dim;
  }

  // False: the row's slot is dropped. row: (words of from), with all life events applied; out:
  // (words of to). *key: the row's key in the first table, replaced by its key in the other.
  bool Convert(const float* row, uint64_t* key, float* out) const {
    const int32_t slot = map_.Of(SlotOf(row));
    if (slot == SlotMap::kDropped) return false;
    if (map_.in_feasigns) {
      const auto [from, to] = map_.KeysOf(SlotOf(row));
      if (from != to) *key = KeyOf(FeasignMoved(FeasignOf(*key), from, to));
    }
    const RowLayout& a = from_.layout;
    const RowLayout& b = to_.layout;
    accessor::Create(to_, *key, static_cast<uint16_t>(slot), out);
    std::copy(row + RowLayout::kShow, row + RowLayout::kEmbed + 1, out + RowLayout::kShow);
    for (size_t c = 0; c < map_.counts.size(); ++c) {
      if (map_.counts[c] == SlotMap::kDropped) continue;
      out[static_cast<size_t>(b.counts_at()) + c] = row[a.counts_at() + map_.counts[c]];
    }
    State(from_.embed, to_.embed, 1, row + a.embed_state_at(), out + RowLayout::kEmbed,
          out + b.embed_state_at());
    if (!HasEmbedx(row)) return true;
    SetFlag(out, kHasEmbedx);
    if (!keeps_embedx() || (b.expand_dim != 0 && !keeps_expand())) {
      accessor::CreateEmbedx(to_, *key, out);
    }
    if (keeps_embedx()) {
      Part(from_.embedx, to_.embedx, b.embedx_dim, row + a.embedx_at(), out + b.embedx_at());
    }
    if (keeps_expand()) {
      Part(from_.expand, to_.expand, b.expand_dim, row + a.expand_at(), out + b.expand_at());
    }
    return true;
  }

 private:
  // The state of another rule has another meaning, so it is initialised for the present weights.
  static void State(const RuleConfig& from, const RuleConfig& to, int dim, const float* state,
                    const float* weights, float* out) {
    if (from.kind == to.kind) {
      std::copy_n(state, rule::StateSize(to.kind, dim), out);
    } else {
      rule::InitState(to, dim, weights, out);
    }
  }
  // Copies weights and the state behind them.
  static void Part(const RuleConfig& from, const RuleConfig& to, int dim, const float* in,
                   float* out) {
    std::copy_n(in, dim, out);
    State(from, to, dim, in + dim, out, out + dim);
  }

  AccessorConfig from_, to_;
  SlotMap map_;
};

}  // namespace pbx
