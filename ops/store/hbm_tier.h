// HBM tier on the host: the table of one pass. Keys are in hash order, and row i belongs to
// keys()[i]; i is the row id that the feeder writes into batches. So no hashing is needed while a
// pass trains: a pull reads at row(0) + id * row_bytes().
//
// At most 2^31 - 1 rows. Rows are in huge pages, one after another.
//
// Rows are neither padded nor aligned. Measured on an AMD EPYC with D = 16 and 106,496 uniform ids
// of 10 M rows, as shares of the time of a pull and of a push:
//
//   rows of 100 bytes padded to 128       0.97, 1.02; 28 % more memory
//   rows without word 0, of 96 bytes      0.94, 1.05; to be converted when staged or committed
//
// While rows were prefetched into the first-level cache, padding saved a fifth of a push.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/buffer.h"
#include "base/sorted_index.h"
#include "base/status.h"
#include "store/tier.h"

namespace pbx {

class HbmTier : public Tier {
 public:
  // An empty table of rows of row_bytes (> 0, a multiple of 4).
  explicit HbmTier(uint32_t row_bytes) : row_bytes_(row_bytes) {}

  // A table of these keys with zeroed rows, to be filled through row(). keys: strictly ascending.
  static Result<std::unique_ptr<HbmTier>> Build(uint32_t row_bytes, std::vector<uint64_t> keys);

  // Memory per row of a built table, for budgets: the row, its key, and one or two index entries.
  static uint64_t BytesPerRow(uint32_t row_bytes) { return row_bytes + 8 + 8; }

  Status Read(const uint64_t* keys, size_t n, char* rows, uint8_t* found) override;
  // Merges into a new table. For tests and tools, not used in training.
  Status Write(const uint64_t* keys, const char* rows, size_t n) override;
  Status Visit(const std::function<Status(uint64_t key, const char* row)>& visit) override;
  size_t rows() const override { return keys_.size(); }
  size_t bytes() const override {
    return keys_.size() * sizeof(uint64_t) + rows_.size() + index_.bytes();
  }

  uint32_t row_bytes() const { return row_bytes_; }
  const std::vector<uint64_t>& keys() const { return keys_; }
  const SortedIndex& index() const { return index_; }
  char* row(size_t id) { return rows_.data() + id * row_bytes_; }
  const char* row(size_t id) const { return rows_.data() + id * row_bytes_; }

 private:
  uint32_t row_bytes_;
  std::vector<uint64_t> keys_;
  Buffer rows_;
  SortedIndex index_;
};

}  // namespace pbx
