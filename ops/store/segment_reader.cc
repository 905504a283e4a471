#include "store/segment_reader.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "base/crc32c.h"

namespace pbx {
namespace {

constexpr size_t kCursorBytes = Buffer::kHugePage;  // direct I/O is faster into huge pages
constexpr size_t kMinCursorBytes = 256u << 10;

uint64_t Load64(const char* at) {
  uint64_t value;
  std::memcpy(&value, at, 8);
  return value;
}
uint32_t Load32(const char* at) {
  uint32_t value;
  std::memcpy(&value, at, 4);
  return value;
}
// The index of the first key in [begin, count) that is not below `key`.
size_t LowerBound(const char* block, size_t begin, size_t count, uint64_t key) {
  while (begin < count) {
    const size_t middle = begin + (count - begin) / 2;
    if (SegmentReader::KeyAt(block, middle) < key) {
      begin = middle + 1;
    } else {
      count = middle;
    }
  }
  return begin;
}

}  // namespace

Result<std::unique_ptr<SegmentReader>> SegmentReader::Open(const std::string& path,
                                                           const SegmentLayout& layout,
                                                           const SegmentDescriptor* descriptor) {
  auto file = RandomAccessFile::Open(path, IoMode::kDirect);
  if (!file.ok()) return file.status();
  std::unique_ptr<SegmentReader> reader(new SegmentReader(std::move(file.value())));
  PBX_RETURN_IF_ERROR(reader->Load(&layout, descriptor));
  return reader;
}

Result<std::unique_ptr<SegmentReader>> SegmentReader::OpenAnyLayout(
    const std::string& path, const SegmentDescriptor* descriptor) {
  auto file = RandomAccessFile::Open(path, IoMode::kDirect);
  if (!file.ok()) return file.status();
  std::unique_ptr<SegmentReader> reader(new SegmentReader(std::move(file.value())));
  PBX_RETURN_IF_ERROR(reader->Load(nullptr, descriptor));
  return reader;
}

uint64_t SegmentReader::KeyAt(const char* bytes, size_t i) {
  return Load64(bytes + SegmentShape::kKeysOffset + 8 * i);
}

Status SegmentReader::LoadFooter(const SegmentDescriptor* descriptor) {
  const char* path = file_->path().c_str();
  const uint64_t size = file_->size();
  if (size < SegmentShape::kTailBytes || (descriptor != nullptr && size != descriptor->bytes)) {
    return Error(Code::kCorruption, "segment %s: expected %" PRIu64 " bytes, found %" PRIu64, path,
                 descriptor != nullptr ? descriptor->bytes : uint64_t{SegmentShape::kPage}, size);
  }
  char bytes[4096];
  PBX_RETURN_IF_ERROR(
      file_->Read(size - SegmentShape::kTailBytes, SegmentShape::kTailBytes, bytes));
  const SegmentTail tail = SegmentTail::Decode(bytes);
  if (!tail.magic_ok || tail.footer_bytes < SegmentShape::kTailBytes ||
      tail.footer_bytes > std::min<uint64_t>(size, sizeof(bytes))) {
    return Error(Code::kCorruption,
                 "segment %s: expected the tail of a segment in its last %zu bytes, found other "
                 "bytes: the file is torn, damaged or not a segment",
                 path, SegmentShape::kTailBytes);
  }
  PBX_RETURN_IF_ERROR(file_->Read(size - tail.footer_bytes, tail.footer_bytes, bytes));
  // The last 12 bytes are the CRC itself and the magic.
  const uint32_t crc = Crc32c(bytes, tail.footer_bytes - 12);
  if (crc != tail.footer_crc) {
    return Error(Code::kCorruption, "segment %s: footer has CRC32C 0x%08x, expected 0x%08x", path,
                 crc, tail.footer_crc);
  }
  if (tail.version != SegmentShape::kVersion) {
    return Error(Code::kInvalidArgument,
                 "segment %s: has format %u, expected %u: read it with the version of paddlebox "
                 "that wrote it",
                 path, tail.version, SegmentShape::kVersion);
  }
  if (tail.footer_bytes != SegmentShape::kFooterBytes) {
    return Error(Code::kCorruption, "segment %s: footer of %u bytes, expected %zu", path,
                 tail.footer_bytes, SegmentShape::kFooterBytes);
  }
  auto shape = SegmentShape::Decode(bytes, file_->path(), size);
  if (!shape.ok()) return shape.status();
  shape_ = shape.value();
  if (descriptor != nullptr &&
      (descriptor->footer_crc != tail.footer_crc || descriptor->id != shape_.id ||
       descriptor->sequence != shape_.sequence || descriptor->rows != shape_.rows ||
       descriptor->min_key != shape_.min_key || descriptor->max_key != shape_.max_key)) {
    return Error(Code::kCorruption,
                 "segment %s: holds segment %" PRIu64 " (%" PRIu64
                 " rows, footer CRC32C 0x%08x), the "
                 "manifest names segment %" PRIu64 " (%" PRIu64 " rows, 0x%08x)",
                 path, shape_.id, shape_.rows, tail.footer_crc, descriptor->id, descriptor->rows,
                 descriptor->footer_crc);
  }
  return Status::Ok();
}

Status SegmentReader::LoadMeta() {
  const uint64_t offset = shape_.fence_offset();
  // One aligned read of everything after the blocks. The size was checked against the real size of
  // the file, so a bad footer cannot claim more memory than the file has bytes.
  auto meta = Buffer::Allocate(shape_.file_bytes() - offset);
  if (!meta.ok()) return meta.status();
  PBX_RETURN_IF_ERROR(file_->Read(offset, meta.value().size(), meta.value().data()));
  const size_t covered = shape_.footer_offset() - offset;
  const uint32_t crc = Crc32c(meta.value().data(), covered);
  if (crc != shape_.meta_crc) {
    return Error(Code::kCorruption,
                 "segment %s: fence and filter at offset %" PRIu64
                 " (%zu bytes) have CRC32C 0x%08x, expected 0x%08x",
                 file_->path().c_str(), offset, covered, crc, shape_.meta_crc);
  }
  std::memcpy(fence_.data(), meta.value().data(), 4 * fence_.size());
  const char* filter = meta.value().data() + (shape_.filter_offset() - offset);
  filter_table_.assign(filter, filter + shape_.filter.bytes());
  filter_ = FuseFilter(shape_.filter, shape_.min_key, shape_.max_key, filter_table_.data());
  return Status::Ok();
}

Status SegmentReader::Load(const SegmentLayout* layout, const SegmentDescriptor* descriptor) {
  PBX_RETURN_IF_ERROR(LoadFooter(descriptor));
  const char* path = file_->path().c_str();
  if (layout != nullptr &&
      (shape_.row_bytes != layout->row_bytes || shape_.layout_fingerprint != layout->fingerprint)) {
    return Error(
        Code::kInvalidArgument,
        "segment %s: holds rows of another layout (%u bytes, fingerprint 0x%016" PRIx64
        "), expected %u bytes, 0x%016" PRIx64 ": use the table settings with which it was written",
        path, shape_.row_bytes, shape_.layout_fingerprint, layout->row_bytes, layout->fingerprint);
  }
  fence_.resize(shape_.blocks());
  PBX_RETURN_IF_ERROR(LoadMeta());
  if (!std::is_sorted(fence_.begin(), fence_.end()) || fence_.front() != 0 ||
      fence_.back() > shape_.Quantum(shape_.max_key)) {
    return Error(Code::kCorruption, "segment %s: its fence does not ascend", path);
  }
  return Status::Ok();
}

size_t SegmentReader::BlockOf(uint64_t key, size_t hint) const {
  // Steps that double in length, then a binary search. With the sorted keys of a batch, the block
  // is usually near the hint, so few entries are read.
  const uint32_t quantum = shape_.Quantum(key);
  size_t low = hint;
  size_t step = 1;
  while (low + step < fence_.size() && fence_[low + step] <= quantum) {
    low += step;
    step *= 2;
  }
  const auto begin = fence_.begin() + static_cast<ptrdiff_t>(low);
  const auto end = fence_.begin() + static_cast<ptrdiff_t>(std::min(low + step, fence_.size()));
  return static_cast<size_t>(std::upper_bound(begin, end, quantum) - fence_.begin()) - 1;
}

Status SegmentReader::CheckBlock(size_t block, const char* bytes) const {
  const uint32_t expected = Load32(bytes);
  const uint32_t crc = Crc32c(bytes + 4, shape_.block_bytes - 4);
  const uint64_t first_row = block * shape_.rows_per_block();
  const uint64_t count = shape_.rows_in_block(block);
  const uint64_t offset = static_cast<uint64_t>(block) * shape_.block_bytes;
  if (crc != expected) {
    return Error(Code::kCorruption,
                 "segment %s: block %zu at offset %" PRIu64
                 " has CRC32C 0x%08x, expected 0x%08x (rows "
                 "%" PRIu64 "..%" PRIu64 ")",
                 file_->path().c_str(), block, offset, crc, expected, first_row,
                 first_row + count - 1);
  }
  const uint64_t first = KeyAt(bytes, 0);
  if (Load32(bytes + 4) != count || first < shape_.min_key || first > shape_.max_key ||
      shape_.Quantum(first) != fence_[block]) {
    return Error(Code::kCorruption,
                 "segment %s: block %zu at offset %" PRIu64
                 " is another block: %u rows from key 0x%016" PRIx64 ", expected %" PRIu64
                 " from quantum 0x%08x (rows %" PRIu64 "..%" PRIu64 ")",
                 file_->path().c_str(), block, offset, Load32(bytes + 4), first, count,
                 fence_[block], first_row, first_row + count - 1);
  }
  return Status::Ok();
}

size_t SegmentReader::FindInBlock(size_t block, const char* bytes, uint64_t key,
                                  size_t from) const {
  const size_t count = shape_.rows_in_block(block);
  const size_t at = LowerBound(bytes, from, count, key);
  return at < count && KeyAt(bytes, at) == key ? at : kNone;
}

Status SegmentReader::ReadBlocks(size_t first, size_t count, char* out) const {
  const uint64_t bytes = shape_.block_bytes;
  PBX_RETURN_IF_ERROR(file_->Read(first * bytes, count * bytes, out));
  for (size_t i = 0; i < count; ++i) PBX_RETURN_IF_ERROR(CheckBlock(first + i, out + i * bytes));
  return Status::Ok();
}

SegmentCursor::SegmentCursor(const SegmentReader* segment, uint64_t low, uint64_t high)
    : segment_(segment),
      low_(std::max(low, segment->shape().min_key)),
      high_(std::min(high, segment->shape().max_key)),
      key_(low_),
      done_(low_ > high_) {}

const char* SegmentCursor::row() const {
  const SegmentShape& shape = segment_->shape();
  return buffer_.data() + (block_ - first_block_) * shape.block_bytes + shape.rows_offset() +
         index_ * shape.row_bytes;
}

Status SegmentCursor::LoadBlocks() {
  const SegmentShape& shape = segment_->shape();
  if (buffer_.size() == 0) {
    // A merge has many cursors on small segments; for these, reading an eighth of the segment at a
    // time is enough.
    const size_t last = segment_->BlockOf(high_, block_);
    const size_t wanted =
        std::clamp((last + 1 - block_) * shape.block_bytes / 8, kMinCursorBytes, kCursorBytes);
    auto buffer =
        Buffer::Allocate(std::max<size_t>(1, wanted / shape.block_bytes) * shape.block_bytes);
    if (!buffer.ok()) return buffer.status();
    buffer_ = std::move(buffer.value());
  }
  first_block_ = block_;
  blocks_ = std::min<size_t>(buffer_.size() / shape.block_bytes, shape.blocks() - block_);
  return segment_->ReadBlocks(first_block_, blocks_, buffer_.data());
}

void SegmentCursor::End() {
  done_ = true;
  buffer_ = Buffer();
}

Status SegmentCursor::Next() {
  if (!loaded()) {
    block_ = segment_->BlockOf(low_, 0);
    while (segment_->MayBeBefore(low_, block_)) --block_;
    PBX_RETURN_IF_ERROR(LoadBlocks());
    key_ = SegmentReader::KeyAt(buffer_.data(), 0);
  } else {
    PBX_RETURN_IF_ERROR(Step());
  }
  while (!done_ && key_ < low_) PBX_RETURN_IF_ERROR(Step());
  if (!done_ && key_ > high_) End();
  return Status::Ok();
}

Status SegmentCursor::Step() {
  const SegmentShape& shape = segment_->shape();
  if (++index_ == shape.rows_in_block(block_)) {
    index_ = 0;
    if (++block_ == shape.blocks()) {
      End();
      return Status::Ok();
    }
    if (block_ == first_block_ + blocks_) PBX_RETURN_IF_ERROR(LoadBlocks());
  }
  const char* block = buffer_.data() + (block_ - first_block_) * shape.block_bytes;
  const uint64_t key = SegmentReader::KeyAt(block, index_);
  if (key <= key_) {
    return Error(Code::kCorruption,
                 "segment %s: keys do not ascend at block %zu, row %zu: 0x%016" PRIx64
                 " after 0x%016" PRIx64,
                 SegmentFileName(shape.id).c_str(), block_, index_, key, key_);
  }
  key_ = key;
  return Status::Ok();
}

}  // namespace pbx
