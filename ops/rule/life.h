// Life events: what happens to all rows at once (a day's end, a shrink, a saved delta) without
// touching them. An event is appended to the manifest; a row carries the number of the last one it
// has seen, and whoever reads a row (staging, merging, export) applies the ones it has missed, in
// order. Decaying a table of terabytes so costs nothing until a row is needed.
//
// Only words 0 to 5 of a row are read and written (docs/formats/row.md), so packed rows are served
// as well. Formulas as PaddleBox's CtrCommonAccessor: Shrink, and UpdateStatAfterSave.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rule/accessor.h"

namespace pbx {

enum class LifeKind : uint8_t {
  kDecay,       // show and click are multiplied by decay
  kShrink,      // rows of a low score, or not seen for long, are deleted
  kDeltaReset,  // a delta was saved: delta_score of the rows that were in it starts anew
};

// Complete in itself: it means the same for ever, whatever the configuration says later.
struct LifeEvent {
  uint32_t seq = 0;  // 1, 2, 3 ...
  LifeKind kind = LifeKind::kDecay;
  uint32_t day = 0;  // days since 1970-01-01 on which it happens
  float decay = 1.0f;
  float min_score = 0.0f;        // kShrink: deleted below; kDeltaReset: not saved below
  float min_delta_score = 0.0f;  // kDeltaReset: not saved below
  uint32_t max_unseen_days = 0;  // kShrink: deleted above; kDeltaReset: not saved above
};

// What a base or a delta for serving holds: rows of some weight that were seen lately, and for a
// delta those that changed enough since they were last saved.
struct SaveFilter {
  uint32_t day = 0;  // of the save: unseen days are counted up to it
  float min_score = 0.0f;
  float min_delta_score = 0.0f;  // a base: 0
  uint32_t max_unseen_days = UINT32_MAX;
};

namespace life {

// Days since a push touched the row; 0 where no date is known.
inline uint32_t UnseenDays(const float* row, uint32_t day) {
  const uint32_t seen = GetWord(row, RowLayout::kDay);
  return seen == 0 || seen >= day ? 0 : day - seen;
}

// True: the row, with all its events applied, goes into the save. One function for the save and for
// the event after it, so that delta_score starts anew in just the rows that were saved.
inline bool Saved(const AccessorConfig& config, const SaveFilter& filter, const float* row) {
  return accessor::Score(config, row[RowLayout::kShow], row[RowLayout::kClick]) >=
             filter.min_score &&
         row[RowLayout::kDeltaScore] >= filter.min_delta_score &&
         UnseenDays(row, filter.day) <= filter.max_unseen_days;
}

// Applies the events that the row has not seen; events: (n) of seq 1 to n. False: one of them
// deleted it; the row is absent from there on, and its bytes mean nothing.
inline bool Apply(const AccessorConfig& config, const LifeEvent* events, size_t n, float* row) {
  for (size_t i = GetWord(row, RowLayout::kLifeSeq); i < n; ++i) {
    const LifeEvent& event = events[i];
    switch (event.kind) {
      case LifeKind::kDecay:
        row[RowLayout::kShow] *= event.decay;
        row[RowLayout::kClick] *= event.decay;
        break;
      case LifeKind::kShrink:
        if (accessor::Score(config, row[RowLayout::kShow], row[RowLayout::kClick]) <
                event.min_score ||
            UnseenDays(row, event.day) > event.max_unseen_days) {
          return false;
        }
        break;
      case LifeKind::kDeltaReset:
        if (Saved(config,
                  {event.day, event.min_score, event.min_delta_score, event.max_unseen_days},
                  row)) {
          row[RowLayout::kDeltaScore] = 0.0f;
        }
        break;
    }
    SetWord(row, RowLayout::kLifeSeq, event.seq);
  }
  return true;
}

}  // namespace life
}  // namespace pbx
