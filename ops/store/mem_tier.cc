#include "store/mem_tier.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace pbx {
namespace {
constexpr size_t kChunkBytes = 32u << 20;  // many huge pages, so that little of one is lost
constexpr size_t kSlotBytes = sizeof(uint64_t) + sizeof(uint32_t) + 1;
constexpr size_t kAhead = 16;  // keys prefetched before they are looked at
}  // namespace

Result<std::unique_ptr<MemTier>> MemTier::Open(uint32_t row_bytes, uint64_t budget_bytes) {
  if (budget_bytes < kMinBudgetBytes) {
    return Error(Code::kInvalidArgument, "mem.budget_bytes: %llu, at least %llu are needed",
                 static_cast<unsigned long long>(budget_bytes),
                 static_cast<unsigned long long>(kMinBudgetBytes));
  }
  // Small budgets take small chunks, so that rounding to chunks cannot pass the budget.
  const size_t chunk_bytes = std::min<uint64_t>(kChunkBytes, budget_bytes / 16);
  const size_t chunk_rows = std::max<size_t>(1, chunk_bytes / row_bytes);
  const double per_row = row_bytes + kSlotBytes / 0.8;
  size_t max_rows = static_cast<size_t>(static_cast<double>(budget_bytes) / per_row);
  max_rows =
      std::min<size_t>(max_rows / chunk_rows * chunk_rows, UINT32_MAX / chunk_rows * chunk_rows);
  if (max_rows == 0) {
    return Error(Code::kInvalidArgument, "mem.budget_bytes: %llu holds no row of %u bytes",
                 static_cast<unsigned long long>(budget_bytes), row_bytes);
  }
  std::unique_ptr<MemTier> tier(new MemTier(row_bytes, budget_bytes));
  tier->max_rows_ = max_rows;
  tier->chunk_rows_ = chunk_rows;
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
  for (size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) {
      const size_t home = Home(keys[i + kAhead]);
      __builtin_prefetch(keys_ + home);
      __builtin_prefetch(state_ + home);
      __builtin_prefetch(row_of_slot_ + home);
    }
    if (found[i] != 0) continue;
    ++counters_.keys_asked;
    const size_t slot = FindSlot(keys[i]);
    if (slot == kNone) continue;
    ++counters_.hits;
    found[i] = 1;
    std::memcpy(rows + i * row_bytes_, RowAt(row_of_slot_[slot]), row_bytes_);
    if (kRemove) EraseSlot(slot);
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
  free_rows_.push_back(row_of_slot_[slot]);
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
  const size_t first = number * kRegionSlots;
  const size_t size = std::min(kRegionSlots, slots_ - first);
  // Second chance: a row that came in since the hand last passed is spared once.
  for (size_t looked = 0; looked < 2 * size; ++looked) {
    const size_t slot = first + region.hand;
    region.hand = region.hand + 1 < size ? region.hand + 1 : 0;
    if (state_[slot] == kEmpty || (state_[slot] & kDirty) != 0) continue;
    if ((state_[slot] & kSpared) == 0) {
      state_[slot] |= kSpared;
      continue;
    }
    EraseSlot(slot);
    region.hand = static_cast<uint32_t>(slot - first);  // the shift may have moved a row here
    ++counters_.evicted;
    return true;
  }
  return false;
}

Status MemTier::NewRow(size_t region, bool dirty, uint32_t* row) {
  // Keys are uniform, so a fair share for each region; dirty rows may go beyond it while there is
  // room.
  const size_t share = std::max<size_t>(1, kRegionSlots * max_rows_ / slots_);
  const bool all_used = free_rows_.empty() && next_row_ == max_rows_;
  if ((all_used || regions_[region].rows >= share) && !EvictFrom(region) && (all_used || !dirty)) {
    return Error(
        Code::kOutOfSpace,
        "mem.budget_bytes: %llu bytes are full of %zu rows that are on no disk; raise it, or "
        "give the table an SSD folder",
        static_cast<unsigned long long>(budget_), dirty_);
  }
  if (!free_rows_.empty()) {
    *row = free_rows_.back();
    free_rows_.pop_back();
    return Status::Ok();
  }
  if (next_row_ == chunks_.size() * chunk_rows_) {
    Result<Buffer> chunk = Buffer::Allocate(chunk_rows_ * row_bytes_);
    if (!chunk.ok()) return chunk.status();
    chunks_.push_back(std::move(chunk.value()));
  }
  *row = next_row_++;
  return Status::Ok();
}

Status MemTier::Put(uint64_t key, const char* row, bool dirty) {
  size_t slot = FindSlot(key);
  if (slot == kNone) {
    uint32_t fresh;
    const size_t region = RegionOf(key);
    PBX_RETURN_IF_ERROR(NewRow(region, dirty, &fresh));
    ++regions_[region].rows;
    slot = Home(key);
    while (state_[slot] != kEmpty) slot = slot + 1 == slots_ ? 0 : slot + 1;
    keys_[slot] = key;
    row_of_slot_[slot] = fresh;
    ++live_;
  } else if ((state_[slot] & kDirty) != 0) {
    --dirty_;
  }
  state_[slot] = static_cast<uint8_t>(kUsed | (dirty ? kDirty : 0));
  if (dirty) ++dirty_;
  std::memcpy(RowAt(row_of_slot_[slot]), row, row_bytes_);
  return Status::Ok();
}

Status MemTier::Write(const uint64_t* keys, const char* rows, size_t n) {
  for (size_t i = 0; i < n; ++i) PBX_RETURN_IF_ERROR(Put(keys[i], rows + i * row_bytes_, true));
  return Status::Ok();
}

Status MemTier::Insert(const uint64_t* keys, const char* const* row_pointers, size_t n,
                       bool clean) {
  for (size_t i = 0; i < n; ++i) {
    const Status put = Put(keys[i], row_pointers[i], !clean);
    if (put.ok()) continue;
    if (!clean) return put;
    ++counters_.not_admitted;
  }
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

size_t MemTier::bytes() const {
  return slots_ * kSlotBytes + chunks_.size() * chunk_rows_ * row_bytes_;
}

}  // namespace pbx
