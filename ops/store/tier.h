// Tier: the interface of the HBM, MEM and SSD tiers. A tier is a map from key to row that is read
// and written in batches of keys in ascending order (hash order), never one key at a time.
//
// Letters: n = keys in the batch, R = row_bytes. To a tier rows are opaque bytes. Thread safety:
// Read and Visit may run at the same time; Write excludes all other calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/status.h"

namespace pbx {

class Tier {
 public:
  virtual ~Tier() = default;

  // Copies the rows of the keys that this tier has. keys: (n) strictly ascending. rows: (n, R).
  // found: (n), read and written. A key with found[i] == 1 is skipped, so that one tier after the
  // other can be read. If found[i] is 0 and the tier has key i, row i is written and found[i]
  // becomes 1.
  virtual Status Read(const uint64_t* keys, size_t n, char* rows, uint8_t* found) = 0;

  // Inserts or replaces rows. keys: (n) strictly ascending, rows: (n, R).
  virtual Status Write(const uint64_t* keys, const char* rows, size_t n) = 0;

  // Calls visit(key, row) once for each key, in ascending order of key, with its newest row. Stops
  // at the first error and returns it. The pointer is valid only during the call.
  virtual Status Visit(const std::function<Status(uint64_t key, const char* row)>& visit) = 0;

  // The number of keys. For SSD an upper bound, because several segments may hold the same key.
  virtual size_t rows() const = 0;
  // The bytes that the tier uses: memory for HBM and MEM, disk for SSD.
  virtual size_t bytes() const = 0;
};

}  // namespace pbx
