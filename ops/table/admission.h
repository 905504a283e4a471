// AdmissionFilter: counts how often feasigns without a row have occurred, in little memory, so that
// the many feasigns that occur once or twice never get a row.
//
// A count-min filter. Each range of keys has a block of 64 bytes, and each key has three saturating
// 8-bit counters in the block of its range. The blocks are in the order of keys, so the sorted keys
// of a pass go through them forwards, and the key range of a rank is a range of blocks. An estimate
// is never too low, so every feasign is admitted in time; collisions admit some feasigns too early.
//
// The result does not depend on order: the counts of a pass are added for the keys whose estimate
// was below the threshold before the pass, and the order of saturating additions does not matter.
// So the same passes give the same rows for every budget, number of threads and number of parts of
// a pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/status.h"

namespace pbx {

class AdmissionFilter {
 public:
  static constexpr uint64_t kMinBytes = 64 << 10;
  static constexpr uint32_t kMaxThreshold = 255;  // the most that a counter holds

  AdmissionFilter() = default;

  // bytes: a power of two, at least kMinBytes. threshold: 2 to kMaxThreshold occurrences.
  static Result<AdmissionFilter> Make(uint64_t bytes, uint32_t threshold);

  // keys: (n) strictly ascending. counts: (n) occurrences in the pass; null: 1 for each key.
  void Add(const uint64_t* keys, const uint32_t* counts, size_t n);

  uint32_t Estimate(uint64_t key) const;
  bool Admits(uint64_t key) const { return Estimate(key) >= threshold_; }

  // The counters, which a commit stores: (bytes).
  const char* state() const { return counters_.data(); }
  uint64_t bytes() const { return counters_.size(); }
  // InvalidArgument if the state has another size.
  Status SetState(const char* state, size_t size);

 private:
  static constexpr size_t kBlock = 64;
  static constexpr int kCounters = 3;

  // The places of a key's counters.
  void Places(uint64_t key, size_t* places) const;

  Buffer counters_;
  int shift_ = 0;  // key >> shift_ is its block
  uint32_t threshold_ = 1;
};

}  // namespace pbx
