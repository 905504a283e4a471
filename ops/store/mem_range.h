// A range of the MEM tier's keys: a hash table with its own rows and its own eviction. Threads that
// work on different ranges share nothing, so results do not depend on their number.
//
// Space is divided among regions (32 buckets, 224 slots): if a region has its share of the rows, a
// new row evicts a clean row. Batches are sorted and can be far larger than the budget, so without
// shares all rows would gather around the current place of the batch.
//
// A new row evicts the oldest clean row of eight buckets, which begin at the new row's home. Age
// has a resolution of a quarter of the time in which a region's rows are replaced. Alternatives
// that were measured, at a load of 0.83:
//
// - Victims from the whole region: the freed slots are far from the current place of the batch,
//   rows drift away from their homes, and after three passes each lookup goes through the whole
//   range.
// - Counting how often a key came back, in the slots that the key left. The table has the hit rates
//   of rows that were not in the pass before (the others go from pass table to pass table), for
//   Zipf 1.05 and space for 10, 20 and 30 % of the rows:
//
//                       fixed distribution   drift of 1 % per pass
//     counts            24.2, 41.0, 53.7 %   20.4, 33.3, 44.6 %
//     age alone (used)  24.1, 40.8, 53.6 %   21.7, 37.1, 49.1 %
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "store/mem_bucket.h"

namespace pbx {

// The memory of all ranges.
struct MemArena {
  static constexpr uint32_t kNoRow = UINT32_MAX;
  static constexpr size_t kRegionBuckets = 32;

  struct Region {
    uint32_t rows = 0;  // rows whose home is here
    uint32_t came = 0;  // rows inserted since the levels were last lowered
  };

  static size_t RegionsOf(size_t range_buckets) {
    return (range_buckets + kRegionBuckets - 1) / kRegionBuckets;
  }
  char* Row(uint32_t row) const { return rows + size_t{row} * row_bytes; }

  MemKeySpace space;
  MemBucket* buckets = nullptr;     // (space.buckets())
  uint32_t* row_numbers = nullptr;  // (space.buckets(), 8): row numbers of the slots of each bucket
  Region* regions = nullptr;        // (ranges, RegionsOf(buckets of a range))
  char* rows = nullptr;
  size_t row_bytes = 0;
  size_t region_share = 0;  // rows per region
};

// Rows to insert: contiguous, or by pointer.
struct MemRows {
  const char* rows = nullptr;
  const char* const* pointers = nullptr;
  const char* At(size_t i, size_t row_bytes) const {
    return pointers != nullptr ? pointers[i] : rows + i * row_bytes;
  }
  MemRows From(size_t i, size_t row_bytes) const {
    return {rows == nullptr ? nullptr : rows + i * row_bytes,
            pointers == nullptr ? nullptr : pointers + i};
  }
};

class alignas(64) MemRange {
 public:
  // A list keeps the numbers of up to kFreeRows removed rows. The numbers of other removed rows
  // stay in their slots, where finding one costs a cache miss.
  static constexpr size_t kFreeRows = 4096;
  // The memory of a range, including the MemRange itself.
  static constexpr size_t kBytes = kFreeRows * sizeof(uint32_t) + 320;

  // Uses the arena's buckets from first_bucket on, and its rows [first_row, end_row).
  MemRange(const MemArena* arena, size_t first_bucket, size_t buckets, size_t first_region,
           uint32_t first_row, uint32_t end_row);

  // ---- Batches. keys: (n) ascending, with homes in this range; rows, found: as in Tier::Read.
  // Returns how many keys with found[i] == 0 are here. With kRemove, removes the rows of these
  // keys.
  template <bool kRemove>
  size_t Lookup(const uint64_t* keys, size_t n, char* rows, uint8_t* found);
  void Find(const uint64_t* keys, size_t n, uint8_t* found) const;
  // REQUIRES for dirty rows: Needed(keys, n) <= owned() and slots().
  void Insert(const uint64_t* keys, MemRows rows, size_t n, bool dirty);

  // ---- Space. owned: how many row numbers the range may use. Ranges can lend row numbers.
  size_t owned() const { return owned_; }
  size_t slots() const { return buckets_ * MemBucket::kSlots; }
  // The number of dirty rows after these keys were inserted as dirty.
  size_t Needed(const uint64_t* keys, size_t n) const;
  // Gives `count` row numbers to another range: numbers of free rows first, then of clean rows.
  void Lend(size_t count, MemRange* to);

  size_t live() const { return live_; }
  size_t dirty() const { return dirty_; }
  uint64_t evicted() const { return evicted_; }
  uint64_t not_admitted() const { return not_admitted_; }
  // Of the range's initial rows, [first_row, next_row) were used at some time.
  uint32_t first_row() const { return first_row_; }
  uint32_t next_row() const { return next_row_; }
  // Appends (key, row number) of all rows.
  void List(std::vector<std::pair<uint64_t, uint32_t>>* all) const;

 private:
  static constexpr uint32_t kNoRow = MemArena::kNoRow;
  static constexpr unsigned kNoSlot = MemBucket::kNoSlot;
  struct Spot {
    size_t bucket = 0;
    unsigned slot = kNoSlot;
    bool found() const { return slot != kNoSlot; }
  };
  using Region = MemArena::Region;

  size_t Home(uint64_t key) const { return arena_->space.Home(key) - first_bucket_; }
  size_t Next(size_t bucket) const { return bucket + 1 == buckets_ ? 0 : bucket + 1; }
  Region& RegionAt(size_t home) { return regions_[home / MemArena::kRegionBuckets]; }
  uint32_t& RowNumber(Spot spot) const { return row_numbers_[spot.bucket * 8 + spot.slot]; }
  void PrefetchHome(uint64_t key) const;
  void PrefetchNext(uint64_t key, bool full) const;
  void PrefetchRow(uint32_t row) const;

  Spot Search(uint64_t key, size_t home) const;
  void Erase(Spot spot, size_t home);                     // the slot keeps its row number
  uint32_t Place(uint64_t key, size_t home, bool dirty);  // kNoRow: no space for a clean row
  Spot EmptySlot(size_t home);

  // victim: set if a row was evicted. False: no space, which happens only for clean rows.
  bool MakeRoom(size_t home, bool dirty, Spot* victim);
  Spot EvictNear(size_t home);
  Spot EvictAny();
  void Evict(Spot spot);
  void Age(size_t home);  // counts a new row
  uint32_t FreeRow();     // a row number that no used slot holds. REQUIRES: there is one
  uint32_t Detach(Spot spot);

  const MemArena* arena_;
  size_t first_bucket_, buckets_;
  MemBucket* table_;
  uint32_t* row_numbers_;
  Region* regions_;
  uint32_t first_row_, next_row_, end_row_;  // rows from next_row_ on were never used
  std::vector<uint32_t> free_rows_;          // row numbers that no slot holds
  size_t owned_, live_ = 0, dirty_ = 0;
  size_t spare_hand_ = 0, any_hand_ = 0;  // numbers of buckets
  uint64_t evicted_ = 0, not_admitted_ = 0;
};

static_assert(sizeof(MemRange) <= 320, "see kBytes");

}  // namespace pbx
