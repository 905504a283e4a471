#include "store/mem_range.h"

#include <cstring>

#include "base/host_device.h"

namespace pbx {
namespace {

// Keys whose home is fetched before they are looked at, and rows that are fetched while others are
// copied: 16 and 8 to 32 and 16 measure alike.
constexpr size_t kAhead = 40;
constexpr size_t kBehind = 16;
constexpr uint32_t kNoUses = MemBucket::kMaxUses + 1;
// A region's counts are halved when so many times its share of rows came in vain or pushed out
// others.
constexpr uint32_t kHalveAfter = 16;

// Copies that are put off until the lines that they touch have come.
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
      owned_(end_row - first_row) {}

// ---- The index

MemRange::Spot MemRange::Search(uint64_t key, size_t home, Spot* ghost) const {
  size_t bucket = home;
  do {
    const MemBucket& line = table_[bucket];
    const uint64_t matches = line.Matches(key);
    if (matches != 0) {
      const uint64_t used = matches & line.head;
      if (used != 0) return {bucket, MemBucket::First(used)};
      if (ghost != nullptr) *ghost = {bucket, MemBucket::First(matches)};
    }
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

// The one of a full bucket's successors that has room, counted as passed by; in it the slot that
// the key left, else the one whose ghost matters least, if possible with a row.
MemRange::Spot MemRange::EmptySlot(size_t home, Spot ghost) {
  size_t bucket = home;
  for (; table_[bucket].Empty() == 0; bucket = Next(bucket)) table_[bucket].AddPassed();
  if (ghost.found() && ghost.bucket == bucket) return ghost;
  const MemBucket& line = table_[bucket];
  uint64_t mask = 0;
  for (unsigned uses = 0; mask == 0; ++uses) mask = line.Empty() & line.UsesAtMost(uses);
  const uint64_t with_row = mask & line.SpareRows();
  return {bucket, MemBucket::First(with_row != 0 ? with_row : mask)};
}

uint32_t MemRange::Place(uint64_t key, size_t home, bool dirty) {
  Spot ghost;
  Spot spot = Search(key, home, &ghost);
  uint32_t& least = RegionAt(home).least;
  const unsigned kind = MemBucket::kUsed | MemBucket::kRow | (dirty ? MemBucket::kDirty : 0);
  if (spot.found()) {
    MemBucket& line = table_[spot.bucket];
    const unsigned state = line.state(spot.slot);
    const unsigned uses = state & MemBucket::kUses;
    if ((state & MemBucket::kDirty) != 0) --dirty_;
    if (dirty) ++dirty_;
    if (!dirty) least = std::min<uint32_t>(least, uses);
    line.set_state(spot.slot, kind | uses);
    return RowNumber(spot);
  }
  const unsigned uses =
      ghost.found() ? std::min(MemBucket::kMaxUses, table_[ghost.bucket].uses(ghost.slot) + 1) : 0;
  Spot victim;
  if (!MakeRoom(home, dirty, uses, &victim)) {
    ++not_admitted_;
    Remember(key, home, ghost, uses);
    return kNoRow;
  }
  spot = EmptySlot(home, ghost);
  MemBucket& line = table_[spot.bucket];
  if ((line.state(spot.slot) & MemBucket::kRow) == 0) {
    const uint64_t others = line.SpareRows();
    uint32_t row;
    if (victim.found()) {
      row = Detach(victim);
    } else if (others != 0) {
      row = Detach({spot.bucket, MemBucket::First(others)});
    } else {
      row = FreeRow();
    }
    RowNumber(spot) = row;
  }
  line.keys[spot.slot] = key;
  line.set_state(spot.slot, kind | uses);
  if (!dirty) least = std::min<uint32_t>(least, uses);
  if (dirty) ++dirty_;
  ++live_;
  ++RegionAt(home).rows;
  return RowNumber(spot);
}

// Of a key that is turned away the count stays, so that one that keeps coming is let in.
void MemRange::Remember(uint64_t key, size_t home, Spot ghost, unsigned uses) {
  if (!ghost.found()) {
    const MemBucket& line = table_[home];
    const uint64_t unknown = line.Empty() & line.UsesAtMost(0);
    if (unknown == 0) return;
    ghost = {home, MemBucket::First(unknown)};
  }
  MemBucket& line = table_[ghost.bucket];
  line.keys[ghost.slot] = key;
  line.set_state(ghost.slot, (line.state(ghost.slot) & MemBucket::kRow) | uses);
}

// ---- Room

bool MemRange::MakeRoom(size_t home, bool dirty, unsigned uses, Spot* victim) {
  const size_t number = home / MemArena::kRegionBuckets;
  Region& region = regions_[number];
  const bool any_free = live_ < std::min(owned_, slots());
  // Keys are uniform, so a fair share for each region; dirty rows may go beyond it while there is
  // room.
  if (any_free && region.rows < arena_->region_share) return true;
  if (++region.crowded > kHalveAfter * arena_->region_share) Halve(number);
  *victim = Evict(number, dirty ? MemBucket::kMaxUses : uses);
  if (victim->found() || (dirty && any_free)) return true;
  if (!dirty) return false;
  *victim = EvictAny();
  return victim->found();
}

template <typename Visit>
void MemRange::Walk(size_t region, size_t from, const Visit& visit) const {
  const size_t first = region * MemArena::kRegionBuckets;
  const size_t size = std::min(MemArena::kRegionBuckets, buckets_ - first);
  for (size_t at = from; at < buckets_; ++at) {
    // Behind the region's own buckets lie those that its last keys went on to.
    if (at >= size && !table_[(first + at - 1) % buckets_].passed()) return;
    const size_t bucket = (first + at) % buckets_;
    if (visit(at, bucket)) return;
  }
}

MemRange::Spot MemRange::Victim(size_t number, unsigned uses) {
  Region& region = regions_[number];
  Spot victim;
  const auto look = [&](size_t at, size_t bucket, uint64_t among) {
    const MemBucket& line = table_[bucket];
    for (uint64_t mask = line.Clean() & line.UsesAtMost(uses) & among; mask != 0;
         mask &= mask - 1) {
      const unsigned slot = MemBucket::First(mask);
      if (Home(line.keys[slot]) / MemArena::kRegionBuckets != number) continue;
      region.hand = static_cast<uint32_t>(at * MemBucket::kSlots + slot + 1);
      victim = {bucket, slot};
      return true;
    }
    return false;
  };
  const size_t begin = region.hand / MemBucket::kSlots;
  const unsigned slot = region.hand % MemBucket::kSlots;
  Walk(number, begin, [&](size_t at, size_t bucket) {
    return look(at, bucket, at == begin ? ~(MemBucket::Bit(slot) - 1) : MemBucket::kAll);
  });
  if (victim.found()) return victim;
  Walk(number, 0, [&](size_t at, size_t bucket) { return look(at, bucket, MemBucket::kAll); });
  return victim;
}

unsigned MemRange::LeastUses(size_t number) const {
  unsigned least = kNoUses;
  Walk(number, 0, [&](size_t, size_t bucket) {
    const MemBucket& line = table_[bucket];
    for (uint64_t mask = line.Clean(); mask != 0; mask &= mask - 1) {
      const unsigned slot = MemBucket::First(mask);
      if (line.uses(slot) >= least) continue;
      if (Home(line.keys[slot]) / MemArena::kRegionBuckets == number) least = line.uses(slot);
    }
    return least == 0;
  });
  return least;
}

MemRange::Spot MemRange::Evict(size_t number, unsigned uses) {
  Region& region = regions_[number];
  if (region.rows == 0 || region.least > uses) return {};
  Spot victim = Victim(number, region.least);
  if (!victim.found()) {
    region.least = LeastUses(number);
    if (region.least > uses) return {};
    victim = Victim(number, region.least);
  }
  Erase(victim, Home(table_[victim.bucket].keys[victim.slot]));
  ++evicted_;
  return victim;
}

MemRange::Spot MemRange::EvictAny() {
  if (live_ == dirty_) return {};
  while (table_[any_hand_].Clean() == 0) any_hand_ = Next(any_hand_);
  const Spot victim = {any_hand_, MemBucket::First(table_[any_hand_].Clean())};
  Erase(victim, Home(table_[victim.bucket].keys[victim.slot]));
  ++evicted_;
  return victim;
}

void MemRange::Halve(size_t number) {
  Region& region = regions_[number];
  const size_t first = number * MemArena::kRegionBuckets;
  const size_t end = std::min(first + MemArena::kRegionBuckets, buckets_);
  for (size_t bucket = first; bucket < end; ++bucket) table_[bucket].Halve();
  region.crowded = 0;
  region.least = region.least / 2;
}

// Every row number that the range owns is in a slot, or lent, or was never used.
uint32_t MemRange::FreeRow() {
  if (!lent_.empty()) {
    const uint32_t row = lent_.back();
    lent_.pop_back();
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
    to->lent_.push_back(FreeRow());
    --owned_;
    ++to->owned_;
  }
}

size_t MemRange::Needed(const uint64_t* keys, size_t n) const {
  size_t needed = dirty_;
  for (size_t i = 0; i < n; ++i) {
    const Spot spot = Search(keys[i], Home(keys[i]), nullptr);
    const bool dirty = spot.found() && (table_[spot.bucket].state(spot.slot) & MemBucket::kDirty);
    needed += dirty ? 0 : 1;
  }
  return needed;
}

// ---- Batches
//
// Pipelines over a window of keys: the home is fetched first, then what follows from it (a later
// bucket, where it was passed), then the key is looked up, and its row fetched and copied. What
// only prefetches must be inlined: g++ takes a call of it for one without effect, and drops it.

PBX_INLINE void MemRange::PrefetchHome(uint64_t key) const {
  const size_t home = Home(key);
  __builtin_prefetch(table_ + home);
  __builtin_prefetch(row_numbers_ + home * 8);
  __builtin_prefetch(regions_ + home / MemArena::kRegionBuckets);
}

PBX_INLINE void MemRange::PrefetchNext(uint64_t key, bool full) const {
  const size_t home = Home(key);
  const MemBucket& line = table_[home];
  // Without a branch, which would often be guessed wrong: the same line once more does no harm.
  const size_t next = home + (line.passed() || (full && line.Empty() == 0) ? 1 : 0);
  __builtin_prefetch(table_ + next);
  __builtin_prefetch(row_numbers_ + next * 8);
}

PBX_INLINE void MemRange::PrefetchRow(uint32_t row) const {
  const char* at = arena_->Row(row);
  for (size_t line = 0; line < arena_->row_bytes; line += 64) __builtin_prefetch(at + line);
  __builtin_prefetch(at + arena_->row_bytes - 1);
}

// A region that is full evicts where its hand stands.
PBX_INLINE void MemRange::PrefetchHand(uint64_t key) const {
  const size_t number = Home(key) / MemArena::kRegionBuckets;
  const Region& region = regions_[number];
  if (region.rows < arena_->region_share) return;
  const size_t hand = number * MemArena::kRegionBuckets + region.hand / MemBucket::kSlots;
  __builtin_prefetch(table_ + hand);
  __builtin_prefetch(row_numbers_ + hand * 8);
}

void MemRange::Find(const uint64_t* keys, size_t n, uint8_t* found) const {
  for (size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) __builtin_prefetch(table_ + Home(keys[i + kAhead]));
    if (i + kAhead / 2 < n) {
      const size_t home = Home(keys[i + kAhead / 2]);
      __builtin_prefetch(table_ + home + (table_[home].passed() ? 1 : 0));
    }
    found[i] = Search(keys[i], Home(keys[i]), nullptr).found();
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
    const Spot spot = Search(keys[i], home, nullptr);
    if (!spot.found()) continue;
    found[i] = 1;
    const uint32_t row = RowNumber(spot);
    PrefetchRow(row);
    copies.Add(rows + i * arena_->row_bytes, arena_->Row(row));
    if (kRemove) {
      if (hits == 0) spare_hand_ = spot.bucket;
      Erase(spot, home);
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
    if (i + kAhead / 2 < n) {
      PrefetchNext(keys[i + kAhead / 2], true);
      PrefetchHand(keys[i + kAhead / 2]);
    }
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
