// Life events: changes to all rows (a day's end, a shrink, a saved delta) that are applied later.
// An event is appended to the manifest. Each row holds the number of the last event applied to it,
// and the code that reads a row (staging, compaction, export) first applies the later events in
// order. So the decay of a table of terabytes costs nothing until a row is needed. Fold leaves out
// the events that later ones make superfluous, so the numbers of a list ascend with gaps.
//
// The events that change counts read and write only words 0 to 5 of a row, and its last words if it
// has further counts (docs/formats/row.md). The formulas are those of PaddleBox's
// CtrCommonAccessor: Shrink and UpdateStatAfterSave. An event that changes weights also rounds
// embedx to the precision of the tiers. So the bits of a row depend neither on when the event is
// applied, nor on whether the row is packed then.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <tuple>
#include <vector>

#include "row/codec.h"
#include "rule/accessor.h"

namespace pbx {

enum class LifeKind : uint8_t {
  kDecay,        // show, click and the further counts are multiplied by decay
  kShrink,       // rows with a low score, or not seen for long, are deleted
  kDeltaReset,   // a delta was saved: delta_score of its rows becomes 0
  kResetRows,    // an epoch begins: weights and states become those of a new row
  kWeightDecay,  // a pass ended: weights are multiplied by embed_decay and embedx_decay
  kErase,        // the rows of some feasigns or of a slot are deleted
  kEvict,        // the table had too many rows: those of the lowest ranks are deleted
};

// The last day (in the year 4840) that ranks tell apart.
constexpr uint32_t kLastRankDay = (1u << 20) - 1;

// A row's place in the order of eviction, lowest first. Keys are hashes, so equal scores are
// divided by chance, and the order is total.
struct EvictionRank {
  uint32_t day = 0;    // last_seen_day, if that comes first; otherwise 0
  uint32_t score = 0;  // bits of a float of at least 0, which are in the order of the floats
  uint64_t key = 0;

  bool operator<(const EvictionRank& other) const {
    return std::tie(day, score, key) < std::tie(other.day, other.score, other.key);
  }
};

// An event holds all its parameters, so later changes of the configuration do not change it.
struct LifeEvent {
  uint32_t seq = 0;  // counted from 1
  LifeKind kind = LifeKind::kDecay;
  uint32_t day = 0;  // of the event, in days since 1970-01-01
  float decay = 1.0f;
  float min_score = 0.0f;        // below: kShrink deletes the row; kDeltaReset leaves it
  float min_delta_score = 0.0f;  // below: kDeltaReset leaves the row
  uint32_t max_unseen_days = 0;  // above: kShrink deletes the row; kDeltaReset leaves it
  float embed_decay = 1.0f;
  float embedx_decay = 1.0f;                                    // of embedx and expand
  std::shared_ptr<const std::vector<uint64_t>> keys = nullptr;  // of kErase: ascending; null: none
  int32_t slot = -1;                                            // of kErase; -1: none
  EvictionRank lowest{};  // of kEvict: the lowest rank that stays
  bool by_day = false;    // of kEvict: ranks begin with the day
};

// Which rows a base or a delta for serving holds: rows with a high enough score that were seen
// recently; in a delta also only rows that changed enough since they were last saved.
struct SaveFilter {
  uint32_t day = 0;  // day of the save, up to which unseen days are counted
  float min_score = 0.0f;
  float min_delta_score = 0.0f;  // 0 for a base
  uint32_t max_unseen_days = UINT32_MAX;
};

namespace life {

// Days since the last push to the row; 0 if no date is known.
inline uint32_t UnseenDays(const float* row, uint32_t day) {
  const uint32_t seen = GetWord(row, RowLayout::kDay);
  return seen == 0 || seen >= day ? 0 : day - seen;
}

// Whether the row, with all its events applied, is in the save. The save and the event after it use
// this one function, so that delta_score is reset in exactly the rows that were saved.
inline bool Saved(const AccessorConfig& config, const SaveFilter& filter, const float* row) {
  return accessor::Score(config, row[RowLayout::kShow], row[RowLayout::kClick]) >=
             filter.min_score &&
         row[RowLayout::kDeltaScore] >= filter.min_delta_score &&
         UnseenDays(row, filter.day) <= filter.max_unseen_days;
}

// The rank of a row, to which all events were applied. A score below 0, or NaN, counts as 0.
inline EvictionRank RankOf(const AccessorConfig& config, bool by_day, uint64_t key,
                           const float* row) {
  EvictionRank rank;
  if (by_day) rank.day = std::min(GetWord(row, RowLayout::kDay), kLastRankDay);
  const float score = accessor::Score(config, row[RowLayout::kShow], row[RowLayout::kClick]);
  if (score > 0) std::memcpy(&rank.score, &score, sizeof(score));
  rank.key = key;
  return rank;
}

// The events that delete rows.
inline bool MayDelete(const LifeEvent& event) {
  return event.kind == LifeKind::kShrink || event.kind == LifeKind::kErase ||
         event.kind == LifeKind::kEvict;
}

// Whether an event deletes the row, to which all earlier events were applied.
inline bool Deletes(const AccessorConfig& config, const LifeEvent& event, uint64_t key,
                    const float* row) {
  switch (event.kind) {
    case LifeKind::kShrink:
      return accessor::Score(config, row[RowLayout::kShow], row[RowLayout::kClick]) <
                 event.min_score ||
             UnseenDays(row, event.day) > event.max_unseen_days;
    case LifeKind::kErase:
      return (event.slot >= 0 && SlotOf(row) == event.slot) ||
             (event.keys != nullptr &&
              std::binary_search(event.keys->begin(), event.keys->end(), key));
    case LifeKind::kEvict: return RankOf(config, event.by_day, key, row) < event.lowest;
    default: return false;
  }
}

// The number of the last event; 0 if there is none.
inline uint32_t LastSeq(const LifeEvent* events, size_t n) {
  return n == 0 ? 0 : events[n - 1].seq;
}

// The index of the first event that a row with this life_seq has not seen.
inline size_t FirstUnseen(const LifeEvent* events, size_t n, uint32_t life_seq) {
  if (life_seq >= LastSeq(events, n)) return n;
  return static_cast<size_t>(
      std::upper_bound(events, events + n, life_seq,
                       [](uint32_t seq, const LifeEvent& event) { return seq < event.seq; }) -
      events);
}

// Removes the events that change no row which also sees a later one. Unless a decay between them
// changes scores, an eviction is superfluous before one that deletes as many ranks, and a reset of
// delta_score before one of as many rows.
inline void Fold(std::vector<LifeEvent>* events) {
  const auto covers = [](const LifeEvent& later, const LifeEvent& event) {
    if (later.kind != event.kind) return false;
    if (event.kind == LifeKind::kEvict) {
      return later.by_day == event.by_day && !(later.lowest < event.lowest);
    }
    return event.kind == LifeKind::kDeltaReset && later.day == event.day &&
           later.min_score == event.min_score && later.max_unseen_days == event.max_unseen_days &&
           later.min_delta_score <= event.min_delta_score;
  };
  std::vector<LifeEvent> kept;                // the newest first
  std::vector<const LifeEvent*> since_decay;  // those of the events that may cover others
  for (auto event = events->rbegin(); event != events->rend(); ++event) {
    if (event->kind == LifeKind::kDecay) since_decay.clear();
    if (std::any_of(since_decay.begin(), since_decay.end(),
                    [&](const LifeEvent* later) { return covers(*later, *event); })) {
      continue;
    }
    if (event->kind == LifeKind::kEvict || event->kind == LifeKind::kDeltaReset) {
      since_decay.push_back(&*event);
    }
    kept.push_back(*event);
  }
  events->assign(kept.rbegin(), kept.rend());
}

inline bool ChangesWeights(const LifeEvent& event) {
  return event.kind == LifeKind::kResetRows || event.kind == LifeKind::kWeightDecay;
}

// Rounds embedx for an event. The passes have other numbers.
inline void Round(const AccessorConfig& config, const RowCodec& codec, const LifeEvent& event,
                  uint64_t key, float* row) {
  if (HasEmbedx(row)) codec.Round(config.seed, key, uint64_t{1} << 63 | event.seq, row);
}

// The loop of Apply. counts: the further counts of the row.
inline bool ApplyTo(const AccessorConfig& config, const RowCodec& codec, const LifeEvent* events,
                    size_t n, uint64_t key, float* row, float* counts) {
  for (size_t i = FirstUnseen(events, n, GetWord(row, RowLayout::kLifeSeq)); i < n; ++i) {
    const LifeEvent& event = events[i];
    switch (event.kind) {
      case LifeKind::kDecay:
        row[RowLayout::kShow] *= event.decay;
        row[RowLayout::kClick] *= event.decay;
        for (int c = 0; c < config.layout.counts; ++c) counts[c] *= event.decay;
        break;
      case LifeKind::kShrink:
      case LifeKind::kErase:
      case LifeKind::kEvict:
        if (Deletes(config, event, key, row)) return false;
        break;
      case LifeKind::kDeltaReset:
        if (Saved(config,
                  {event.day, event.min_score, event.min_delta_score, event.max_unseen_days},
                  row)) {
          row[RowLayout::kDeltaScore] = 0.0f;
        }
        break;
      case LifeKind::kResetRows: accessor::ResetWeights(config, key, row); break;
      case LifeKind::kWeightDecay:
        accessor::ScaleWeights(config.layout, event.embed_decay, event.embedx_decay, row);
        break;
    }
    if (ChangesWeights(event)) Round(config, codec, event, key, row);
    SetWord(row, RowLayout::kLifeSeq, event.seq);
  }
  return true;
}

// Applies the events after the row's last one. codec: of the tiers. events: (n), seq ascends.
// False: an event deleted the row; then its bytes are meaningless.
inline bool Apply(const AccessorConfig& config, const RowCodec& codec, const LifeEvent* events,
                  size_t n, uint64_t key, float* row) {
  return ApplyTo(config, codec, events, n, key, row, row + config.layout.counts_at());
}

// The result of Apply from the first kHeadWords words of the row alone, packed or not. It changes
// only those of the words on which later results depend.
constexpr size_t kHeadWords = RowLayout::kLifeSeq + 1;
inline bool Survives(const AccessorConfig& config, const LifeEvent* events, size_t n, uint64_t key,
                     float* head) {
  for (size_t i = FirstUnseen(events, n, GetWord(head, RowLayout::kLifeSeq)); i < n; ++i) {
    const LifeEvent& event = events[i];
    if (event.kind == LifeKind::kDecay) {
      head[RowLayout::kShow] *= event.decay;
      head[RowLayout::kClick] *= event.decay;
    }
    if (Deletes(config, event, key, head)) return false;
    SetWord(head, RowLayout::kLifeSeq, event.seq);
  }
  return true;
}

// The same for a packed row, aligned to 4.
inline bool ApplyPacked(const AccessorConfig& config, const RowCodec& codec,
                        const LifeEvent* events, size_t n, uint64_t key, char* packed) {
  auto* const head = reinterpret_cast<float*>(packed);
  bool whole = false;  // whether the weights are needed
  for (size_t i = FirstUnseen(events, n, GetWord(head, RowLayout::kLifeSeq));
       i < n && !codec.identity(); ++i) {
    whole = whole || ChangesWeights(events[i]);
  }
  if (!whole) {
    float* const counts = head + codec.bytes() / 4 - config.layout.counts;  // the last words
    return ApplyTo(config, codec, events, n, key, head, counts);
  }
  thread_local std::vector<float> row;
  row.resize(static_cast<size_t>(config.layout.words()));
  codec.Unpack(packed, row.data());
  if (!Apply(config, codec, events, n, key, row.data())) return false;
  codec.Pack(row.data(), packed);
  return true;
}

}  // namespace life
}  // namespace pbx
