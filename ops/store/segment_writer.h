// SegmentWriter: writes one segment from front to back (docs/formats/segment.md), bypassing the
// page cache. It uses about 2 MiB of memory plus 8 bytes per row, and 20 more bytes per row while
// the filter is built. The file does not exist under its name before Finish. Not thread safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/file.h"
#include "base/status.h"
#include "store/segment.h"

namespace pbx {

struct SegmentSpec {
  uint64_t id = 0;
  uint64_t sequence = 0;
  uint32_t row_bytes = 0;  // in [1, SegmentShape::kMaxRowBytes]
  uint64_t layout_fingerprint = 0;
  uint32_t filter_bits = 8;  // 8 or 12
};

class SegmentWriter {
 public:
  // The file is folder/SegmentFileName(id).
  static Result<std::unique_ptr<SegmentWriter>> Create(const std::string& folder,
                                                       const SegmentSpec& spec);

  // The most rows of a segment of at most max_bytes; at least 1.
  static uint64_t RowsWithin(uint64_t max_bytes, uint32_t row_bytes, uint32_t filter_bits);

  // REQUIRES: key is above the last one. row: (row_bytes).
  Status Append(uint64_t key, const char* row);
  // Writes fence, filter and footer, syncs and renames. The caller syncs the folder.
  // FailedPrecondition without rows.
  Result<SegmentDescriptor> Finish();

 private:
  SegmentWriter(std::unique_ptr<AtomicFileWriter> file, const SegmentShape& shape, Buffer buffer);
  void SealBlock();
  Status Flush();

  std::unique_ptr<AtomicFileWriter> file_;
  SegmentShape shape_;
  std::vector<uint64_t> keys_;  // of all rows: Finish builds fence and filter from them
  Buffer buffer_;               // blocks that are not written yet
  size_t sealed_ = 0;           // bytes of buffer_ in finished blocks
  uint64_t in_block_ = 0;       // rows in the block at buffer_[sealed_]
};

}  // namespace pbx
