// A range of the MEM tier's keys: a hash table with rows and an eviction of its own, so that
// threads that work on different ranges share nothing, and results do not depend on their number.
//
// Room is kept region by region (32 buckets, 224 slots): where a region has its share of the rows,
// a row that comes in pushes out a clean one. Batches come sorted and can be far larger than the
// budget, so without shares the rows gather where the batch stands.
//
// Who is evicted: of the clean rows in the eight buckets from the home on the oldest, to a quarter
// of the time in which a region's rows are replaced. Measured and lost: victims from the whole
// region (the slots come free where the batch is not, rows drift away from their homes, and within
// three passes each lookup walks through all of the range); and counts of how often a key came
// back, kept in the slots it left. What is asked for often is in the next pass too, and goes there
// from pass table to pass table. Of the rest (Zipf 1.05, room for 10, 20, 30 % of the rows) counts
// found 24.2, 41.0, 53.7 %, and 20.4, 33.3, 44.6 % where the distribution drifts by a hundredth a
// pass; age alone 24.1, 40.8, 53.6 % and 21.7, 37.1, 49.1 %, all at a load of 0.83.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "store/mem_bucket.h"

namespace pbx {

// The memory of all ranges: they take parts of it.
struct MemArena {
  static constexpr uint32_t kNoRow = UINT32_MAX;
  static constexpr size_t kRegionBuckets = 32;
  static constexpr size_t kRegionSlots = kRegionBuckets * MemBucket::kSlots;

  struct Region {
    uint32_t rows = 0;  // with their home here
    uint32_t came = 0;  // since levels were lowered
  };

  static size_t RegionsOf(size_t range_buckets) {
    return (range_buckets + kRegionBuckets - 1) / kRegionBuckets;
  }
  char* Row(uint32_t row) const { return rows + size_t{row} * row_bytes; }

  MemKeySpace space;
  MemBucket* buckets = nullptr;     // (space.buckets())
  uint32_t* row_numbers = nullptr;  // (space.buckets(), 8): those of a bucket's slots
  Region* regions = nullptr;        // (ranges, RegionsOf(buckets of a range))
  char* rows = nullptr;
  size_t row_bytes = 0;
  size_t region_share = 0;  // rows of a region
};

// Rows that come in: one behind the other, or by pointer.
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
  // Of the rows that are taken so many are kept at hand; those of the others stay with their slots.
  // Looking for them there costs a miss of the cache each.
  static constexpr size_t kFreeRows = 4096;
  static constexpr size_t kBytes = kFreeRows * sizeof(uint32_t) + 320;  // of the range itself

  // Over the arena's buckets from first_bucket on, and rows [first_row, end_row).
  MemRange(const MemArena* arena, size_t first_bucket, size_t buckets, size_t first_region,
           uint32_t first_row, uint32_t end_row);

  // ---- Batches. keys: (n) ascending, all at home in this range; rows, found as in Tier::Read.
  // Returns how many of the keys with found[i] == 0 are here. kRemove: and removes them.
  template <bool kRemove>
  size_t Lookup(const uint64_t* keys, size_t n, char* rows, uint8_t* found);
  void Find(const uint64_t* keys, size_t n, uint8_t* found) const;
  // Dirty rows must have room: Needed(keys, n) <= owned() and slots().
  void Insert(const uint64_t* keys, MemRows rows, size_t n, bool dirty);

  // ---- Room. Rows (numbers, not contents) that the range may use; ranges can lend them.
  size_t owned() const { return owned_; }
  size_t slots() const { return buckets_ * MemBucket::kSlots; }
  // Rows that are dirty when these keys have come in dirty.
  size_t Needed(const uint64_t* keys, size_t n) const;
  // Gives `count` of the rows that are not dirty to another range: free ones first.
  void Lend(size_t count, MemRange* to);

  size_t live() const { return live_; }
  size_t dirty() const { return dirty_; }
  uint64_t evicted() const { return evicted_; }
  uint64_t not_admitted() const { return not_admitted_; }
  // Of the range's own rows those from the first to before the next were ever used.
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
  uint32_t Place(uint64_t key, size_t home, bool dirty);  // kNoRow: no room for a clean row
  Spot EmptySlot(size_t home);

  // victim: set where a row had to go. False: there is no room, which only clean rows hear.
  bool MakeRoom(size_t home, bool dirty, Spot* victim);
  Spot EvictNear(size_t home);
  Spot EvictAny();
  void Evict(Spot spot);
  void Age(size_t home);  // counts a row that comes in
  uint32_t FreeRow();     // one that no slot holds, or that a slot can spare: there must be one
  uint32_t Detach(Spot spot);

  const MemArena* arena_;
  size_t first_bucket_, buckets_;
  MemBucket* table_;
  uint32_t* row_numbers_;
  Region* regions_;
  uint32_t first_row_, next_row_, end_row_;  // rows from next_row_ on were never used
  std::vector<uint32_t> free_rows_;          // that no slot holds
  size_t owned_, live_ = 0, dirty_ = 0;
  size_t spare_hand_ = 0, any_hand_ = 0;  // buckets
  uint64_t evicted_ = 0, not_admitted_ = 0;
};

static_assert(sizeof(MemRange) <= 320, "see kBytes");

}  // namespace pbx
