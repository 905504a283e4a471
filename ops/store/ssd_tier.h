// SSD tier: hash-ordered immutable segments (docs/formats/segment.md). A write makes new segments;
// a read finds the newest row of each key (batch_read.h); a merge makes few segments of many.
// Which segments make up the tier is decided outside, by the manifest (docs/formats/manifest.md):
// this class writes files and reads the ones it was told of, and never removes one that was named.
//
// Thread safety: everything may run beside everything. Prepares queue up; a Read or Visit goes on
// with the segments it began with. Merge waits while a Read is under way, unless it is urgent.
//
// Memory: a fence of 4 bytes a block and a membership filter of 9 to 14 bits a row; never a row.
#pragma once

#include <cstdint>
#include <functional>
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
  uint64_t max_segment_bytes = 256ull << 20;  // a larger range is cut into several files
};

// Counts since the tier was opened.
struct SsdCounters {
  uint64_t keys_asked = 0;     // keys given to Read that no earlier tier had found
  uint64_t filter_passed = 0;  // (key, segment) pairs that were looked up in a block
  uint64_t rows_found = 0;
  uint64_t absent_read = 0;  // keys that are nowhere and cost a read all the same
  uint64_t blocks_read = 0;
  uint64_t read_requests = 0;
  uint64_t bytes_read = 0;     // by Read
  uint64_t bytes_written = 0;  // by Prepare
  uint64_t merge_bytes_read = 0;
  uint64_t merge_bytes_written = 0;
};

struct MergeRequest {
  // Ids of segments of the tier, any order. Every segment between the oldest and the newest of them
  // that overlaps their keys must be among them: InvalidArgument otherwise.
  std::vector<uint64_t> inputs;
  bool urgent = false;  // does not wait while the tier is read
  // Brings a copied row up to date (life events); false: the row is dead. Null: rows are copied.
  // A dead row is dropped where no older segment may hold its key, else kept as it was stored:
  // dropping it would bring the older one back.
  std::function<bool(char* row)> life;
};

struct MergeResult {
  std::vector<SegmentDescriptor> segments;  // durable, named by nothing yet; may be none
  uint64_t rows_in = 0;                     // rows of the inputs, all copies of a key
  uint64_t rows_out = 0;
  uint64_t rows_dropped = 0;  // dead ones
  uint64_t keys_gone = 0;     // of those, keys that no younger segment may hold either
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;
};

class SsdTier : public Tier {
 public:
  // Opens the named segments (any order). Checks each footer, fence and filter; a missing, short or
  // damaged file is an error that names it. pool is borrowed and outlives the tier.
  static Result<std::unique_ptr<SsdTier>> Open(const SsdOptions& options,
                                               const std::vector<SegmentDescriptor>& segments,
                                               ThreadPool* pool);
  ~SsdTier() override;

  // Neighbouring blocks are read in one request, many requests at a time; a block's CRC is checked
  // before a row is believed.
  Status Read(const uint64_t* keys, size_t n, char* rows, uint8_t* found) override;

  // Which keys a segment may hold, by the filters alone: of those that none holds fewer than 1 %
  // too many. keys: (n). may_hold: (n), overwritten.
  void MayHold(const uint64_t* keys, size_t n, uint8_t* may_hold) const;

  // Prepare + Publish, for use without a manifest.
  Status Write(const uint64_t* keys, const char* rows, size_t n) override;

  // Writes the rows as durable segments (fdatasync, rename, folder synced) that Read does not see
  // yet: range files, written side by side. On an error no file is left. Rows are given by pointer
  // so that a sparse choice of a larger table needs no copy: row i is at row_pointers[i].
  Result<std::vector<SegmentDescriptor>> Prepare(const uint64_t* keys,
                                                 const char* const* row_pointers, size_t n);
  // Adds prepared segments to what Read sees: all of them, or none on an error.
  Status Publish(const std::vector<SegmentDescriptor>& segments) { return Replace({}, segments); }

  // Writes the newest row of each key of the inputs as durable segments, which take the age of the
  // youngest input. FailedPrecondition when cancelled. Merges of different inputs may run side by
  // side. On an error no file is left.
  Result<MergeResult> Merge(const MergeRequest& request);
  // Ends the merges under way, and every later one at once.
  void CancelMerges();

  // Takes segments out and others in, in one step: a merge's inputs and outputs. The files of the
  // removed ones are left to the caller.
  Status Replace(const std::vector<uint64_t>& removed, const std::vector<SegmentDescriptor>& added);

  Status Visit(const std::function<Status(uint64_t key, const char* row)>& visit) override {
    return Visit(0, UINT64_MAX, visit);
  }
  // Of keys in [low, high]; of other keys at most the blocks at the ends are read.
  Status Visit(uint64_t low, uint64_t high,
               const std::function<Status(uint64_t key, const char* row)>& visit);
  size_t rows() const override;
  size_t bytes() const override;
  size_t memory_bytes() const;  // fences and filters
  size_t segments() const;
  SsdCounters counters() const;

 private:
  struct Impl;
  explicit SsdTier(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace pbx
