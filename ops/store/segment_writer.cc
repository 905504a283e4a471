#include "store/segment_writer.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <utility>

#include "base/crc32c.h"
#include "store/fuse_filter.h"

namespace pbx {
namespace {
// A huge page: direct I/O from small pages has half the speed.
constexpr size_t kWriteBytes = Buffer::kHugePage;
}  // namespace

SegmentWriter::SegmentWriter(std::unique_ptr<AtomicFileWriter> file, const SegmentShape& shape,
                             Buffer buffer)
    : file_(std::move(file)), shape_(shape), buffer_(std::move(buffer)) {}

Result<std::unique_ptr<SegmentWriter>> SegmentWriter::Create(const std::string& folder,
                                                             const SegmentSpec& spec) {
  if (spec.row_bytes == 0 || spec.row_bytes > SegmentShape::kMaxRowBytes ||
      (spec.filter_bits != 8 && spec.filter_bits != 12)) {
    return Error(Code::kInvalidArgument,
                 "segment: expected row_bytes of 1 to %u and filter_bits of 8 or 12, found %u and "
                 "%u",
                 SegmentShape::kMaxRowBytes, spec.row_bytes, spec.filter_bits);
  }
  SegmentShape shape;
  shape.id = spec.id;
  shape.sequence = spec.sequence;
  shape.row_bytes = spec.row_bytes;
  shape.layout_fingerprint = spec.layout_fingerprint;
  shape.filter.bits = spec.filter_bits;
  shape.block_bytes = SegmentShape::BlockBytes(spec.row_bytes);
  auto buffer =
      Buffer::Allocate(std::max<size_t>(1, kWriteBytes / shape.block_bytes) * shape.block_bytes);
  if (!buffer.ok()) return buffer.status();
  auto file = AtomicFileWriter::Create(folder + "/" + SegmentFileName(spec.id), IoMode::kDirect);
  if (!file.ok()) return file.status();
  return std::unique_ptr<SegmentWriter>(
      new SegmentWriter(std::move(file.value()), shape, std::move(buffer.value())));
}

uint64_t SegmentWriter::RowsWithin(uint64_t max_bytes, uint32_t row_bytes, uint32_t filter_bits) {
  SegmentShape shape;
  shape.row_bytes = row_bytes;
  shape.block_bytes = SegmentShape::BlockBytes(row_bytes);
  const auto bytes_of = [&](uint64_t rows) {
    shape.rows = rows;
    shape.filter = FuseShapeFor(rows, filter_bits);
    return shape.file_bytes();
  };
  uint64_t low = 1, high = SegmentShape::kMaxRows;  // low fits, or is 1
  while (high - low > 1) {
    const uint64_t middle = low + (high - low) / 2;
    (bytes_of(middle) <= max_bytes ? low : high) = middle;
  }
  // The windows of a filter grow in steps, so a file with fewer rows can be larger.
  while (low > 1 && bytes_of(low) > max_bytes) low -= low / 64 + 1;
  return low;
}

Status SegmentWriter::Append(uint64_t key, const char* row) {
  if (!keys_.empty() && key <= keys_.back()) {
    return Error(Code::kInvalidArgument,
                 "segment %s: keys must ascend strictly, found 0x%016" PRIx64
                 " after 0x%016" PRIx64,
                 SegmentFileName(shape_.id).c_str(), key, keys_.back());
  }
  char* block = buffer_.data() + sealed_;
  std::memcpy(block + SegmentShape::kKeysOffset + 8 * in_block_, &key, 8);
  std::memcpy(block + shape_.rows_offset() + in_block_ * shape_.row_bytes, row, shape_.row_bytes);
  keys_.push_back(key);
  if (++in_block_ < shape_.rows_per_block()) return Status::Ok();
  SealBlock();
  return sealed_ == buffer_.size() ? Flush() : Status::Ok();
}

void SegmentWriter::SealBlock() {
  char* block = buffer_.data() + sealed_;
  const uint32_t count = static_cast<uint32_t>(in_block_);
  std::memcpy(block + 4, &count, 4);
  const uint32_t crc = Crc32c(block + 4, shape_.block_bytes - 4);
  std::memcpy(block, &crc, 4);
  sealed_ += shape_.block_bytes;
  in_block_ = 0;
}

Status SegmentWriter::Flush() {
  PBX_RETURN_IF_ERROR(file_->Append(buffer_.data(), sealed_));
  // The unused bytes of later blocks must be zero.
  std::memset(buffer_.data(), 0, sealed_);
  sealed_ = 0;
  return Status::Ok();
}

Result<SegmentDescriptor> SegmentWriter::Finish() {
  if (keys_.empty()) {
    return Error(Code::kFailedPrecondition, "segment %s: Finish without any row",
                 SegmentFileName(shape_.id).c_str());
  }
  if (in_block_ > 0) SealBlock();
  PBX_RETURN_IF_ERROR(Flush());

  shape_.rows = keys_.size();
  shape_.min_key = keys_.front();
  shape_.max_key = keys_.back();
  std::vector<char> filter;
  shape_.filter = BuildFuseFilter(keys_.data(), keys_.size(), shape_.filter.bits, &filter);
  auto meta = Buffer::Allocate(shape_.file_bytes() - shape_.fence_offset());
  if (!meta.ok()) return meta.status();
  char* at = meta.value().data();
  for (size_t i = 0; i < keys_.size(); i += shape_.rows_per_block(), at += 4) {
    const uint32_t quantum = shape_.Quantum(keys_[i]);
    std::memcpy(at, &quantum, 4);
  }
  std::copy(filter.begin(), filter.end(), at);
  const size_t before_footer = shape_.footer_offset() - shape_.fence_offset();
  shape_.meta_crc = Crc32c(meta.value().data(), before_footer);

  SegmentDescriptor out;
  out.footer_crc = shape_.Encode(meta.value().data() + before_footer);
  PBX_RETURN_IF_ERROR(file_->Append(meta.value().data(), meta.value().size()));
  PBX_RETURN_IF_ERROR(file_->Commit());
  out.id = shape_.id;
  out.sequence = shape_.sequence;
  out.file = SegmentFileName(shape_.id);
  out.rows = shape_.rows;
  out.min_key = shape_.min_key;
  out.max_key = shape_.max_key;
  out.bytes = file_->written();
  return out;
}

}  // namespace pbx
