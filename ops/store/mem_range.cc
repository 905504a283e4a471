#include "store/mem_range.h"

#include <cstring>

#include "base/host_device.h"
#include "base/prefetch.h"

namespace pbx {
namespace {

// A home is prefetched this many keys before it is searched, and a row this many rows before it is
// copied. With 12, finding is slower (64 M keys/s instead of 85); with 64, it is as fast as with
// 40.
constexpr size_t kAhead = 40;
constexpr size_t kBehind = 16;
// A new row may evict rows of this many buckets, beginning at its home. With 4, the hit rate is 1 %
// lower.
constexpr size_t kNear = 8;
// Levels are lowered this many times while a region receives as many new rows as it holds. 2, 4 and
// 8 give the same hit rate.
constexpr size_t kSteps = 4;

// Delays copies until the cache lines that they touch have arrived.
class Copies {
 public:
  explicit Copies(size_t bytes) : bytes_(bytes) {}
  ~Copies() {
    for (size_t i = 0; i < kBehind; ++i) Add(nullptr, nullptr);
  }
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;

  void Add(char* to, const char* from) {
    if (to_[at_] != nullptr) std::memcpy(to_[at_], from_[at_], bytes_);
    to_[at_] = to;
    from_[at_] = from;
    at_ = at_ + 1 == kBehind ? 0 : at_ + 1;
  }

 private:
  size_t bytes_, at_ = 0;
  char* to_[kBehind] = {};
  const char* from_[kBehind] = {};
};

}  // namespace

MemRange::MemRange(const MemArena* arena, size_t first_bucket, size_t buckets, size_t first_region,
                   uint32_t first_row, uint32_t end_row)
    : arena_(arena),
      first_bucket_(first_bucket),
      buckets_(buckets),
      table_(arena->buckets + first_bucket),
      row_numbers_(arena->row_numbers + first_bucket * 8),
      regions_(arena->regions + first_region),
      first_row_(first_row),
      next_row_(first_row),
      end_row_(end_row),
      owned_(end_row - first_row) {
  free_rows_.reserve(kFreeRows);
}

// ---- The index

MemRange::Spot MemRange::Search(uint64_t key, size_t home) const {
  size_t bucket = home;
  do {
    const MemBucket& line = table_[bucket];
    const uint64_t matches = line.Matches(key) & line.head;
    if (matches != 0) return {bucket, MemBucket::First(matches)};
    if (!line.passed()) break;
    bucket = Next(bucket);
  } while (bucket != home);
  return {};
}

void MemRange::Erase(Spot spot, size_t home) {
  MemBucket& line = table_[spot.bucket];
  const unsigned state = line.state(spot.slot);
  line.set_state(spot.slot, state & ~unsigned{MemBucket::kUsed | MemBucket::kDirty});
  if ((state & MemBucket::kDirty) != 0) --dirty_;
  --live_;
  --RegionAt(home).rows;
  for (size_t bucket = home; bucket != spot.bucket; bucket = Next(bucket)) {
    table_[bucket].DropPassed();
  }
}

// The home, or the first bucket after it that is not full. Counts a passed key in the buckets
// before it.
MemRange::Spot MemRange::EmptySlot(size_t home) {
  size_t bucket = home;
  for (; table_[bucket].Empty() == 0; bucket = Next(bucket)) table_[bucket].AddPassed();
  const MemBucket& line = table_[bucket];
  const uint64_t mask = line.SpareRows() != 0 ? line.SpareRows() : line.Empty();
  return {bucket, MemBucket::First(mask)};
}

uint32_t MemRange::Place(uint64_t key, size_t home, bool dirty) {
  const unsigned state =
      MemBucket::kUsed | MemBucket::kRow | MemBucket::kLevel | (dirty ? MemBucket::kDirty : 0);
  Spot spot = Search(key, home);
  if (spot.found()) {
    MemBucket& line = table_[spot.bucket];
    if ((line.state(spot.slot) & MemBucket::kDirty) != 0) --dirty_;
    if (dirty) ++dirty_;
    line.set_state(spot.slot, state);
    return RowNumber(spot);
  }
  Spot victim;
  if (!MakeRoom(home, dirty, &victim)) {
    ++not_admitted_;
    return kNoRow;
  }
  Age(home);
  spot = EmptySlot(home);
  MemBucket& line = table_[spot.bucket];
  if ((line.state(spot.slot) & MemBucket::kRow) == 0) {
    RowNumber(spot) = victim.found() ? Detach(victim) : FreeRow();
  }
  line.keys[spot.slot] = key;
  line.set_state(spot.slot, state);
  if (dirty) ++dirty_;
  ++live_;
  ++RegionAt(home).rows;
  return RowNumber(spot);
}

// ---- Room

bool MemRange::MakeRoom(size_t home, bool dirty, Spot* victim) {
  const bool any_free = live_ < std::min(owned_, slots());
  // Each region has an equal share, because keys are uniform. Dirty rows may exceed it while there
  // is space. A row is placed far from its home only if there is no row near its home that it can
  // evict.
  if (any_free && RegionAt(home).rows < arena_->region_share) {
    size_t bucket = home;
    for (size_t i = 0; i < kNear; ++i, bucket = Next(bucket)) {
      if (table_[bucket].Empty() != 0) return true;
    }
  }
  *victim = EvictNear(home);
  if (victim->found() || (dirty && any_free)) return true;
  if (!dirty) return false;
  *victim = EvictAny();
  return victim->found();
}

MemRange::Spot MemRange::EvictNear(size_t home) {
  for (unsigned level = 0; level <= MemBucket::kLevel; ++level) {
    size_t bucket = home;
    for (size_t i = 0; i < kNear; ++i, bucket = Next(bucket)) {
      const uint64_t mask = table_[bucket].Clean() & table_[bucket].AtMost(level);
      if (mask == 0) continue;
      const Spot victim = {bucket, MemBucket::First(mask)};
      Evict(victim);
      return victim;
    }
  }
  return {};
}

MemRange::Spot MemRange::EvictAny() {
  if (live_ == dirty_) return {};
  while (table_[any_hand_].Clean() == 0) any_hand_ = Next(any_hand_);
  const Spot victim = {any_hand_, MemBucket::First(table_[any_hand_].Clean())};
  Evict(victim);
  return victim;
}

void MemRange::Evict(Spot spot) {
  Erase(spot, Home(table_[spot.bucket].keys[spot.slot]));
  ++evicted_;
}

void MemRange::Age(size_t home) {
  Region& region = RegionAt(home);
  if (++region.came < arena_->region_share / kSteps) return;
  region.came = 0;
  const size_t first = home / MemArena::kRegionBuckets * MemArena::kRegionBuckets;
  const size_t end = std::min(first + MemArena::kRegionBuckets, buckets_);
  for (size_t bucket = first; bucket < end; ++bucket) table_[bucket].Age();
}

// Each row number that the range owns is in a slot or in free_rows_, or has never been used.
uint32_t MemRange::FreeRow() {
  if (!free_rows_.empty()) {
    const uint32_t row = free_rows_.back();
    free_rows_.pop_back();
    return row;
  }
  if (next_row_ < end_row_) return next_row_++;
  while (table_[spare_hand_].SpareRows() == 0) spare_hand_ = Next(spare_hand_);
  return Detach({spare_hand_, MemBucket::First(table_[spare_hand_].SpareRows())});
}

uint32_t MemRange::Detach(Spot spot) {
  MemBucket& line = table_[spot.bucket];
  line.set_state(spot.slot, line.state(spot.slot) & ~unsigned{MemBucket::kRow});
  return RowNumber(spot);
}

void MemRange::Lend(size_t count, MemRange* to) {
  for (; count > 0; --count) {
    if (live_ == owned_) EvictAny();
    to->free_rows_.push_back(FreeRow());
    --owned_;
    ++to->owned_;
  }
}

size_t MemRange::Needed(const uint64_t* keys, size_t n) const {
  size_t needed = dirty_;
  for (size_t i = 0; i < n; ++i) {
    const Spot spot = Search(keys[i], Home(keys[i]));
    const bool dirty = spot.found() && (table_[spot.bucket].state(spot.slot) & MemBucket::kDirty);
    needed += dirty ? 0 : 1;
  }
  return needed;
}

// ---- Batches
//
// These loops are pipelines over a window of keys. First the home is prefetched, then the next
// bucket if keys passed the home. Then the key is looked up and its row prefetched. Last, the row
// is copied. A function that only prefetches must be inlined: g++ drops a call of it, because the
// call has no effect.

PBX_INLINE void MemRange::PrefetchHome(uint64_t key) const {
  const size_t home = Home(key);
  Prefetch(table_ + home);
  Prefetch(row_numbers_ + home * 8);
  Prefetch(regions_ + home / MemArena::kRegionBuckets);
}

PBX_INLINE void MemRange::PrefetchNext(uint64_t key, bool full) const {
  const size_t home = Home(key);
  const MemBucket& line = table_[home];
  // No branch, which would often be mispredicted: prefetching the same line again does no harm.
  const size_t next = home + (line.passed() || (full && line.Empty() == 0) ? 1 : 0);
  Prefetch(table_ + next);
  Prefetch(row_numbers_ + next * 8);
}

PBX_INLINE void MemRange::PrefetchRow(uint32_t row) const {
  const char* at = arena_->Row(row);
  for (size_t line = 0; line < arena_->row_bytes; line += 64) Prefetch(at + line);
  Prefetch(at + arena_->row_bytes - 1);
}

void MemRange::Find(const uint64_t* keys, size_t n, uint8_t* found) const {
  for (size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) Prefetch(table_ + Home(keys[i + kAhead]));
    if (i + kAhead / 2 < n) {
      const size_t home = Home(keys[i + kAhead / 2]);
      Prefetch(table_ + home + (table_[home].passed() ? 1 : 0));
    }
    found[i] = Search(keys[i], Home(keys[i])).found();
  }
}

template <bool kRemove>
size_t MemRange::Lookup(const uint64_t* keys, size_t n, char* rows, uint8_t* found) {
  size_t hits = 0;
  Copies copies(arena_->row_bytes);
  for (size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) PrefetchHome(keys[i + kAhead]);
    if (i + kAhead / 2 < n) PrefetchNext(keys[i + kAhead / 2], false);
    if (found[i] != 0) continue;
    const size_t home = Home(keys[i]);
    const Spot spot = Search(keys[i], home);
    if (!spot.found()) continue;
    found[i] = 1;
    const uint32_t row = RowNumber(spot);
    PrefetchRow(row);
    copies.Add(rows + i * arena_->row_bytes, arena_->Row(row));
    if (kRemove) {
      Erase(spot, home);
      if (free_rows_.size() < kFreeRows) {
        free_rows_.push_back(Detach(spot));
        spare_hand_ = spot.bucket;  // slots that keep their rows come after it
      }
    }
    ++hits;
  }
  return hits;
}
template size_t MemRange::Lookup<false>(const uint64_t*, size_t, char*, uint8_t*);
template size_t MemRange::Lookup<true>(const uint64_t*, size_t, char*, uint8_t*);

void MemRange::Insert(const uint64_t* keys, MemRows rows, size_t n, bool dirty) {
  Copies copies(arena_->row_bytes);
  for (size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) PrefetchHome(keys[i + kAhead]);
    if (i + kAhead / 2 < n) PrefetchNext(keys[i + kAhead / 2], true);
    const uint32_t row = Place(keys[i], Home(keys[i]), dirty);
    if (row == kNoRow) continue;
    PrefetchRow(row);
    copies.Add(arena_->Row(row), rows.At(i, arena_->row_bytes));
  }
}

void MemRange::List(std::vector<std::pair<uint64_t, uint32_t>>* all) const {
  for (size_t bucket = 0; bucket < buckets_; ++bucket) {
    const MemBucket& line = table_[bucket];
    for (uint64_t mask = line.head & MemBucket::kAll; mask != 0; mask &= mask - 1) {
      const unsigned slot = MemBucket::First(mask);
      all->emplace_back(line.keys[slot], RowNumber({bucket, slot}));
    }
  }
}

}  // namespace pbx
