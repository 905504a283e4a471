// MEM tier: a cache in memory, within a budget of bytes, for rows that are not in a pass table.
//
// A row is clean if the SSD tier has the same bytes, otherwise dirty. Clean rows may be evicted to
// make space; dirty rows never are.
//
// Keys are uniform over the range that the tier is opened for, so the home of a key follows from
// its place in that range: the index is in hash order, and a sorted batch goes through it forwards.
// It is cut into up to 64 ranges of keys, each with its own rows (mem_range.h), and threads take
// whole ranges. Index and rows are one block of memory that is reserved when the tier is opened;
// the system provides pages as they are used. A slot (key, state, row number) takes 13.7 bytes, and
// the load is at most 0.77, so the overhead is 17.9 bytes per row, including eviction. A load of
// 0.83 would save 1.4 bytes per row, but erasing keys and looking up absent keys would be a third
// slower.
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
  uint64_t not_admitted = 0;  // clean rows for which there was no space
};

// The keys in [low, high].
struct KeyRange {
  uint64_t low = 0;
  uint64_t high = UINT64_MAX;
};

// With a pool, batches are divided among its threads. Results are the same.
class MemTier : public Tier {
 public:
  static constexpr uint64_t kMinBudgetBytes = 1 << 20;

  // row_bytes >= 4. budget_bytes >= kMinBudgetBytes and enough for one row. keys: the expected
  // keys; others are legal, but slow if they are many.
  static Result<std::unique_ptr<MemTier>> Open(uint32_t row_bytes, uint64_t budget_bytes,
                                               KeyRange keys = KeyRange());

  Status Read(const uint64_t* keys, size_t n, char* rows, uint8_t* found) override;
  // Tells which keys are here, without reading rows. found: (n), overwritten.
  void Find(const uint64_t* keys, size_t n, uint8_t* found) const;
  // Like Read, but also removes the rows found: staging moves rows into the pass table.
  Status Take(const uint64_t* keys, size_t n, char* rows, uint8_t* found,
              ThreadPool* pool = nullptr);

  // Writes dirty rows, which no other tier has. OutOfSpace, naming the bytes, if they and the dirty
  // rows here exceed the budget, or if one range has too few slots for its dirty rows (1.3 times
  // its share, when keys are not uniform). Then nothing is written.
  Status Write(const uint64_t* keys, const char* rows, size_t n) override;
  // The same with rows by pointer. If `clean`, the SSD tier has the rows too: they are inserted as
  // far as there is space, and a lack of space is no error.
  Status Insert(const uint64_t* keys, const char* const* row_pointers, size_t n, bool clean,
                ThreadPool* pool = nullptr);

  // Calls keep for every row, which it may change, and removes the rows for which it returns false.
  // Returns the number of removed rows. Only for tables without an SSD tier, because an SSD tier's
  // copies of the rows would not change.
  size_t Sweep(const std::function<bool(uint64_t key, char* row)>& keep);

  Status Visit(const std::function<Status(uint64_t key, const char* row)>& visit) override;
  size_t rows() const override;
  size_t dirty_rows() const;
  // Memory of the index and the rows, in whole pages. Never above the budget.
  size_t bytes() const override;
  MemCounters counters() const;

 private:
  explicit MemTier(uint64_t budget_bytes) : budget_(budget_bytes) {}

  Status Put(const uint64_t* keys, MemRows rows, size_t n, bool dirty, ThreadPool* pool);
  Status CheckRoom(const uint64_t* keys, size_t n);  // makes space for n dirty rows
  template <typename Work>
  void ForRanges(const uint64_t* keys, size_t n, ThreadPool* pool, const Work& work) const;
  template <bool kRemove>
  void Lookup(const uint64_t* keys, size_t n, char* rows, uint8_t* found, ThreadPool* pool);

  uint64_t budget_;
  size_t max_rows_ = 0;
  size_t range_buckets_ = 0;  // buckets per range
  Buffer memory_;
  MemArena arena_;
  mutable std::vector<MemRange> ranges_;
  std::atomic<uint64_t> keys_asked_{0}, hits_{0};  // Reads may run at the same time
};

}  // namespace pbx
