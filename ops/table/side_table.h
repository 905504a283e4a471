// SideTable: a small read-only matrix beside the sparse table, for one pass. PaddleBox has two: the
// GpuReplicaCache (rows by number) and the InputTable (rows by string key).
//
// Letters: N = rows, D = columns.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/buffer.h"
#include "base/status.h"
#include "base/threads.h"
#include "row/side_rows.h"

namespace pbx {

struct SideTableConfig {
  std::string name;    // for messages
  size_t dim = 1;      // D
  bool keyed = false;  // rows have string keys, and row 0 is zeros under the key "-"
  int threads = 1;     // used by Gather and RowsOf
};

// Immutable and thread safe.
class SideTable {
 public:
  static constexpr size_t kMaxRows = (1u << 31) - 1;

  // The rows of the parts, in order. Each part is freed after it was copied. InvalidArgument if the
  // values or keys of a part do not fit D and `keyed`, if a key is "-" or occurs twice (PaddleBox
  // silently keeps the first), and for more than kMaxRows rows. OutOfSpace.
  static Result<std::shared_ptr<SideTable>> Make(const SideTableConfig& config,
                                                 std::vector<SideRows> parts);

  const SideTableConfig& config() const { return config_; }
  size_t rows() const { return rows_; }
  const float* values() const { return reinterpret_cast<const float*>(values_.data()); }  // (N, D)

  // How Gather treats an id outside [0, N).
  enum class Stray {
    kIsError,  // InvalidArgument, naming the first
    kIsRow0,   // reads row 0 and counts it
  };
  // ids: (n). out: (n, D), undefined after an error.
  Status Gather(const int64_t* ids, size_t n, Stray stray, float* out) const;

  // out[i]: row of keys[i], 0: not found. Returns the number of keys not found. REQUIRES: keyed.
  size_t RowsOf(const std::vector<std::string_view>& keys, int64_t* out) const;

  uint64_t strays() const { return strays_; }  // ids read as row 0 so far

 private:
  explicit SideTable(const SideTableConfig& config) : config_(config), pool_(config.threads) {}

  Status CheckParts(const std::vector<SideRows>& parts) const;
  Status IndexKeys(const std::vector<SideRows>& parts);
  size_t Place(std::string_view key) const;  // its slot in index_, or the free slot for it

  SideTableConfig config_;
  mutable ThreadPool pool_;
  size_t rows_ = 0;
  Buffer values_;                // (N, D)
  SideRows keys_;                // key_bytes and key_ends of all rows
  std::vector<uint32_t> index_;  // open addressing: row + 1, 0 is free
  mutable std::atomic<uint64_t> strays_{0};
};

}  // namespace pbx
