// AdmissionFilter: how often feasigns without a row have occurred, counted in a few bits each, so
// that the many that occur once or twice never get a row.
//
// A count-min filter: one 64-byte block for a stretch of keys (the blocks follow the order of keys,
// as everything does: a pass's sorted keys walk through them forwards, and a rank's range of keys
// is a range of blocks), and in it three saturating 8-bit counters for each key. An estimate is
// never too low, so every feasign is admitted in time; collisions admit some early.
//
// Independent of order: a pass's counts are added for the keys whose estimate was below the
// threshold before any of them, and saturating sums do not depend on who came first. So the same
// passes give the same rows, whatever the budget, the threads and the parts of a pass.
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
  static constexpr uint32_t kMaxThreshold = 255;  // what a counter holds

  AdmissionFilter() = default;

  // bytes: a power of two from kMinBytes on. threshold: 2 to kMaxThreshold occurrences.
  static Result<AdmissionFilter> Make(uint64_t bytes, uint32_t threshold);

  // keys: (n) ascending, each once; counts: (n) occurrences in the pass, null: 1 each.
  void Add(const uint64_t* keys, const uint32_t* counts, size_t n);

  uint32_t Estimate(uint64_t key) const;
  bool Admits(uint64_t key) const { return Estimate(key) >= threshold_; }

  // What a commit keeps: (bytes).
  const char* state() const { return counters_.data(); }
  uint64_t bytes() const { return counters_.size(); }
  // InvalidArgument when the state has another size.
  Status SetState(const char* state, size_t size);

 private:
  static constexpr size_t kBlock = 64;
  static constexpr int kCounters = 3;

  // Places of a key's counters.
  void Places(uint64_t key, size_t* places) const;

  Buffer counters_;
  int shift_ = 0;  // of a key, to its block
  uint32_t threshold_ = 1;
};

}  // namespace pbx
