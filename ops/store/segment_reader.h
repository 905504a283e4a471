// SegmentReader: one open segment. Footer, fence and filter are checked when it opens and stay in
// memory; a block is checked each time it is read, before a row of it is believed.
// Thread safe: nothing changes after Open.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/status.h"
#include "store/filter.h"
#include "store/segment.h"

namespace pbx {

// Which rows a reader expects.
struct SegmentLayout {
  uint32_t row_bytes = 0;
  uint64_t fingerprint = 0;
};

class SegmentReader {
 public:
  struct Counts {
    uint64_t filter_passed = 0;
    uint64_t rows_found = 0;
    uint64_t blocks_read = 0;
    uint64_t bytes_read = 0;
  };

  // Corruption: a damaged file, or one that is not the descriptor's. InvalidArgument: a sound file
  // of another layout or of a later version. `descriptor` may be null (tools that look at a lone
  // file).
  static Result<std::unique_ptr<SegmentReader>> Open(const std::string& path,
                                                     const SegmentLayout& layout,
                                                     const SegmentDescriptor* descriptor);

  const SegmentShape& shape() const { return shape_; }
  const std::vector<uint64_t>& fence() const { return fence_; }  // (B) first key of each block
  size_t memory_bytes() const { return filter_.bytes() + 8 * fence_.size(); }

  // The only block that can hold key. REQUIRES: min_key <= key, and `hint` not after that block.
  size_t BlockOf(uint64_t key, size_t hint) const;

  // As Tier::Read, for keys within [min_key, max_key]; adds to *counts.
  Status Read(const uint64_t* keys, size_t n, char* rows, uint8_t* found, Counts* counts) const;

  // Reads and checks blocks [first, first + count) into out, (count, block_bytes).
  Status ReadBlocks(size_t first, size_t count, char* out) const;

 private:
  struct Wanted {
    size_t index;  // in the caller's batch
    size_t block;
  };

  explicit SegmentReader(std::unique_ptr<RandomAccessFile> file) : file_(std::move(file)) {}
  Status Load(const SegmentLayout& layout, const SegmentDescriptor* descriptor);
  Status LoadFooter(const SegmentDescriptor* descriptor);
  Status CheckBlock(size_t block, const char* bytes) const;
  Status ReadRun(const std::vector<Wanted>& run, const uint64_t* keys, char* rows, uint8_t* found,
                 std::vector<char>* buffer, Counts* counts) const;

  std::unique_ptr<RandomAccessFile> file_;
  SegmentShape shape_;
  std::vector<uint64_t> fence_;
  Filter filter_;
};

// SegmentCursor: the rows of a segment in order, read in requests of about 256 KiB. It holds no
// buffer before its first Next and after its end.
class SegmentCursor {
 public:
  explicit SegmentCursor(const SegmentReader* segment)
      : segment_(segment), key_(segment->shape().min_key) {}

  // The current key; before the first Next, the key that it will stand on.
  uint64_t key() const { return key_; }
  const char* row() const;
  // False: row() needs Next first.
  bool loaded() const { return !buffer_.empty(); }
  bool done() const { return done_; }
  // Steps to the next row; the first call to the first row.
  Status Next();

 private:
  Status LoadBlocks();

  const SegmentReader* segment_;
  std::vector<char> buffer_;
  size_t first_block_ = 0;  // of buffer_
  size_t blocks_ = 0;       // in buffer_
  size_t block_ = 0;
  size_t index_ = 0;  // of the row in its block
  uint64_t key_;
  bool done_ = false;
};

}  // namespace pbx
