// Any bytes as a segment file: opening and reading them ends in rows or in an error, never in a
// read outside the memory. The first byte chooses whether the checksums are made right, so that
// mutations get past them.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "../ops/store/scratch.h"
#include "base/crc32c.h"
#include "seeds.h"
#include "store/batch_read.h"
#include "store/segment_reader.h"
#include "store/segment_writer.h"

namespace {

using pbx::test::Scratch;

constexpr uint32_t kVersion = pbx::SegmentShape::kVersion;
constexpr size_t kFooter = pbx::SegmentShape::kFooterBytes;

void PutCrc(char* at, const char* data, size_t size) {
  const uint32_t crc = pbx::Crc32c(data, size);
  std::memcpy(at, &crc, 4);
}

// Makes a file whose sizes add up pass every checksum; others are left as they are.
void Seal(std::string* bytes) {
  if (bytes->size() < kFooter) return;
  char* footer = bytes->data() + bytes->size() - kFooter;
  const uint32_t footer_bytes = kFooter;
  std::memcpy(footer + 84, &footer_bytes, 4);
  std::memcpy(footer + 88, &kVersion, 4);
  std::memcpy(footer + 96, "PBXSEGMT", 8);
  const auto shape = pbx::SegmentShape::Decode(footer, "fuzz", bytes->size());
  if (shape.ok()) {
    const pbx::SegmentShape& s = shape.value();
    for (uint64_t block = 0; block < s.blocks(); ++block) {
      char* at = bytes->data() + block * s.block_bytes;
      PutCrc(at, at + 4, s.block_bytes - 4);
    }
    PutCrc(footer + 76, bytes->data() + s.fence_offset(), s.footer_offset() - s.fence_offset());
  }
  PutCrc(footer + 92, footer, 92);
}

}  // namespace

// Sound segments of one and of two blocks, each with and without the repair of checksums.
void AddFuzzSeeds(std::vector<std::string>* seeds) {
  const Scratch folder;
  for (const uint64_t rows : {3, 20}) {
    auto writer =
        pbx::SegmentWriter::Create(folder.path(), {rows, rows, 300, 42, rows == 3 ? 8u : 12u});
    if (!writer.ok()) std::abort();
    const std::string row(300, 'r');
    for (uint64_t key = 1; key <= rows; ++key) {
      if (!writer.value()->Append(key << 50, row.data()).ok()) std::abort();
    }
    if (!writer.value()->Finish().ok()) std::abort();
    const std::string bytes = pbx::test::ReadAll(folder / pbx::SegmentFileName(rows));
    seeds->push_back('\0' + bytes);
    seeds->push_back('\1' + bytes);
  }
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Scratch folder;
  if (size == 0) return 0;
  std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if ((data[0] & 1) != 0) Seal(&bytes);
  const std::string path = folder / "segment";
  pbx::test::WriteAll(path, bytes);

  auto opened = pbx::SegmentReader::OpenAnyLayout(path, nullptr);
  if (!opened.ok()) return 0;
  const std::shared_ptr<const pbx::SegmentReader> segment = std::move(opened.value());
  const pbx::SegmentShape& shape = segment->shape();
  const uint64_t step = (shape.max_key - shape.min_key) / 64 + 1;
  std::vector<uint64_t> keys;
  for (uint64_t i = 0; i < 64 && i * step <= shape.max_key - shape.min_key; ++i) {
    keys.push_back(shape.min_key + i * step);
  }
  if (keys.back() != shape.max_key) keys.push_back(shape.max_key);
  std::vector<char> rows(keys.size() * shape.row_bytes);
  std::vector<uint8_t> found(keys.size());
  static pbx::ThreadPool pool(1);
  static pbx::BatchReader reader(&pool);
  (void)reader.Read({segment}, keys.data(), keys.size(), shape.row_bytes, rows.data(), found.data())
      .ok();
  pbx::SegmentCursor cursor(segment.get());
  for (pbx::Status status = cursor.Next(); status.ok() && !cursor.done(); status = cursor.Next()) {
    std::memcpy(rows.data(), cursor.row(), shape.row_bytes);
  }
  return 0;
}
