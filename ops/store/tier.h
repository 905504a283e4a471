// Tier: what the HBM, MEM and SSD tiers have in common. A tier is a map from key to row, read and
// written in batches of keys in ascending order (hash order), never one key at a time.
//
// Letters: n = keys in the batch, R = row_bytes. Rows are opaque bytes to a tier.
// Thread safety: Read and Visit may run side by side; Write excludes everything else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/status.h"

namespace pbx {

class Tier {
 public:
  virtual ~Tier() = default;

  // Copies the rows of the keys that are here.
  // keys: (n) strictly ascending. rows: (n, R) row i is written where key i is here and found[i]
  // was 0. found: (n) in and out; an entry that is 1 on entry is skipped, so that tiers can be
  // asked in turn.
  virtual Status Read(const uint64_t* keys, size_t n, char* rows, uint8_t* found) = 0;

  // Inserts or replaces. keys: (n) strictly ascending, rows: (n, R). A later Write of a key wins.
  virtual Status Write(const uint64_t* keys, const char* rows, size_t n) = 0;

  // Calls visit(key, row) once for each key, in ascending order of key, with its newest row. Stops
  // at the first error and returns it. The pointer is good during the call only.
  virtual Status Visit(const std::function<Status(uint64_t key, const char* row)>& visit) = 0;

  // Keys here. Where a key may be held in several versions (SSD) the count is an upper bound.
  virtual size_t rows() const = 0;
  // Bytes held of the tier's own resource: memory for HBM and MEM, disk for SSD.
  virtual size_t bytes() const = 0;
};

}  // namespace pbx
