// MEM tier: the rows that are near but not in a pass table, within a budget of bytes.
//
// A row is clean (the SSD tier has the same bytes) or dirty (it has not). Clean rows may be evicted
// to make room; dirty rows never are.
//
// Keys are uniform over the range that the tier is opened for, so the home of a key follows from
// where it lies in that range: the index is in hash order, and a sorted batch walks through it
// forwards. It is cut into up to 64 ranges of keys, each with its own rows (mem_range.h): threads
// take whole ranges. Index and rows are one block of memory, reserved when the tier is opened and
// taken from the system as it is used. Overhead: 13.7 bytes a slot (a key, a state, a row number)
// at a load of at most 0.77, 17.9 bytes a row with what eviction needs. A load of 0.83 saves 1.4
// bytes a row and costs a third of the speed of erasing and of finding that a key is absent.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/buffer.h"
#include "base/status.h"
#include "base/threads.h"
#include "store/mem_range.h"
#include "store/tier.h"

namespace pbx {

struct MemCounters {
  uint64_t keys_asked = 0;
  uint64_t hits = 0;
  uint64_t evicted = 0;
  uint64_t not_admitted = 0;  // clean rows for which there was no room, or that were too rare
};

// The keys from low to high, both included.
struct KeyRange {
  uint64_t low = 0;
  uint64_t high = UINT64_MAX;
};

// Where a pool may be given, batches are shared out among its threads; results are the same.
class MemTier : public Tier {
 public:
  static constexpr uint64_t kMinBudgetBytes = 1 << 20;

  // row_bytes >= 4. budget_bytes >= kMinBudgetBytes, and room for at least one row. keys: those
  // that are expected; others are legal, and slow where they are many.
  static Result<std::unique_ptr<MemTier>> Open(uint32_t row_bytes, uint64_t budget_bytes,
                                               KeyRange keys = KeyRange());

  Status Read(const uint64_t* keys, size_t n, char* rows, uint8_t* found) override;
  // Which keys are here, without their rows. found: (n), overwritten.
  void Find(const uint64_t* keys, size_t n, uint8_t* found) const;
  // As Read, and removes the rows that it found: staging moves rows into the pass table.
  Status Take(const uint64_t* keys, size_t n, char* rows, uint8_t* found,
              ThreadPool* pool = nullptr);

  // Rows that are nowhere else. OutOfSpace, with the bytes, when they and the dirty rows that are
  // here pass the budget, or when so many are dirty in one of the ranges that it has no slots for
  // them (1.3 times its share: keys that are not uniform). Nothing is written then.
  Status Write(const uint64_t* keys, const char* rows, size_t n) override;
  // The same with rows by pointer, and with clean set for rows that the SSD tier has too: those are
  // taken in as far as there is room, which is never an error.
  Status Insert(const uint64_t* keys, const char* const* row_pointers, size_t n, bool clean,
                ThreadPool* pool = nullptr);

  Status Visit(const std::function<Status(uint64_t key, const char* row)>& visit) override;
  size_t rows() const override;
  size_t dirty_rows() const;
  // What the index and the rows take, in whole pages; never above the budget.
  size_t bytes() const override;
  MemCounters counters() const;

 private:
  explicit MemTier(uint64_t budget_bytes) : budget_(budget_bytes) {}

  Status Put(const uint64_t* keys, MemRows rows, size_t n, bool dirty, ThreadPool* pool);
  Status CheckRoom(const uint64_t* keys, size_t n);  // for n dirty rows, and makes it
  template <typename Work>
  void ForRanges(const uint64_t* keys, size_t n, ThreadPool* pool, const Work& work) const;
  template <bool kRemove>
  void Lookup(const uint64_t* keys, size_t n, char* rows, uint8_t* found, ThreadPool* pool);

  uint64_t budget_;
  size_t max_rows_ = 0;
  size_t range_buckets_ = 0;  // of each range
  Buffer memory_;
  MemArena arena_;
  mutable std::vector<MemRange> ranges_;
  std::atomic<uint64_t> keys_asked_{0}, hits_{0};  // Reads may run side by side
};

}  // namespace pbx
