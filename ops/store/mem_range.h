// A range of the MEM tier's keys: a hash table with rows and an eviction of its own, so that
// threads that work on different ranges share nothing, and results do not depend on their number.
//
// Room is kept region by region (32 buckets, 224 slots): a region that has its share of the rows
// evicts one of its own before a clean row comes in. Batches come sorted and can be far larger than
// the budget, so without shares the rows gather where the batch stands. Measured and lost, at
// 1 MiB: one clock for all (20 s for 200,000 rows), and victims chosen by where they lie and not by
// where they belong (4 s); this takes 0.1 s.
//
// Who is evicted: of the region's clean rows the one that came back least often, the oldest of
// those. A row that came back less often than that is not let in. Counts go up to 7 and are halved
// as time passes; a key's count outlives its row for as long as nothing else needs the slot.
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
    uint32_t rows = 0;     // with their home here
    uint32_t hand = 0;     // the slot at which the next victim is looked for, from the first on
    uint32_t crowded = 0;  // rows that came while it had its share, since counts were halved
    uint32_t least = 0;    // no clean row here has a smaller count; kNoUses: there is none
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
  void PrefetchHand(uint64_t key) const;
  void PrefetchRow(uint32_t row) const;

  // ghost: if not null, set to a slot without a row that the key left; unchanged if there is none.
  Spot Search(uint64_t key, size_t home, Spot* ghost) const;
  void Erase(Spot spot, size_t home);                     // the slot keeps its row number
  uint32_t Place(uint64_t key, size_t home, bool dirty);  // kNoRow: a clean row is not let in
  Spot EmptySlot(size_t home, Spot ghost);
  void Remember(uint64_t key, size_t home, Spot ghost, unsigned uses);

  // victim: set where a row had to go. False: a clean row is not let in.
  bool MakeRoom(size_t home, bool dirty, unsigned uses, Spot* victim);
  Spot Evict(size_t region, unsigned uses);  // a row with at most so many
  Spot Victim(size_t region, unsigned uses);
  Spot EvictAny();
  unsigned LeastUses(size_t region) const;
  void Halve(size_t region);
  // Calls visit(position, bucket) for the buckets that may hold rows of a region, from position
  // `from` on, until it returns true.
  template <typename Visit>
  void Walk(size_t region, size_t from, const Visit& visit) const;
  uint32_t FreeRow();  // one that no slot holds, or that a slot can spare: there must be one
  uint32_t Detach(Spot spot);

  const MemArena* arena_;
  size_t first_bucket_, buckets_;
  MemBucket* table_;
  uint32_t* row_numbers_;
  Region* regions_;
  uint32_t first_row_, next_row_, end_row_;  // rows from next_row_ on were never used
  std::vector<uint32_t> lent_;               // free rows that came from other ranges
  size_t owned_, live_ = 0, dirty_ = 0;
  size_t spare_hand_ = 0, any_hand_ = 0;  // buckets
  uint64_t evicted_ = 0, not_admitted_ = 0;
};

}  // namespace pbx
