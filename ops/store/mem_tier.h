// MEM tier: the rows that are near but not in a pass table, within a budget of bytes.
//
// A row is clean (the SSD tier has the same bytes) or dirty (it has not). Clean rows may be evicted
// to make room; dirty rows never are.
//
// Keys are uniform, so the home of a key is (key * slots) >> 64: the index is in hash order, a
// sorted batch walks through it forwards, and collisions go to the next slot. The index is made
// once, for the whole budget; rows lie apart in chunks of up to 32 MiB that are allocated as they
// are needed. Overhead: 13 bytes a slot at a load of at most 0.8, 16.25 bytes a row.
//
// Room is kept region by region (256 slots of the index): a region that has its share of the rows
// evicts one of its own before a clean row comes in. Batches come sorted and can be far larger than
// the budget, so without shares the rows gather where the batch stands, and runs of the index grow
// to thousands of slots. Measured and lost, at 1 MiB: one clock for all (20 s for 200,000 rows),
// and victims chosen by where they lie and not by where they belong (4 s); this takes 0.15 s.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/buffer.h"
#include "base/status.h"
#include "store/tier.h"

namespace pbx {

struct MemCounters {
  uint64_t keys_asked = 0;
  uint64_t hits = 0;
  uint64_t evicted = 0;
  uint64_t not_admitted = 0;  // clean rows for which there was no room
};

class MemTier : public Tier {
 public:
  static constexpr uint64_t kMinBudgetBytes = 1 << 20;

  // row_bytes >= 4. budget_bytes >= kMinBudgetBytes, and room for at least one row.
  static Result<std::unique_ptr<MemTier>> Open(uint32_t row_bytes, uint64_t budget_bytes);

  Status Read(const uint64_t* keys, size_t n, char* rows, uint8_t* found) override;
  // Which keys are here, without their rows. found: (n), overwritten.
  void Find(const uint64_t* keys, size_t n, uint8_t* found) const;
  // As Read, and removes the rows that it found: staging moves rows into the pass table.
  Status Take(const uint64_t* keys, size_t n, char* rows, uint8_t* found);

  // Rows that are nowhere else. OutOfSpace, with the bytes, when they and the dirty rows that are
  // here pass the budget: nothing is written then.
  Status Write(const uint64_t* keys, const char* rows, size_t n) override;
  // The same with rows by pointer, and with clean set for rows that the SSD tier has too: those are
  // taken in as far as there is room, which is never an error.
  Status Insert(const uint64_t* keys, const char* const* row_pointers, size_t n, bool clean);

  // Shows every row to keep, which may change it, and removes those for which it returns false.
  // Returns how many went. For a table that has no SSD tier: elsewhere the copies would differ.
  size_t Sweep(const std::function<bool(char* row)>& keep);

  Status Visit(const std::function<Status(uint64_t key, const char* row)>& visit) override;
  size_t rows() const override { return live_; }
  size_t dirty_rows() const { return dirty_; }
  // Index and chunks; never above the budget.
  size_t bytes() const override;
  MemCounters counters() const;

 private:
  enum State : uint8_t { kEmpty = 0, kUsed = 1, kDirty = 2, kSpared = 4 };
  static constexpr size_t kNone = SIZE_MAX;
  static constexpr size_t kRegionSlots = 256;
  static constexpr uint32_t kNoRow = UINT32_MAX;

  struct Region {
    uint32_t rows = 0;  // with their home here
    uint32_t hand = 0;  // the eviction clock's: the slot it looks at next, from the first on
  };

  MemTier(uint32_t row_bytes, uint64_t budget_bytes)
      : row_bytes_(row_bytes), budget_(budget_bytes) {}

  size_t Home(uint64_t key) const {
    __extension__ using Wide = unsigned __int128;
    return static_cast<size_t>((static_cast<Wide>(key) * slots_) >> 64);
  }
  size_t FindSlot(uint64_t key) const;  // kNone when absent
  size_t RegionOf(uint64_t key) const { return Home(key) / kRegionSlots; }
  void EraseSlot(size_t slot);    // and frees its row
  bool EvictFrom(size_t region);  // false: no clean row has its home there
  bool MakeRoom(size_t region, bool dirty);
  Result<uint32_t> NewRow(size_t region, bool dirty);  // kNoRow: no room for a clean one
  Status Put(uint64_t key, const char* row, bool dirty);
  Status CheckRoom(const uint64_t* keys, size_t n) const;  // for n dirty rows
  char* RowAt(uint32_t row) const;
  template <bool kRemove>
  void Lookup(const uint64_t* keys, size_t n, char* rows, uint8_t* found);

  uint32_t row_bytes_;
  uint64_t budget_;
  size_t slots_ = 0;
  size_t max_rows_ = 0;
  size_t chunk_rows_ = 0, chunk_bytes_ = 0;
  Buffer key_column_, row_column_, state_column_;  // (slots_) each
  uint64_t* keys_ = nullptr;
  uint32_t* row_of_slot_ = nullptr;
  uint8_t* state_ = nullptr;
  std::vector<Buffer> chunks_;
  uint32_t free_row_ = kNoRow;  // the first of the free rows; each holds the number of the next
  uint32_t next_row_ = 0;       // rows below it have been handed out at least once
  size_t live_ = 0, dirty_ = 0;
  std::vector<Region> regions_;
  uint64_t evicted_ = 0, not_admitted_ = 0;
  std::atomic<uint64_t> keys_asked_{0}, hits_{0};  // Reads may run side by side
};

}  // namespace pbx
