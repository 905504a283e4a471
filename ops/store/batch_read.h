// BatchReader: reads the newest row of each key of a sorted batch from many segments, at the speed
// of the disk.
//
// The batch is cut into tiles of neighbouring keys. For each tile the filters of the segments are
// checked, newest first; a key is looked up in the first segment that may hold it. The blocks of
// all segments are read in one stream. Neighbouring blocks are read in one request. A request also
// covers a gap between needed blocks if reading the gap costs less than another request
// (DiskModel), so the read becomes a scan if most blocks are needed. Requests are in flight while
// the next tile is planned. A key that passes a filter but is not in the segment (0.4 to 0.8 % of
// the absent keys) is looked up in the older segments.
//
// A block is read once per tile. Tiles are several MiB of blocks, and two neighbouring tiles share
// at most one block per segment.
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

// Newest first. Immutable once it is shared.
using Segments = std::vector<std::shared_ptr<const SegmentReader>>;

// Sums over all reads.
struct ReadCounts {
  uint64_t filter_passed = 0;  // (key, segment) pairs looked up in a block
  uint64_t rows_found = 0;
  uint64_t absent_read = 0;  // keys that are in no segment but caused a read
  uint64_t blocks_read = 0;  // blocks searched
  uint64_t read_requests = 0;
  uint64_t bytes_read = 0;
};

class BatchReader {
 public:
  // pool must outlive the reader.
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
  mutable std::mutex mutex_;  // guards the members below
  std::vector<std::unique_ptr<Worker>> idle_;
  ReadCounts counts_;
};

}  // namespace pbx
