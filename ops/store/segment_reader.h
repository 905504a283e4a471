// SegmentReader: one open segment. Footer, fence and filter are checked when it opens and stay in
// memory; a block is checked each time it is read, before its rows are used. Thread safe: immutable
// after Open.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/file.h"
#include "base/status.h"
#include "store/fuse_filter.h"
#include "store/segment.h"

namespace pbx {

// The row layout that a reader expects.
struct SegmentLayout {
  uint32_t row_bytes = 0;
  uint64_t fingerprint = 0;
};

class SegmentReader {
 public:
  static constexpr size_t kNone = SIZE_MAX;

  // Corruption: the file is damaged or differs from the descriptor. InvalidArgument: the file is
  // intact but has another layout or format version. `descriptor` may be null, for tools
  // that read a single file.
  static Result<std::unique_ptr<SegmentReader>> Open(const std::string& path,
                                                     const SegmentLayout& layout,
                                                     const SegmentDescriptor* descriptor);
  // The same for rows of any layout, for tools.
  static Result<std::unique_ptr<SegmentReader>> OpenAnyLayout(const std::string& path,
                                                              const SegmentDescriptor* descriptor);

  const SegmentShape& shape() const { return shape_; }
  const RandomAccessFile& file() const { return *file_; }
  size_t memory_bytes() const { return sizeof(*this) + 4 * shape_.blocks() + filter_table_.size(); }

  // ---- Which blocks a batch needs. Keys lie in [min_key, max_key].

  // FuseFilter::Select of the segment's filter.
  size_t Select(const uint64_t* keys, const uint32_t* ask, size_t n, uint32_t* passed,
                uint32_t* rejected, size_t* n_rejected) const {
    return filter_.Select(keys, ask, n, passed, rejected, n_rejected);
  }
  // The last block that can hold key. REQUIRES: `hint` is not after that block.
  size_t BlockOf(uint64_t key, size_t hint) const;
  // Whether the block before `block` can hold key too. This is possible because the fence keeps at
  // most 32 bits of a key. block: BlockOf(key) or a block before it.
  bool MayBeBefore(uint64_t key, size_t block) const {
    return block > 0 && fence_[block] == shape_.Quantum(key);
  }

  // ---- The content of a block. bytes: (block_bytes), as read.

  // Corruption, naming block, offset and rows. Must be called before the content is used.
  Status CheckBlock(size_t block, const char* bytes) const;
  // The index of key in the block, at or after `from`. kNone: not found.
  size_t FindInBlock(size_t block, const char* bytes, uint64_t key, size_t from) const;
  static uint64_t KeyAt(const char* bytes, size_t i);
  const char* RowAt(const char* bytes, size_t i) const {
    return bytes + shape_.rows_offset() + i * shape_.row_bytes;
  }

  // Reads and checks blocks [first, first + count) into out, (count, block_bytes).
  Status ReadBlocks(size_t first, size_t count, char* out) const;

 private:
  explicit SegmentReader(std::unique_ptr<RandomAccessFile> file) : file_(std::move(file)) {}
  Status Load(const SegmentLayout* layout, const SegmentDescriptor* descriptor);
  Status LoadFooter(const SegmentDescriptor* descriptor);
  Status LoadMeta();

  std::unique_ptr<RandomAccessFile> file_;
  SegmentShape shape_;
  std::vector<uint32_t> fence_;  // (B) SegmentShape::Quantum of the first key of each block
  std::vector<char> filter_table_;
  FuseFilter filter_;
};

// SegmentCursor: goes through the rows of a segment with keys in [low, high], in order, and reads
// up to 2 MiB at a time. It has no buffer before its first Next and after its end.
class SegmentCursor {
 public:
  explicit SegmentCursor(const SegmentReader* segment, uint64_t low = 0,
                         uint64_t high = UINT64_MAX);

  // The current key. Before the first Next: a lower bound of the first key.
  uint64_t key() const { return key_; }
  const char* row() const;
  // False: call Next before row().
  bool loaded() const { return buffer_.size() > 0; }
  bool done() const { return done_; }
  // Steps to the next row; the first call steps to the first row. REQUIRES: not done().
  Status Next();

 private:
  Status LoadBlocks();
  Status Step();
  void End();

  const SegmentReader* segment_;
  uint64_t low_, high_;
  Buffer buffer_;
  size_t first_block_ = 0;  // the first block in buffer_
  size_t blocks_ = 0;       // number of blocks in buffer_
  size_t block_ = 0;
  size_t index_ = 0;  // of the row in its block
  uint64_t key_;
  bool done_ = false;
};

}  // namespace pbx
