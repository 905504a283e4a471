#include "store/mem_tier.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace pbx {
namespace {
constexpr size_t kChunkBytes = 32u << 20;  // many huge pages, so that little of one is lost
constexpr size_t kSlotBytes = sizeof(uint64_t) + sizeof(uint32_t) + 1;
constexpr size_t kAhead = 16;  // keys prefetched before they are looked at

size_t RoundUp(size_t bytes, size_t page) { return (bytes + page - 1) / page * page; }
}  // namespace

Result<std::unique_ptr<MemTier>> MemTier::Open(uint32_t row_bytes, uint64_t budget_bytes) {
  if (budget_bytes < kMinBudgetBytes) {
    return Error(Code::kInvalidArgument, "mem.budget_bytes: %llu, at least %llu are needed",
                 static_cast<unsigned long long>(budget_bytes),
                 static_cast<unsigned long long>(kMinBudgetBytes));
  }
  // Small budgets take small chunks, so that the last one leaves little of the budget over. Whole
  // pages, and whole huge pages where they are used: the system gives nothing smaller.
  const uint64_t wanted = std::min<uint64_t>(kChunkBytes, budget_bytes / 16);
  const size_t page = wanted < Buffer::kHugePage ? 4096 : Buffer::kHugePage;
  const size_t chunk_bytes =
      row_bytes < wanted / page * page ? wanted / page * page : RoundUp(row_bytes, page);
  const size_t chunk_rows = chunk_bytes / row_bytes;
  // max_rows rows take max_rows * 5 / 4 + 1 slots, and a region for every kRegionSlots of them.
  const double per_slot = kSlotBytes + static_cast<double>(sizeof(Region)) / kRegionSlots;
  const double per_chunk =
      static_cast<double>(chunk_bytes) + static_cast<double>(chunk_rows) * 1.25 * per_slot;
  const double fixed = kSlotBytes + 2 * sizeof(Region);
  const size_t chunks =
      static_cast<size_t>((static_cast<double>(budget_bytes) - fixed) / per_chunk);
  const size_t max_rows = std::min<size_t>(chunks, kNoRow / chunk_rows) * chunk_rows;
  if (max_rows == 0) {
    return Error(Code::kInvalidArgument, "mem.budget_bytes: %llu holds no row of %u bytes",
                 static_cast<unsigned long long>(budget_bytes), row_bytes);
  }
  std::unique_ptr<MemTier> tier(new MemTier(row_bytes, budget_bytes));
  tier->max_rows_ = max_rows;
  tier->chunk_rows_ = chunk_rows;
  tier->chunk_bytes_ = chunk_bytes;
  tier->slots_ = max_rows + max_rows / 4 + 1;
  tier->regions_.resize(tier->slots_ / kRegionSlots + 1);
  const std::pair<Buffer*, size_t> columns[] = {{&tier->key_column_, sizeof(uint64_t)},
                                                {&tier->row_column_, sizeof(uint32_t)},
                                                {&tier->state_column_, 1}};
  for (const auto& [column, width] : columns) {
    Result<Buffer> buffer = Buffer::Allocate(tier->slots_ * width);
    if (!buffer.ok()) return buffer.status();
    *column = std::move(buffer.value());
  }
  tier->keys_ = reinterpret_cast<uint64_t*>(tier->key_column_.data());
  tier->row_of_slot_ = reinterpret_cast<uint32_t*>(tier->row_column_.data());
  tier->state_ = reinterpret_cast<uint8_t*>(tier->state_column_.data());
  return Result<std::unique_ptr<MemTier>>(std::move(tier));
}

char* MemTier::RowAt(uint32_t row) const {
  const Buffer& chunk = chunks_[row / chunk_rows_];
  return const_cast<char*>(chunk.data()) + (row % chunk_rows_) * row_bytes_;
}

size_t MemTier::FindSlot(uint64_t key) const {
  for (size_t slot = Home(key); state_[slot] != kEmpty; slot = slot + 1 == slots_ ? 0 : slot + 1) {
    if (keys_[slot] == key) return slot;
  }
  return kNone;
}

template <bool kRemove>
void MemTier::Lookup(const uint64_t* keys, size_t n, char* rows, uint8_t* found) {
  uint64_t asked = 0, hits = 0;
  for (size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) {
      const size_t home = Home(keys[i + kAhead]);
      __builtin_prefetch(keys_ + home);
      __builtin_prefetch(state_ + home);
      __builtin_prefetch(row_of_slot_ + home);
    }
    if (found[i] != 0) continue;
    ++asked;
    const size_t slot = FindSlot(keys[i]);
    if (slot == kNone) continue;
    ++hits;
    found[i] = 1;
    std::memcpy(rows + i * row_bytes_, RowAt(row_of_slot_[slot]), row_bytes_);
    if (kRemove) EraseSlot(slot);
  }
  keys_asked_ += asked;
  hits_ += hits;
}

void MemTier::Find(const uint64_t* keys, size_t n, uint8_t* found) const {
  for (size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) {
      const size_t home = Home(keys[i + kAhead]);
      __builtin_prefetch(keys_ + home);
      __builtin_prefetch(state_ + home);
    }
    found[i] = FindSlot(keys[i]) != kNone;
  }
}

Status MemTier::Read(const uint64_t* keys, size_t n, char* rows, uint8_t* found) {
  Lookup<false>(keys, n, rows, found);
  return Status::Ok();
}

Status MemTier::Take(const uint64_t* keys, size_t n, char* rows, uint8_t* found) {
  Lookup<true>(keys, n, rows, found);
  return Status::Ok();
}

void MemTier::EraseSlot(size_t slot) {
  std::memcpy(RowAt(row_of_slot_[slot]), &free_row_, sizeof(free_row_));
  free_row_ = row_of_slot_[slot];
  --regions_[RegionOf(keys_[slot])].rows;
  --live_;
  if ((state_[slot] & kDirty) != 0) --dirty_;
  // Backward shift: no tombstones, so lookups never slow down with age.
  size_t hole = slot;
  for (size_t next = hole;;) {
    next = next + 1 == slots_ ? 0 : next + 1;
    if (state_[next] == kEmpty) break;
    const size_t home = Home(keys_[next]);
    const bool stays = hole <= next ? (hole < home && home <= next) : (hole < home || home <= next);
    if (stays) continue;
    keys_[hole] = keys_[next];
    row_of_slot_[hole] = row_of_slot_[next];
    state_[hole] = state_[next];
    hole = next;
  }
  state_[hole] = kEmpty;
}

bool MemTier::EvictFrom(size_t number) {
  Region& region = regions_[number];
  if (region.rows == 0) return false;
  const size_t first = number * kRegionSlots;
  const size_t size = std::min(kRegionSlots, slots_ - first);
  // Second chance: a row that came in since the hand last passed is spared once. So the hand may
  // have to finish its round, spare every row in the next, and find one in the third.
  for (int rounds = 0; rounds < 3;) {
    size_t slot = first + region.hand;
    if (slot >= slots_) slot -= slots_;
    // The region's rows end at the first empty slot behind its own slots.
    if (state_[slot] == kEmpty && region.hand + 1 >= size) {
      region.hand = 0;
      ++rounds;
      continue;
    }
    const bool clean = state_[slot] != kEmpty && (state_[slot] & kDirty) == 0;
    if (clean && RegionOf(keys_[slot]) == number) {
      if ((state_[slot] & kSpared) != 0) {
        EraseSlot(slot);  // and the hand stays: the shift may have moved a row here
        ++evicted_;
        return true;
      }
      state_[slot] |= kSpared;
    }
    ++region.hand;
  }
  return false;
}

// True when a row can be handed out for a key of the region.
bool MemTier::MakeRoom(size_t region, bool dirty) {
  // Keys are uniform, so a fair share for each region; dirty rows may go beyond it while there is
  // room.
  const size_t share = (kRegionSlots * max_rows_ + slots_ - 1) / slots_;
  const bool all_used = free_row_ == kNoRow && next_row_ == max_rows_;
  if (!all_used && regions_[region].rows < share) return true;
  if (EvictFrom(region) || (dirty && !all_used)) return true;
  // A dirty row must come in: CheckRoom has seen that there are clean ones somewhere.
  for (size_t other = 0; dirty && other < regions_.size(); ++other) {
    if (EvictFrom(other)) return true;
  }
  return false;
}

Result<uint32_t> MemTier::NewRow(size_t region, bool dirty) {
  if (!MakeRoom(region, dirty)) return kNoRow;
  const uint32_t row = free_row_ != kNoRow ? free_row_ : next_row_;
  if (free_row_ != kNoRow) {
    std::memcpy(&free_row_, RowAt(row), sizeof(free_row_));
    return row;
  }
  if (next_row_ == chunks_.size() * chunk_rows_) {
    Result<Buffer> chunk = Buffer::Allocate(chunk_bytes_);
    if (!chunk.ok()) return chunk.status();
    chunks_.push_back(std::move(chunk.value()));
  }
  ++next_row_;
  return row;
}

Status MemTier::Put(uint64_t key, const char* row, bool dirty) {
  size_t slot = FindSlot(key);
  if (slot == kNone) {
    const size_t region = RegionOf(key);
    const Result<uint32_t> fresh = NewRow(region, dirty);
    if (!fresh.ok()) return fresh.status();
    if (fresh.value() == kNoRow) {
      ++not_admitted_;
      return Status::Ok();
    }
    ++regions_[region].rows;
    slot = Home(key);
    while (state_[slot] != kEmpty) slot = slot + 1 == slots_ ? 0 : slot + 1;
    keys_[slot] = key;
    row_of_slot_[slot] = fresh.value();
    ++live_;
  } else if ((state_[slot] & kDirty) != 0) {
    --dirty_;
  }
  state_[slot] = static_cast<uint8_t>(kUsed | (dirty ? kDirty : 0));
  if (dirty) ++dirty_;
  std::memcpy(RowAt(row_of_slot_[slot]), row, row_bytes_);
  return Status::Ok();
}

// Before anything is written: a sorted batch that does not fit would gather all its rows at the
// front of the index, where each would probe past all the others.
Status MemTier::CheckRoom(const uint64_t* keys, size_t n) const {
  if (dirty_ + n <= max_rows_) return Status::Ok();
  size_t dirty = dirty_;
  for (size_t i = 0; i < n; ++i) {
    const size_t slot = FindSlot(keys[i]);
    dirty += slot == kNone || (state_[slot] & kDirty) == 0;
  }
  if (dirty <= max_rows_) return Status::Ok();
  return Error(Code::kOutOfSpace,
               "mem.budget_bytes: %zu rows that are on no disk, and %llu bytes hold %zu; raise it, "
               "or give the table an SSD folder",
               dirty, static_cast<unsigned long long>(budget_), max_rows_);
}

Status MemTier::Write(const uint64_t* keys, const char* rows, size_t n) {
  PBX_RETURN_IF_ERROR(CheckRoom(keys, n));
  for (size_t i = 0; i < n; ++i) PBX_RETURN_IF_ERROR(Put(keys[i], rows + i * row_bytes_, true));
  return Status::Ok();
}

Status MemTier::Insert(const uint64_t* keys, const char* const* row_pointers, size_t n,
                       bool clean) {
  if (!clean) PBX_RETURN_IF_ERROR(CheckRoom(keys, n));
  for (size_t i = 0; i < n; ++i) PBX_RETURN_IF_ERROR(Put(keys[i], row_pointers[i], !clean));
  return Status::Ok();
}

Status MemTier::Visit(const std::function<Status(uint64_t key, const char* row)>& visit) {
  std::vector<std::pair<uint64_t, uint32_t>> all;
  all.reserve(live_);
  for (size_t slot = 0; slot < slots_; ++slot) {
    if (state_[slot] != kEmpty) all.emplace_back(keys_[slot], row_of_slot_[slot]);
  }
  std::sort(all.begin(), all.end());
  for (const auto& [key, row] : all) PBX_RETURN_IF_ERROR(visit(key, RowAt(row)));
  return Status::Ok();
}

size_t MemTier::Sweep(const std::function<bool(char* row)>& keep) {
  // Chosen first: removing a row moves others into slots before and behind it.
  std::vector<uint64_t> gone;
  for (size_t slot = 0; slot < slots_; ++slot) {
    if (state_[slot] != kEmpty && !keep(RowAt(row_of_slot_[slot]))) gone.push_back(keys_[slot]);
  }
  for (const uint64_t key : gone) EraseSlot(FindSlot(key));
  return gone.size();
}

size_t MemTier::bytes() const {
  return slots_ * kSlotBytes + regions_.size() * sizeof(Region) + chunks_.size() * chunk_bytes_;
}

MemCounters MemTier::counters() const { return {keys_asked_, hits_, evicted_, not_admitted_}; }

}  // namespace pbx
