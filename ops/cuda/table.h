// The device's table of one pass: keys in hash order, rows, and an index that is that order itself.
//
// A row lies as on the host (row/layout.h), padded to whole sectors of 32 bytes: with AdaGrad the
// header fills the first one, and embedx begins with the second.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "cuda/call_clock.h"
#include "cuda/hbm.h"
#include "cuda/memory.h"
#include "row/round.h"
#include "rule/accessor.h"

namespace pbx::hbm {

constexpr uint32_t kSectorWords = 8;
constexpr size_t kSlots = 65536;  // that a row can name

// What kernels see of a table; passed by value.
struct TableView {
  float* rows = nullptr;             // (n, stride)
  const uint64_t* keys = nullptr;    // (n) ascending
  const uint32_t* fences = nullptr;  // (buckets + 1): where the keys of each bucket begin
  uint64_t n = 0;
  uint32_t stride = 0;  // words of a row, padding included
  int shift = 63;       // a key's bucket is key >> shift; two buckets at least
  int32_t stamp = 0;    // of its plans
  pbx_hbm_report* report = nullptr;
  uint64_t* bad_by_slot = nullptr;    // (kSlots)
  const uint64_t* refused = nullptr;  // (refused_count) ascending
  uint64_t refused_count = 0;
  bool expects = false;  // find counts what is absent
  AccessorConfig config;

  PBX_HOST_DEVICE float* row(int64_t id) const { return rows + id * static_cast<int64_t>(stride); }

  PBX_HOST_DEVICE bool Has(int32_t id) const {
    return id >= 0 && static_cast<uint64_t>(static_cast<uint32_t>(id)) < n;
  }

  // Whether a push has changed the row.
  PBX_HOST_DEVICE bool Changed(int64_t id) const {
    return ((GetWord(row(id), 0) >> 16) & kTouched) != 0;
  }

  // The row of a mixed key, or -1. A bucket has four keys on average: one sector.
  PBX_HOST_DEVICE int32_t Find(uint64_t key) const {
    const uint64_t bucket = key >> shift;
    const uint32_t end = fences[bucket + 1];
    for (uint32_t i = fences[bucket]; i < end; ++i) {
      if (keys[i] == key) return static_cast<int32_t>(i);
    }
    return -1;
  }
};

}  // namespace pbx::hbm

// A device, how its rows are, and what calls share. One call at a time uses the workspace.
struct pbx_hbm {
  int device = 0;
  pbx::AccessorConfig config;  // slot_rates: on the device
  pbx::hbm::Memory slot_rates;
  pbx::hbm::Memory workspace;              // of plan
  pbx::hbm::OwnStream copies;              // of rows between host and device
  pbx::hbm::Memory pinned[2], landing[2];  // what travels, on each side
  pbx::hbm::Event moved[2];                // the buffer may be used again
  std::mutex copying;                      // guards the four above
  pbx::hbm::CallClock pulls, pushes, plans;

  size_t words() const { return static_cast<size_t>(config.layout.words()); }
  int columns() const { return 3 + config.layout.embedx_dim; }
};

struct pbx_hbm_table {
  pbx_hbm* hbm = nullptr;
  pbx::hbm::Memory keys, rows, fences;
  pbx::hbm::Memory report;  // and behind it the counters of slots
  pbx::hbm::Memory refused, counted;
  pbx::hbm::Memory sums;  // of a batch: (n, P) that its pushes have merged
  pbx::hbm::TableView view;
};
