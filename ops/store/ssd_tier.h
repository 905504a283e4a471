// SSD tier: immutable segments in hash order (docs/formats/segment.md). A write makes new segments;
// a read finds the newest row of each key (batch_read.h); a merge makes few segments of many. The
// manifest (docs/formats/manifest.md) decides which segments belong to the tier. This class writes
// files, reads the files that it is given, and never removes a published one.
//
// Thread safety: all functions may run at the same time. Prepares run one after the other. A Read
// or Visit uses the segments that it started with until its end. A Merge waits during a Read,
// unless it is urgent.
//
// Memory: a fence of 4 bytes per block and a filter of 9 to 14 bits per row. Rows are not cached.
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
  std::string folder;               // must exist
  uint32_t row_bytes = 0;           // > 0
  uint64_t layout_fingerprint = 0;  // of the row layout; a segment with another one is an error
  uint64_t max_segment_bytes = 256ull << 20;  // a larger range becomes several files
};

// Counts since the tier was opened.
struct SsdCounters {
  uint64_t keys_asked = 0;     // keys given to Read and not found by an earlier tier
  uint64_t filter_passed = 0;  // (key, segment) pairs looked up in a block
  uint64_t rows_found = 0;
  uint64_t absent_read = 0;  // keys that are in no segment but caused a read
  uint64_t blocks_read = 0;
  uint64_t read_requests = 0;
  uint64_t bytes_read = 0;     // by Read
  uint64_t bytes_written = 0;  // by Prepare
  uint64_t merge_bytes_read = 0;
  uint64_t merge_bytes_written = 0;
};

struct MergeRequest {
  // Ids of segments of the tier, in any order. Every segment between the oldest and the newest that
  // overlaps their keys must be among them, otherwise InvalidArgument.
  std::vector<uint64_t> inputs;
  bool urgent = false;  // does not wait for Reads
  // Applies life events to a copied row and returns false if the row is dead. If `life` is null,
  // rows are copied unchanged. A dead row is dropped if, by the filters, no older segment holds its
  // key. Otherwise it is kept as stored, because dropping it would bring the older row back.
  std::function<bool(uint64_t key, char* row)> life;
};

struct MergeResult {
  std::vector<SegmentDescriptor> segments;  // durable, not in a manifest yet; may be empty
  uint64_t rows_in = 0;                     // rows of the inputs, including all copies of a key
  uint64_t rows_out = 0;
  uint64_t rows_dropped = 0;  // dead rows
  uint64_t keys_gone = 0;     // dropped rows whose keys no younger segment may hold
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;
};

// An estimate of a segment's dead rows, as shares of its rows.
struct DeadShare {
  uint64_t id = 0;
  double droppable = 0;  // a merge of this segment alone would drop them
  double keys_gone = 0;  // no younger segment holds their keys
};

class SsdTier : public Tier {
 public:
  // Opens the given segments, in any order. Checks each footer, fence and filter; a missing, short
  // or damaged file is an error that names it. pool must outlive the tier.
  static Result<std::unique_ptr<SsdTier>> Open(const SsdOptions& options,
                                               const std::vector<SegmentDescriptor>& segments,
                                               ThreadPool* pool);
  ~SsdTier() override;

  // Neighbouring blocks are read in one request, many requests at a time. The CRC of a block is
  // checked before its rows are used.
  Status Read(const uint64_t* keys, size_t n, char* rows, uint8_t* found) override;

  // Which keys the segments may hold, by the filters alone: fewer than 1 % of the absent keys pass.
  // keys: (n). may_hold: (n), overwritten.
  void MayHold(const uint64_t* keys, size_t n, uint8_t* may_hold) const;

  // Prepare + Publish, for use without a manifest.
  Status Write(const uint64_t* keys, const char* rows, size_t n) override;

  // Writes the rows as durable segments (fdatasync, rename, sync of the folder) that Read does not
  // see yet: range files, written in parallel. On an error no file is left. Row i is at
  // row_pointers[i], so that a sparse selection of a larger table needs no copy.
  Result<std::vector<SegmentDescriptor>> Prepare(const uint64_t* keys,
                                                 const char* const* row_pointers, size_t n);
  // Makes prepared segments visible to Read: all of them, or none on an error.
  Status Publish(const std::vector<SegmentDescriptor>& segments) { return Replace({}, segments); }

  // Writes the newest row of each key of the inputs as durable segments with the sequence of the
  // youngest input. FailedPrecondition if cancelled. Merges of different inputs may run at the same
  // time. On an error no file is left.
  Result<MergeResult> Merge(const MergeRequest& request);
  // The segments of which some rows of a sample are dead. The sample has 12 to 288 rows of each
  // segment and is read once. Blocks that cannot be read are left out of it.
  // survives: applies life events to the first kSampledWords words of a row, as MergeRequest::life.
  static constexpr size_t kSampledWords = 6;
  std::vector<DeadShare> DeadShares(const std::function<bool(uint64_t key, float* head)>& survives);
  // Cancels the running merges and every later one.
  void CancelMerges();

  // Removes segments and adds others in one step: the inputs and outputs of a merge. The caller
  // removes the files of the removed segments.
  Status Replace(const std::vector<uint64_t>& removed, const std::vector<SegmentDescriptor>& added);

  Status Visit(const std::function<Status(uint64_t key, const char* row)>& visit) override {
    return Visit(0, UINT64_MAX, visit);
  }
  // The same for keys in [low, high]. Rows of other keys are read only in the first and last block.
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
