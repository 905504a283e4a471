// RowLayout: where each field of a row lies. A row is a whole number of 4-byte words;
// docs/formats/row.md has a picture. Letters: D = embedx_dim, e = state words of embed, x = state
// words of embedx.
//
//   word 0        slot (uint16, low half), flags (uint16, high half)
//   word 1, 2, 3  show, click, delta_score (float32)
//   word 4        last_seen_day (uint32, days since 1970-01-01; 0 = never)
//   word 5        life_seq (uint32, the last life event the row has seen)
//   word 6        embed_w (float32)
//   word 7 ..     embed state (e), embedx_w (D), embedx state (x), expand_w (E), expand state
//   last n words  further counts (float32)
#pragma once

#include <cstdint>
#include <cstring>

#include "base/hash.h"
#include "base/host_device.h"

namespace pbx {

// Flags of word 0.
constexpr uint16_t kHasEmbedx = 1;  // embedx was created; before that it is zeros
constexpr uint16_t kTouched = 2;    // during a pass only: a push has changed the row

struct RowLayout {
  int embedx_dim = 8;    // D
  int embed_state = 1;   // e
  int embedx_state = 1;  // x
  int expand_dim = 0;    // E, for pull_box_extended_sparse; 0: rows have no expand part
  int expand_state = 0;
  int counts = 0;  // n, counts besides show and click

  static constexpr int kShow = 1, kClick = 2, kDeltaScore = 3, kDay = 4, kLifeSeq = 5, kEmbed = 6;
  // While a pass trains with weight decay, word 5 is the step of table/decay_clock.h instead. All
  // rows of the pass have seen the same life events.
  static constexpr int kStep = kLifeSeq;
  PBX_HOST_DEVICE int embed_state_at() const { return kEmbed + 1; }
  PBX_HOST_DEVICE int embedx_at() const { return kEmbed + 1 + embed_state; }
  PBX_HOST_DEVICE int embedx_state_at() const { return embedx_at() + embedx_dim; }
  PBX_HOST_DEVICE int expand_at() const { return embedx_state_at() + embedx_state; }
  PBX_HOST_DEVICE int expand_state_at() const { return expand_at() + expand_dim; }
  PBX_HOST_DEVICE int counts_at() const { return expand_state_at() + expand_state; }
  PBX_HOST_DEVICE int words() const { return counts_at() + counts; }
  PBX_HOST_DEVICE uint32_t bytes() const { return static_cast<uint32_t>(words()) * 4; }

  // The columns of a pulled row: [show, click, further counts..., embed_w, embedx...]. The first
  // `head_columns` are counts.
  int head_columns() const { return 2 + counts; }
  int pull_columns() const { return head_columns() + 1 + embedx_dim; }

  // Identifies the layout in files. The 1 is the version of the layout above.
  uint64_t Fingerprint() const {
    const int32_t fields[7] = {1,          embedx_dim,   embed_state, embedx_state,
                               expand_dim, expand_state, counts};
    return HashBytes(fields, counts != 0 ? 28 : (expand_dim == 0 ? 16 : 24), 0x50425852ULL);
  }
};

// Access to the integer words. Everything else treats a row as an array of floats.
PBX_INLINE uint32_t GetWord(const float* row, int word) {
  uint32_t value;
  memcpy(&value, row + word, 4);
  return value;
}
PBX_INLINE void SetWord(float* row, int word, uint32_t value) { memcpy(row + word, &value, 4); }
PBX_INLINE uint16_t SlotOf(const float* row) {
  return static_cast<uint16_t>(GetWord(row, 0) & 0xffffu);
}
PBX_INLINE void SetFlag(float* row, uint16_t flag) {
  SetWord(row, 0, GetWord(row, 0) | (uint32_t{flag} << 16));
}
PBX_INLINE bool HasEmbedx(const float* row) { return ((GetWord(row, 0) >> 16) & kHasEmbedx) != 0; }

}  // namespace pbx
