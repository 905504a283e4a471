// The device's table of one pass: keys in hash order, rows, and an index that follows from that
// order.
//
// Rows have the layout of the host (row/layout.h), padded to whole sectors of 32 bytes. With
// AdaGrad the header fills the first sector, and embedx begins in the second.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "base/threads.h"
#include "cuda/call_clock.h"
#include "cuda/hbm.h"
#include "cuda/memory.h"
#include "row/round.h"
#include "rule/accessor.h"

namespace pbx::hbm {

constexpr uint32_t kSectorWords = 8;
constexpr size_t kSlots = 65536;  // slot numbers that a row can have

// The word of a row that has column c of a pull.
PBX_HOST_DEVICE inline int WordOf(int embedx_at, int c) {
  return c < 2 ? RowLayout::kShow + c : (c == 2 ? RowLayout::kEmbed : embedx_at + c - 3);
}

// The part of a table that kernels use. Passed by value.
struct TableView {
  float* rows = nullptr;             // (n, stride)
  const uint64_t* keys = nullptr;    // (n) ascending
  const uint32_t* fences = nullptr;  // (buckets + 1): first key of each bucket
  uint64_t n = 0;
  uint32_t stride = 0;  // words of a row, including padding
  int shift = 63;       // the bucket of a key is key >> shift; at least two buckets
  int32_t stamp = 0;    // the stamp of its plans
  pbx_hbm_report* report = nullptr;
  uint64_t* bad_by_slot = nullptr;    // (kSlots)
  const uint64_t* refused = nullptr;  // (refused_count) ascending
  uint64_t refused_count = 0;
  bool expects = false;  // find counts absent feasigns
  AccessorConfig config;

  PBX_HOST_DEVICE float* row(int64_t id) const { return rows + id * static_cast<int64_t>(stride); }

  PBX_HOST_DEVICE bool Has(int32_t id) const {
    return id >= 0 && static_cast<uint64_t>(static_cast<uint32_t>(id)) < n;
  }

  // Whether a push has changed the row.
  PBX_HOST_DEVICE bool Changed(int64_t id) const {
    return ((GetWord(row(id), 0) >> 16) & kTouched) != 0;
  }

  // The row of a key (Mix of a feasign), or -1. A bucket has four keys on average, one sector.
  PBX_HOST_DEVICE int32_t Find(uint64_t key) const {
    const uint64_t bucket = key >> shift;
    const uint32_t end = fences[bucket + 1];
    for (uint32_t i = fences[bucket]; i < end; ++i) {
      if (keys[i] == key) return static_cast<int32_t>(i);
    }
    return -1;
  }
};

// embedx_dim. kDim: it as a constant, so that loops over columns are unrolled; 0: any.
template <int kDim>
PBX_HOST_DEVICE int DimOf(const TableView& table) {
  return kDim != 0 ? kDim : table.config.layout.embedx_dim;
}

// How many threads share a row of 3 + kDim columns, each with kColumns of them at once.
template <int kDim>
constexpr int kLanesOf = kDim == 0 || kDim > 32 ? 32 : (kDim > 16 ? 16 : 8);
constexpr int kColumns = 3;
constexpr int kRowsTogether = 4;  // rows that a thread loads at once

// Shared memory of a block for its rows, in bytes: small enough that several blocks share a
// multiprocessor.
constexpr size_t kMostSharedOfRows = 40 * 1024;

// How many rows a block handles, at most `most`, if each takes row_bytes of its shared memory.
inline int RowsOfBlock(int most, size_t row_bytes) {
  int rows = most;
  while (rows > 1 && static_cast<size_t>(rows) * row_bytes > kMostSharedOfRows) rows /= 2;
  return rows;
}

}  // namespace pbx::hbm

// A device, the configuration of its rows, and buffers that calls share. The workspace serves one
// call at a time.
struct pbx_hbm {
  int device = 0;
  pbx::AccessorConfig config;  // slot_rates: on the device
  pbx::hbm::Memory slot_rates;
  pbx::hbm::Memory workspace;                // used by plan
  pbx::hbm::OwnStream copies;                // the stream that copies rows between host and device
  pbx::hbm::Memory pinned[2], landing[2];    // rows being copied, on the host and on the device
  pbx::hbm::Event moved[2];                  // once it has passed, the buffer may be used again
  std::unique_ptr<pbx::ThreadPool> threads;  // that copy rows to and from pinned buffers
  std::mutex copying;                        // guards the five members above
  pbx::hbm::CallClock pulls, pushes, plans;

  size_t words() const { return static_cast<size_t>(config.layout.words()); }
  int columns() const { return 3 + config.layout.embedx_dim; }
};

struct pbx_hbm_table {
  pbx_hbm* hbm = nullptr;
  pbx::hbm::Memory keys, rows, fences;
  pbx::hbm::Memory report;  // the report, followed by the counters of slots
  pbx::hbm::Memory refused, counted;
  pbx::hbm::Memory sums;        // (n, P) the gradients that the pushes of a batch have merged
  pbx::hbm::Memory chunk_sums;  // of the whole chunks of a plan (planned_gradient.h)
  pbx::hbm::TableView view;
};
