// Any bytes as a segment file: opening and reading them ends in rows or in an error, never in a
// read outside the memory. The first byte chooses whether the checksums are made right, so that
// mutations get past them.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <unistd.h>

#include "base/crc32c.h"
#include "seeds.h"
#include "store/segment_reader.h"
#include "store/segment_writer.h"

namespace {

constexpr size_t kFooter = pbx::SegmentShape::kFooterBytes;

// Folder of this process, removed when it ends.
struct Folder {
  std::string path;
  Folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "pbx-fuzz-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) std::abort();
    path = pattern;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

void PutCrc(char* at, const char* data, size_t size) {
  const uint32_t crc = pbx::Crc32c(data, size);
  std::memcpy(at, &crc, 4);
}

// Makes a file whose sizes add up pass every checksum; others are left as they are.
void Seal(std::string* bytes) {
  if (bytes->size() < kFooter) return;
  char* footer = bytes->data() + bytes->size() - kFooter;
  const uint32_t footer_bytes = kFooter;
  const uint32_t version = pbx::SegmentShape::kVersion;
  std::memcpy(footer + 60, &footer_bytes, 4);
  std::memcpy(footer + 64, &version, 4);
  std::memcpy(footer + 72, "PBXSEGMT", 8);
  const auto shape = pbx::SegmentShape::Decode(footer, "fuzz", bytes->size());
  if (shape.ok()) {
    const pbx::SegmentShape& s = shape.value();
    for (uint64_t block = 0; block < s.blocks(); ++block) {
      char* at = bytes->data() + block * s.block_bytes;
      PutCrc(at, at + 4, s.block_bytes - 4);
    }
    PutCrc(footer + 52, bytes->data() + s.fence_offset(), 8 * s.blocks());
    PutCrc(footer + 56, bytes->data() + s.filter_offset(), 64ull * s.filter_lines);
  }
  PutCrc(footer + 68, footer, 68);
}

}  // namespace

// Sound segments of one and of two blocks, each with and without the repair of checksums.
void AddFuzzSeeds(std::vector<std::string>* seeds) {
  const Folder folder;
  for (const uint64_t rows : {3, 20}) {
    auto writer = pbx::SegmentWriter::Create(folder.path, rows, 300, 42);
    if (!writer.ok()) std::abort();
    const std::string row(300, 'r');
    for (uint64_t key = 1; key <= rows; ++key) {
      if (!writer.value()->Append(key << 50, row.data()).ok()) std::abort();
    }
    if (!writer.value()->Finish().ok()) std::abort();
    std::ifstream in(folder.path + "/" + pbx::SegmentFileName(rows), std::ios::binary);
    const std::string bytes(std::istreambuf_iterator<char>(in), {});
    seeds->push_back('\0' + bytes);
    seeds->push_back('\1' + bytes);
  }
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Folder folder;
  if (size == 0) return 0;
  std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if ((data[0] & 1) != 0) Seal(&bytes);
  const std::string path = folder.path + "/segment";
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));

  pbx::SegmentLayout layout{4, 0x0102030405060708};
  if (bytes.size() >= kFooter) {  // the layout that the file claims
    const char* footer = bytes.data() + bytes.size() - kFooter;
    std::memcpy(&layout.fingerprint, footer + 8, 8);
    std::memcpy(&layout.row_bytes, footer + 40, 4);
  }
  const auto opened = pbx::SegmentReader::Open(path, layout, nullptr);
  if (!opened.ok()) return 0;
  const pbx::SegmentReader& segment = *opened.value();
  std::vector<uint64_t> keys = segment.fence();
  if (segment.shape().max_key > keys.back()) keys.push_back(segment.shape().max_key);
  std::vector<char> rows(keys.size() * layout.row_bytes);
  std::vector<uint8_t> found(keys.size());
  pbx::SegmentReader::Counts counts;
  (void)segment.Read(keys.data(), keys.size(), rows.data(), found.data(), &counts).ok();
  pbx::SegmentCursor cursor(&segment);
  for (pbx::Status status = cursor.Next(); status.ok() && !cursor.done(); status = cursor.Next()) {
    std::memcpy(rows.data(), cursor.row(), layout.row_bytes);
  }
  return 0;
}
