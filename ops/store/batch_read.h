// BatchReader: the newest row of each key of a sorted batch, out of many segments, at the speed of
// the disk.
//
// The batch is cut into tiles of neighbouring keys. For a tile the filters are asked, newest
// segment first; a key goes to the first segment that may hold it. The blocks of all segments are
// then read in one stream: neighbours in one request, and over gaps that cost less than a request
// would (DiskModel), which makes it a scan where most blocks are needed. Requests are in flight
// while the next tile is planned. A key that a filter promised in vain (0.4 to 0.8 % of the absent
// ones) asks on among the older segments.
//
// A block is read once a tile: tiles are several MiB of blocks, and share at most one block a
// segment with the next.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/disk_model.h"
#include "base/status.h"
#include "base/threads.h"
#include "store/segment_reader.h"

namespace pbx {

// Newest first. Never changed once it is shared.
using Segments = std::vector<std::shared_ptr<const SegmentReader>>;

// Sums over all reads.
struct ReadCounts {
  uint64_t filter_passed = 0;  // (key, segment) pairs that were looked up in a block
  uint64_t rows_found = 0;
  uint64_t absent_read = 0;  // keys that are nowhere and caused a read all the same
  uint64_t blocks_read = 0;  // blocks looked into
  uint64_t read_requests = 0;
  uint64_t bytes_read = 0;
};

class BatchReader {
 public:
  // pool is borrowed.
  explicit BatchReader(ThreadPool* pool);
  ~BatchReader();

  // As Tier::Read. Thread safe.
  Status Read(const Segments& segments, const uint64_t* keys, size_t n, uint32_t row_bytes,
              char* rows, uint8_t* found);

  ReadCounts counts() const;
  const DiskModel& disk() const { return disk_; }

 private:
  struct Batch;
  class Worker;
  Result<std::unique_ptr<Worker>> TakeWorker(size_t slot_bytes);
  void GiveBack(std::unique_ptr<Worker> worker);

  ThreadPool* const pool_;
  DiskModel disk_;
  mutable std::mutex mutex_;  // guards what follows
  std::vector<std::unique_ptr<Worker>> idle_;
  ReadCounts counts_;
};

}  // namespace pbx
