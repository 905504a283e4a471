// The shape of a segment file (docs/formats/segment.md), and the manifest's record of a segment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "store/fuse_filter.h"

namespace pbx {

// The manifest's record of a segment. A file that differs from it is Corruption.
struct SegmentDescriptor {
  uint64_t id = 0;  // names the file; never used twice
  // Age of the rows: of two rows with the same key, the one with the higher sequence is newer.
  uint64_t sequence = 0;
  std::string file;  // name in the folder, "seg-<id:012>.seg"
  uint64_t rows = 0;
  uint64_t min_key = 0;  // first and last key in the file
  uint64_t max_key = 0;
  uint64_t bytes = 0;       // size of the file
  uint32_t footer_crc = 0;  // CRC32C of the footer, which itself holds the CRC of fence and filter
};

// "seg-<id:012>.seg"
std::string SegmentFileName(uint64_t id);

// The fields of the footer, and the sizes and offsets that follow from them.
struct SegmentShape {
  static constexpr uint32_t kVersion = 2;
  static constexpr size_t kTailBytes = 20;  // the part that does not depend on the version
  static constexpr size_t kFooterBytes = 104;
  static constexpr uint32_t kMaxRowBytes = 1u << 20;
  static constexpr uint32_t kMaxBlockBytes = 1u << 26;
  static constexpr uint64_t kMaxRows = 1ull << 36;  // with the limits above no product overflows
  static constexpr size_t kKeysOffset = 8;          // in a block
  static constexpr size_t kPage = 4096;             // blocks and files are whole pages

  uint64_t id = 0;
  uint64_t sequence = 0;
  uint64_t layout_fingerprint = 0;
  uint64_t rows = 0;
  uint64_t min_key = 0;
  uint64_t max_key = 0;
  uint32_t row_bytes = 0;
  uint32_t block_bytes = 0;
  FuseShape filter;
  uint32_t meta_crc = 0;  // CRC32C of everything between blocks and footer

  // The block size that a writer uses: the fewest pages that hold 12 rows.
  static uint32_t BlockBytes(uint32_t row_bytes);

  uint64_t rows_per_block() const { return (block_bytes - kKeysOffset) / (8ull + row_bytes); }
  uint64_t blocks() const { return (rows + rows_per_block() - 1) / rows_per_block(); }
  uint64_t rows_in_block(uint64_t block) const {
    return block + 1 < blocks() ? rows_per_block() : rows - block * rows_per_block();
  }
  size_t rows_offset() const { return kKeysOffset + 8 * rows_per_block(); }  // in a block
  uint64_t fence_offset() const { return blocks() * block_bytes; }
  uint64_t filter_offset() const { return fence_offset() + 4 * blocks(); }
  uint64_t filter_end() const { return filter_offset() + filter.bytes(); }
  uint64_t file_bytes() const { return (filter_end() + kFooterBytes + kPage - 1) / kPage * kPage; }
  uint64_t footer_offset() const { return file_bytes() - kFooterBytes; }

  // The fence holds the first key of each block in 32 bits.
  uint32_t Quantum(uint64_t key) const {
    const uint64_t span = max_key - min_key;
    const int bits = span == 0 ? 0 : 64 - __builtin_clzll(span);
    return static_cast<uint32_t>((key - min_key) >> (bits > 32 ? bits - 32 : 0));
  }

  // Writes the footer, kFooterBytes bytes. Returns its footer_crc.
  uint32_t Encode(char* out) const;
  // Reads the footer of a segment file. The caller has already checked the tail and the footer's
  // checksum. `name` names the file in errors; file_bytes is its real size. Returns Corruption if
  // the fields contradict each other or do not fit file_bytes.
  static Result<SegmentShape> Decode(const char* footer, const std::string& name,
                                     uint64_t file_bytes);
};

// The last kTailBytes of a segment.
struct SegmentTail {
  uint32_t footer_bytes = 0;
  uint32_t version = 0;
  uint32_t footer_crc = 0;
  bool magic_ok = false;
  static SegmentTail Decode(const char tail[SegmentShape::kTailBytes]);
};

}  // namespace pbx
