// SSD tier: hash-ordered immutable segments (docs/formats/segment.md). A write makes new segments;
// a read asks the newest segment first. Which segments make up the tier is decided outside, by the
// manifest (docs/formats/manifest.md): this class writes files and reads the ones it was told of.
//
// Thread safety: Read and Visit may run beside Prepare, Publish and each other; Prepares queue up.
//
// Memory: a fence of 8 bytes a block and a membership filter of about 10 bits a row; never a row.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/threads.h"
#include "store/segment.h"
#include "store/tier.h"

namespace pbx {

struct SsdOptions {
  std::string folder;                         // must exist
  uint32_t row_bytes = 0;                     // > 0
  uint64_t layout_fingerprint = 0;            // of the row layout: another one is refused
  uint64_t max_segment_bytes = 256ull << 20;  // a larger write is cut into several files
};

// Counts since the tier was opened.
struct SsdCounters {
  uint64_t keys_asked = 0;     // keys given to Read that no earlier tier had found
  uint64_t filter_passed = 0;  // (key, segment) pairs that the filter let through
  uint64_t rows_found = 0;
  uint64_t blocks_read = 0;
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;
};

class SsdTier : public Tier {
 public:
  // Opens the named segments (any order; sorted by id). Checks each footer, fence and filter; a
  // missing, short or damaged file is an error that names it. pool is borrowed and outlives the
  // tier.
  static Result<std::unique_ptr<SsdTier>> Open(const SsdOptions& options,
                                               const std::vector<SegmentDescriptor>& segments,
                                               ThreadPool* pool);
  ~SsdTier() override;

  // Each needed block is read at most once a call, neighbours in one request; its CRC is checked
  // before a row is believed.
  Status Read(const uint64_t* keys, size_t n, char* rows, uint8_t* found) override;

  // Prepare + Publish, for use without a manifest (tests).
  Status Write(const uint64_t* keys, const char* rows, size_t n) override;

  // Writes the rows as durable segments (fdatasync, rename, folder synced) that Read does not see
  // yet, each within max_segment_bytes. Ids start at next_id. On an error no file is left. Rows are
  // given by pointer so that a sparse choice of a larger table needs no copy: row i is at
  // row_pointers[i].
  Result<std::vector<SegmentDescriptor>> Prepare(const uint64_t* keys,
                                                 const char* const* row_pointers, size_t n);
  // Adds prepared segments to what Read sees: all of them, or none on an error. A Read or Visit
  // that is under way goes on with the segments it began with.
  Status Publish(const std::vector<SegmentDescriptor>& segments);

  Status Visit(const std::function<Status(uint64_t key, const char* row)>& visit) override;
  size_t rows() const override;
  size_t bytes() const override;
  size_t memory_bytes() const;  // fences and filters
  size_t segments() const;
  SsdCounters counters() const;
  uint64_t next_id() const;

 private:
  struct Impl;
  explicit SsdTier(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace pbx
