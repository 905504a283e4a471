#include "store/segment.h"

#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "base/crc32c.h"

namespace pbx {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "stored integers are copied as they are");
constexpr char kMagic[8] = {'P', 'B', 'X', 'S', 'E', 'G', 'M', 'T'};
constexpr uint64_t kMinRowsPerBlock = 12;

template <typename T>
char* Put(char* at, T value) {
  std::memcpy(at, &value, sizeof(T));
  return at + sizeof(T);
}
template <typename T>
const char* Get(const char* at, T* value) {
  std::memcpy(value, at, sizeof(T));
  return at + sizeof(T);
}

}  // namespace

std::string SegmentFileName(uint64_t id) {
  char name[40];
  std::snprintf(name, sizeof(name), "seg-%012" PRIu64 ".seg", id);
  return name;
}

uint32_t SegmentShape::BlockBytes(uint32_t row_bytes) {
  const uint64_t wanted = kKeysOffset + kMinRowsPerBlock * (8ull + row_bytes);
  return static_cast<uint32_t>((wanted + kPage - 1) / kPage * kPage);
}

uint32_t SegmentShape::Encode(char* out) const {
  char* at = out;
  for (const uint64_t value : {id, sequence, layout_fingerprint, rows, min_key, max_key}) {
    at = Put(at, value);
  }
  for (const uint32_t value :
       {row_bytes, block_bytes, filter.bits, filter.window_log2, filter.windows, filter.seed,
        filter.by_hash, meta_crc, uint32_t{0}, static_cast<uint32_t>(kFooterBytes), kVersion}) {
    at = Put(at, value);
  }
  const uint32_t crc = Crc32c(out, static_cast<size_t>(at - out));
  at = Put(at, crc);
  std::memcpy(at, kMagic, sizeof(kMagic));
  return crc;
}

Result<SegmentShape> SegmentShape::Decode(const char* footer, const std::string& name,
                                          uint64_t file_bytes) {
  SegmentShape shape;
  const char* at = footer;
  for (uint64_t* value : {&shape.id, &shape.sequence, &shape.layout_fingerprint, &shape.rows,
                          &shape.min_key, &shape.max_key}) {
    at = Get(at, value);
  }
  uint32_t reserved = 0;
  for (uint32_t* value : {&shape.row_bytes, &shape.block_bytes, &shape.filter.bits,
                          &shape.filter.window_log2, &shape.filter.windows, &shape.filter.seed,
                          &shape.filter.by_hash, &shape.meta_crc, &reserved}) {
    at = Get(at, value);
  }
  const bool sane = shape.rows > 0 && shape.rows <= kMaxRows && shape.row_bytes > 0 &&
                    shape.row_bytes <= kMaxRowBytes && shape.block_bytes % kPage == 0 &&
                    shape.block_bytes <= kMaxBlockBytes &&
                    shape.block_bytes >= kKeysOffset + 8ull + shape.row_bytes &&
                    shape.filter.Sane() && reserved == 0 && shape.min_key <= shape.max_key;
  if (!sane || shape.file_bytes() != file_bytes) {
    return Error(Code::kCorruption,
                 "segment %s: its footer names %" PRIu64
                 " rows of %u bytes in blocks of %u bytes, and a filter of %u bits and %u windows, "
                 "which does not fit a file of %" PRIu64 " bytes",
                 name.c_str(), shape.rows, shape.row_bytes, shape.block_bytes, shape.filter.bits,
                 shape.filter.windows, file_bytes);
  }
  return shape;
}

SegmentTail SegmentTail::Decode(const char tail[SegmentShape::kTailBytes]) {
  SegmentTail out;
  const char* at = tail;
  for (uint32_t* value : {&out.footer_bytes, &out.version, &out.footer_crc}) at = Get(at, value);
  out.magic_ok = std::memcmp(at, kMagic, sizeof(kMagic)) == 0;
  return out;
}

}  // namespace pbx
