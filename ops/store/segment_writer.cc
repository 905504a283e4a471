#include "store/segment_writer.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <utility>

#include "base/crc32c.h"
#include "store/filter.h"

namespace pbx {
namespace {
constexpr size_t kWriteBytes = 1u << 20;
}

SegmentWriter::SegmentWriter(std::unique_ptr<AtomicFileWriter> file, const SegmentShape& shape)
    : file_(std::move(file)),
      shape_(shape),
      buffer_(std::max<size_t>(1, kWriteBytes / shape.block_bytes) * shape.block_bytes) {}

Result<std::unique_ptr<SegmentWriter>> SegmentWriter::Create(const std::string& folder, uint64_t id,
                                                             uint32_t row_bytes,
                                                             uint64_t layout_fingerprint) {
  if (row_bytes == 0 || row_bytes > SegmentShape::kMaxRowBytes) {
    return Error(Code::kInvalidArgument, "a segment's row_bytes must be 1 to %u, found %u",
                 SegmentShape::kMaxRowBytes, row_bytes);
  }
  auto file = AtomicFileWriter::Create(folder + "/" + SegmentFileName(id));
  if (!file.ok()) return file.status();
  SegmentShape shape;
  shape.id = id;
  shape.row_bytes = row_bytes;
  shape.layout_fingerprint = layout_fingerprint;
  shape.block_bytes = SegmentShape::BlockBytes(row_bytes);
  return std::unique_ptr<SegmentWriter>(new SegmentWriter(std::move(file.value()), shape));
}

uint64_t SegmentWriter::RowsWithin(uint64_t max_bytes, uint32_t row_bytes) {
  SegmentShape shape;
  shape.row_bytes = row_bytes;
  shape.block_bytes = SegmentShape::BlockBytes(row_bytes);
  const uint64_t per_block =
      shape.block_bytes + 8ull + 64ull * Filter::LinesFor(shape.rows_per_block());
  const uint64_t fixed = SegmentShape::kFooterBytes;
  const uint64_t blocks = max_bytes > fixed ? (max_bytes - fixed) / per_block : 0;
  return std::min(SegmentShape::kMaxRows, std::max<uint64_t>(1, blocks * shape.rows_per_block()));
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
  // What a later block leaves unused must be zero.
  std::memset(buffer_.data(), 0, sealed_);
  sealed_ = 0;
  return Status::Ok();
}

Result<SegmentDescriptor> SegmentWriter::Finish() {
  if (keys_.empty()) {
    return Error(Code::kFailedPrecondition, "segment %s: Finish without a row",
                 SegmentFileName(shape_.id).c_str());
  }
  if (in_block_ > 0) SealBlock();
  PBX_RETURN_IF_ERROR(Flush());

  shape_.rows = keys_.size();
  shape_.min_key = keys_.front();
  shape_.max_key = keys_.back();
  shape_.filter_lines = Filter::LinesFor(keys_.size());
  std::vector<uint64_t> fence;
  fence.reserve(shape_.blocks());
  for (size_t i = 0; i < keys_.size(); i += shape_.rows_per_block()) fence.push_back(keys_[i]);
  Filter filter(shape_.filter_lines);
  for (const uint64_t key : keys_) filter.Add(key);
  const char* fence_bytes = reinterpret_cast<const char*>(fence.data());
  shape_.fence_crc = Crc32c(fence_bytes, 8 * fence.size());
  shape_.filter_crc = Crc32c(filter.data(), filter.bytes());

  SegmentDescriptor out;
  char footer[SegmentShape::kFooterBytes];
  out.footer_crc = shape_.Encode(footer);
  PBX_RETURN_IF_ERROR(file_->Append(fence_bytes, 8 * fence.size()));
  PBX_RETURN_IF_ERROR(file_->Append(filter.data(), filter.bytes()));
  PBX_RETURN_IF_ERROR(file_->Append(footer, sizeof(footer)));
  PBX_RETURN_IF_ERROR(file_->Commit());
  out.id = shape_.id;
  out.file = SegmentFileName(shape_.id);
  out.rows = shape_.rows;
  out.min_key = shape_.min_key;
  out.max_key = shape_.max_key;
  out.bytes = file_->written();
  return out;
}

}  // namespace pbx
