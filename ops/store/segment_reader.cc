#include "store/segment_reader.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include "base/crc32c.h"

namespace pbx {
namespace {

constexpr size_t kReadBytes = 1u << 20;  // the largest request, unless one block is larger
constexpr size_t kGapBytes = 16u << 10;  // reading over so small a gap costs less than a request
constexpr size_t kCursorBytes = 256u << 10;
constexpr size_t kWindow = 32;  // keys whose filter lines are fetched together

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
uint64_t KeyAt(const char* block, size_t i) {
  return Load64(block + SegmentShape::kKeysOffset + 8 * i);
}

// Position of the first key in [begin, count) that is not below `key`.
size_t LowerBound(const char* block, size_t begin, size_t count, uint64_t key) {
  while (begin < count) {
    const size_t middle = begin + (count - begin) / 2;
    if (KeyAt(block, middle) < key) {
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
  auto file = RandomAccessFile::Open(path);
  if (!file.ok()) return file.status();
  std::unique_ptr<SegmentReader> reader(new SegmentReader(std::move(file.value())));
  PBX_RETURN_IF_ERROR(reader->Load(layout, descriptor));
  return reader;
}

Status SegmentReader::LoadFooter(const SegmentDescriptor* descriptor) {
  const char* path = file_->path().c_str();
  const uint64_t size = file_->size();
  if (size < SegmentShape::kTailBytes || (descriptor != nullptr && size != descriptor->bytes)) {
    return Error(Code::kCorruption, "segment %s: expected %" PRIu64 " bytes, found %" PRIu64, path,
                 descriptor != nullptr ? descriptor->bytes : SegmentShape::kFooterBytes, size);
  }
  char bytes[4096];
  PBX_RETURN_IF_ERROR(
      file_->Read(size - SegmentShape::kTailBytes, SegmentShape::kTailBytes, bytes));
  const SegmentTail tail = SegmentTail::Decode(bytes);
  if (!tail.magic_ok || tail.footer_bytes < SegmentShape::kTailBytes ||
      tail.footer_bytes > std::min<uint64_t>(size, sizeof(bytes))) {
    return Error(Code::kCorruption,
                 "segment %s: its last %zu bytes are no segment's tail: torn, damaged, or not a "
                 "segment",
                 path, SegmentShape::kTailBytes);
  }
  PBX_RETURN_IF_ERROR(file_->Read(size - tail.footer_bytes, tail.footer_bytes, bytes));
  const uint32_t crc =
      Crc32c(bytes, tail.footer_bytes - 12);  // the field itself and the magic follow
  if (crc != tail.footer_crc || tail.version == 0) {
    return Error(Code::kCorruption, "segment %s: footer has CRC32C 0x%08x, expected 0x%08x", path,
                 crc, tail.footer_crc);
  }
  if (tail.version > SegmentShape::kVersion) {
    return Error(Code::kInvalidArgument,
                 "segment %s: written by a later version (format %u, this build reads up to %u): "
                 "read it with that version",
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
       descriptor->rows != shape_.rows || descriptor->min_key != shape_.min_key ||
       descriptor->max_key != shape_.max_key)) {
    return Error(Code::kCorruption,
                 "segment %s: holds segment %" PRIu64 " (%" PRIu64
                 " rows, footer CRC32C 0x%08x), the "
                 "manifest names segment %" PRIu64 " (%" PRIu64 " rows, 0x%08x)",
                 path, shape_.id, shape_.rows, tail.footer_crc, descriptor->id, descriptor->rows,
                 descriptor->footer_crc);
  }
  return Status::Ok();
}

Status SegmentReader::Load(const SegmentLayout& layout, const SegmentDescriptor* descriptor) {
  PBX_RETURN_IF_ERROR(LoadFooter(descriptor));
  const char* path = file_->path().c_str();
  if (shape_.row_bytes != layout.row_bytes || shape_.layout_fingerprint != layout.fingerprint) {
    return Error(
        Code::kInvalidArgument,
        "segment %s: holds rows of another layout (%u bytes, fingerprint 0x%016" PRIx64
        "), expected %u bytes, 0x%016" PRIx64 ": use the table settings it was written with",
        path, shape_.row_bytes, shape_.layout_fingerprint, layout.row_bytes, layout.fingerprint);
  }
  const auto load = [&](const char* what, uint64_t offset, char* out, size_t bytes,
                        uint32_t expected) {
    PBX_RETURN_IF_ERROR(file_->Read(offset, bytes, out));
    const uint32_t crc = Crc32c(out, bytes);
    if (crc == expected) return Status::Ok();
    return Error(Code::kCorruption,
                 "segment %s: %s at offset %" PRIu64
                 " (%zu bytes) has CRC32C 0x%08x, expected 0x%08x",
                 path, what, offset, bytes, crc, expected);
  };
  // Both sizes were checked against the real size of the file, so a bad footer cannot ask for more
  // memory than the file has bytes.
  fence_.resize(shape_.blocks());
  PBX_RETURN_IF_ERROR(load("fence", shape_.fence_offset(), reinterpret_cast<char*>(fence_.data()),
                           8 * fence_.size(), shape_.fence_crc));
  filter_ = Filter(shape_.filter_lines);
  PBX_RETURN_IF_ERROR(
      load("filter", shape_.filter_offset(), filter_.data(), filter_.bytes(), shape_.filter_crc));
  const bool ascending = std::adjacent_find(fence_.begin(), fence_.end(),
                                            std::greater_equal<uint64_t>()) == fence_.end();
  if (!ascending || fence_.front() != shape_.min_key || fence_.back() > shape_.max_key) {
    return Error(Code::kCorruption, "segment %s: its fence is not in the order of keys", path);
  }
  return Status::Ok();
}

size_t SegmentReader::BlockOf(uint64_t key, size_t hint) const {
  // Steps that double, then a binary search: near the hint, where a batch in order mostly lands,
  // this looks at a few neighbours only.
  size_t low = hint;
  size_t step = 1;
  while (low + step < fence_.size() && fence_[low + step] <= key) {
    low += step;
    step *= 2;
  }
  const auto begin = fence_.begin() + static_cast<ptrdiff_t>(low);
  const auto end = fence_.begin() + static_cast<ptrdiff_t>(std::min(low + step, fence_.size()));
  return static_cast<size_t>(std::upper_bound(begin, end, key) - fence_.begin()) - 1;
}

Status SegmentReader::CheckBlock(size_t block, const char* bytes) const {
  const uint32_t expected = Load32(bytes);
  const uint32_t crc = Crc32c(bytes + 4, shape_.block_bytes - 4);
  const uint64_t first_row = block * shape_.rows_per_block();
  const uint64_t count = shape_.rows_in_block(block);
  if (crc != expected) {
    return Error(Code::kCorruption,
                 "segment %s: block %zu at offset %" PRIu64
                 " has CRC32C 0x%08x, expected 0x%08x (rows "
                 "%" PRIu64 "..%" PRIu64 ")",
                 file_->path().c_str(), block, static_cast<uint64_t>(block) * shape_.block_bytes,
                 crc, expected, first_row, first_row + count - 1);
  }
  if (Load32(bytes + 4) != count || KeyAt(bytes, 0) != fence_[block]) {
    return Error(Code::kCorruption,
                 "segment %s: block %zu at offset %" PRIu64
                 " is another block: %u rows from key 0x%016" PRIx64 ", expected %" PRIu64
                 " from 0x%016" PRIx64 " (rows %" PRIu64 "..%" PRIu64 ")",
                 file_->path().c_str(), block, static_cast<uint64_t>(block) * shape_.block_bytes,
                 Load32(bytes + 4), KeyAt(bytes, 0), count, fence_[block], first_row,
                 first_row + count - 1);
  }
  return Status::Ok();
}

Status SegmentReader::ReadBlocks(size_t first, size_t count, char* out) const {
  const uint64_t bytes = shape_.block_bytes;
  PBX_RETURN_IF_ERROR(file_->Read(first * bytes, count * bytes, out));
  for (size_t i = 0; i < count; ++i) PBX_RETURN_IF_ERROR(CheckBlock(first + i, out + i * bytes));
  return Status::Ok();
}

Status SegmentReader::ReadRun(const std::vector<Wanted>& run, const uint64_t* keys, char* rows,
                              uint8_t* found, std::vector<char>* buffer, Counts* counts) const {
  const size_t first = run.front().block;
  const size_t bytes = (run.back().block - first + 1) * shape_.block_bytes;
  if (buffer->size() < bytes) buffer->resize(bytes);
  PBX_RETURN_IF_ERROR(
      file_->Read(static_cast<uint64_t>(first) * shape_.block_bytes, bytes, buffer->data()));
  counts->bytes_read += bytes;
  size_t checked = SIZE_MAX;
  size_t at = 0;
  for (const Wanted& wanted : run) {
    const char* block = buffer->data() + (wanted.block - first) * shape_.block_bytes;
    if (wanted.block != checked) {
      PBX_RETURN_IF_ERROR(CheckBlock(wanted.block, block));
      checked = wanted.block;
      at = 0;
      ++counts->blocks_read;
    }
    const uint64_t key = keys[wanted.index];
    const size_t count = shape_.rows_in_block(wanted.block);
    at = LowerBound(block, at, count, key);
    if (at == count || KeyAt(block, at) != key) continue;
    std::memcpy(rows + wanted.index * shape_.row_bytes,
                block + shape_.rows_offset() + at * shape_.row_bytes, shape_.row_bytes);
    found[wanted.index] = 1;
    ++counts->rows_found;
  }
  return Status::Ok();
}

Status SegmentReader::Read(const uint64_t* keys, size_t n, char* rows, uint8_t* found,
                           Counts* counts) const {
  const size_t max_run = std::max<size_t>(1, kReadBytes / shape_.block_bytes);
  const size_t max_step = 1 + kGapBytes / shape_.block_bytes;
  std::vector<Wanted> run;  // keys whose blocks lie close enough for one request
  std::vector<char> buffer;
  size_t block = 0;
  for (size_t begin = 0; begin < n; begin += kWindow) {
    const size_t end = std::min(n, begin + kWindow);
    for (size_t i = begin; i < end; ++i) {
      if (found[i] == 0) filter_.Prefetch(keys[i]);
    }
    for (size_t i = begin; i < end; ++i) {
      if (found[i] != 0 || !filter_.MayContain(keys[i])) continue;
      ++counts->filter_passed;
      block = BlockOf(keys[i], block);
      if (!run.empty() &&
          (block - run.back().block > max_step || block - run.front().block >= max_run)) {
        PBX_RETURN_IF_ERROR(ReadRun(run, keys, rows, found, &buffer, counts));
        run.clear();
      }
      run.push_back({i, block});
    }
  }
  return run.empty() ? Status::Ok() : ReadRun(run, keys, rows, found, &buffer, counts);
}

const char* SegmentCursor::row() const {
  const SegmentShape& shape = segment_->shape();
  return buffer_.data() + (block_ - first_block_) * shape.block_bytes + shape.rows_offset() +
         index_ * shape.row_bytes;
}

Status SegmentCursor::LoadBlocks() {
  const SegmentShape& shape = segment_->shape();
  first_block_ = block_;
  blocks_ = std::min<size_t>(std::max<size_t>(1, kCursorBytes / shape.block_bytes),
                             shape.blocks() - block_);
  buffer_.resize(blocks_ * shape.block_bytes);
  return segment_->ReadBlocks(first_block_, blocks_, buffer_.data());
}

Status SegmentCursor::Next() {
  const SegmentShape& shape = segment_->shape();
  const bool first = !loaded();
  if (!first && ++index_ == shape.rows_in_block(block_)) {
    index_ = 0;
    if (++block_ == shape.blocks()) {
      done_ = true;
      std::vector<char>().swap(buffer_);
      return Status::Ok();
    }
  }
  if (first || block_ == first_block_ + blocks_) PBX_RETURN_IF_ERROR(LoadBlocks());
  const char* block = buffer_.data() + (block_ - first_block_) * shape.block_bytes;
  const uint64_t key = KeyAt(block, index_);
  if (!first && key <= key_) {
    return Error(Code::kCorruption,
                 "segment %s: keys do not ascend at block %zu, row %zu: 0x%016" PRIx64
                 " after 0x%016" PRIx64,
                 SegmentFileName(shape.id).c_str(), block_, index_, key, key_);
  }
  key_ = key;
  return Status::Ok();
}

}  // namespace pbx
