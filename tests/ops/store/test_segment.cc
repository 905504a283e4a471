#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "check.h"
#include "scratch.h"
#include "store/segment_reader.h"
#include "store/segment_writer.h"

namespace pbx {
namespace {

using test::Contains;
using test::ReadAll;
using test::RowOf;
using test::Scratch;
using test::WriteAll;

constexpr uint32_t kRowBytes = 300;  // 13 rows a block
constexpr uint64_t kFingerprint = 0x1122334455667788;
const SegmentLayout kLayout{kRowBytes, kFingerprint};

std::vector<uint64_t> Keys(size_t n) {
  std::vector<uint64_t> keys;
  for (size_t i = 1; i <= n; ++i) keys.push_back(Mix(i));
  std::sort(keys.begin(), keys.end());
  return keys;
}

SegmentDescriptor WriteSegment(const Scratch& scratch, const std::vector<uint64_t>& keys,
                               uint64_t id = 7) {
  auto writer = SegmentWriter::Create(scratch.path(), id, kRowBytes, kFingerprint);
  CHECK_OK(writer.status());
  for (const uint64_t key : keys) {
    CHECK_OK(writer.value()->Append(key, RowOf(key, 0, kRowBytes).data()));
  }
  auto descriptor = writer.value()->Finish();
  CHECK_OK(descriptor.status());
  return descriptor.value();
}

// Opens the file and reads every key, as a tier would.
Status ReadEverything(const std::string& path, const std::vector<uint64_t>& keys,
                      const SegmentDescriptor* descriptor, size_t* right = nullptr) {
  auto reader = SegmentReader::Open(path, kLayout, descriptor);
  if (!reader.ok()) return reader.status();
  std::vector<char> rows(keys.size() * kRowBytes);
  std::vector<uint8_t> found(keys.size());
  SegmentReader::Counts counts;
  PBX_RETURN_IF_ERROR(
      reader.value()->Read(keys.data(), keys.size(), rows.data(), found.data(), &counts));
  if (right != nullptr) {
    *right = 0;
    for (size_t i = 0; i < keys.size(); ++i) {
      const std::vector<char> row = RowOf(keys[i], 0, kRowBytes);
      *right += found[i] == 1 && std::equal(row.begin(), row.end(), &rows[i * kRowBytes]) ? 1 : 0;
    }
  }
  return Status::Ok();
}

TEST(every_row_comes_back_whatever_the_last_block_holds) {
  for (const size_t n : {1, 12, 13, 14, 26, 1000}) {
    const Scratch scratch;
    const std::vector<uint64_t> keys = Keys(n);
    const SegmentDescriptor descriptor = WriteSegment(scratch, keys);
    CHECK_EQ(descriptor.file, std::string("seg-000000000007.seg"));
    CHECK_EQ(descriptor.rows, n);
    CHECK_EQ(descriptor.bytes, ReadAll(scratch / descriptor.file).size());
    size_t right = 0;
    CHECK_OK(ReadEverything(scratch / descriptor.file, keys, &descriptor, &right));
    CHECK_EQ(right, n);
  }
}

TEST(fence_and_filter_take_at_most_two_bytes_a_row_for_any_row_size) {
  for (const uint32_t row_bytes : {1u, 48u, 80u, 300u, 340u, 500u, 1000u, 4096u, 65536u}) {
    SegmentShape shape;
    shape.row_bytes = row_bytes;
    shape.block_bytes = SegmentShape::BlockBytes(row_bytes);
    shape.rows = 100000;
    CHECK(shape.rows_per_block() >= 12);
    CHECK(8 * shape.blocks() + 64 * Filter::LinesFor(shape.rows) <= 2 * shape.rows);
  }
}

TEST(a_file_torn_or_extended_at_any_length_is_corruption) {
  const Scratch scratch;
  const std::vector<uint64_t> keys = Keys(20);
  const SegmentDescriptor descriptor = WriteSegment(scratch, keys);
  const std::string path = scratch / descriptor.file;
  const std::string whole = ReadAll(path);
  for (size_t size = 0; size < whole.size(); size += size + 200 < whole.size() ? 97 : 1) {
    WriteAll(path, whole.substr(0, size));
    CHECK_CODE(ReadEverything(path, keys, &descriptor), Code::kCorruption);
    CHECK_CODE(ReadEverything(path, keys, nullptr), Code::kCorruption);
  }
  WriteAll(path, whole + whole.substr(whole.size() - 80));
  CHECK_CODE(ReadEverything(path, keys, nullptr), Code::kCorruption);
}

TEST(a_flipped_bit_anywhere_is_corruption_and_names_the_file) {
  const Scratch scratch;
  const std::vector<uint64_t> keys = Keys(20);  // two blocks, fence, filter, footer
  const SegmentDescriptor descriptor = WriteSegment(scratch, keys);
  const std::string path = scratch / descriptor.file;
  const std::string whole = ReadAll(path);
  const size_t footer = whole.size() - SegmentShape::kFooterBytes;
  for (size_t at = 0; at < whole.size(); at += at < 2 * 4096 ? 61 : 1) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << (at % 8)));
    WriteAll(path, damaged);
    for (const SegmentDescriptor* known : {&descriptor, static_cast<const SegmentDescriptor*>(0)}) {
      const Status status = ReadEverything(path, keys, known);
      CHECK_CODE(status, Code::kCorruption);
      CHECK(Contains(status.message(), path));
    }
    // A data block is found when it is read, everything else when the file is opened.
    const bool opens = SegmentReader::Open(path, kLayout, &descriptor).ok();
    CHECK_EQ(opens, at < 2 * 4096);
  }
  CHECK_EQ(footer, size_t{2 * 4096 + 16 + 64});
}

TEST(damage_in_a_block_names_block_offset_and_rows) {
  const Scratch scratch;
  const std::vector<uint64_t> keys = Keys(20);
  const SegmentDescriptor descriptor = WriteSegment(scratch, keys);
  const std::string path = scratch / descriptor.file;
  std::string bytes = ReadAll(path);
  bytes[4096 + 500] = static_cast<char>(~bytes[4096 + 500]);
  WriteAll(path, bytes);
  const Status status = ReadEverything(path, keys, &descriptor);
  CHECK(Contains(status.message(), "block 1 at offset 4096"));
  CHECK(Contains(status.message(), "(rows 13..19)"));
  // The sound block is still good.
  const std::vector<uint64_t> first(keys.begin(), keys.begin() + 13);
  size_t right = 0;
  CHECK_OK(ReadEverything(path, first, &descriptor, &right));
  CHECK_EQ(right, size_t{13});
}

TEST(a_sound_block_in_the_wrong_place_is_corruption) {
  const Scratch scratch;
  const std::vector<uint64_t> keys = Keys(39);
  const SegmentDescriptor descriptor = WriteSegment(scratch, keys);
  const std::string path = scratch / descriptor.file;
  std::string bytes = ReadAll(path);
  std::swap_ranges(bytes.begin(), bytes.begin() + 4096, bytes.begin() + 4096);
  WriteAll(path, bytes);
  const Status status = ReadEverything(path, keys, &descriptor);
  CHECK_CODE(status, Code::kCorruption);
  CHECK(Contains(status.message(), "is another block"));
}

TEST(another_layout_is_refused_and_not_called_damage) {
  const Scratch scratch;
  const SegmentDescriptor descriptor = WriteSegment(scratch, Keys(20));
  const std::string path = scratch / descriptor.file;
  for (const SegmentLayout& other :
       {SegmentLayout{kRowBytes, kFingerprint + 1}, SegmentLayout{kRowBytes + 4, kFingerprint}}) {
    const Status status = SegmentReader::Open(path, other, &descriptor).status();
    CHECK_CODE(status, Code::kInvalidArgument);
    CHECK(Contains(status.message(), "another layout"));
  }
}

TEST(a_later_version_is_told_apart_from_damage) {
  const Scratch scratch;
  const SegmentDescriptor descriptor = WriteSegment(scratch, Keys(20));
  const std::string path = scratch / descriptor.file;
  std::string bytes = ReadAll(path);
  char* tail = bytes.data() + bytes.size() - SegmentShape::kTailBytes;
  const uint32_t version = SegmentShape::kVersion + 1;
  std::memcpy(tail + 4, &version, 4);
  const uint32_t crc = Crc32c(tail + SegmentShape::kTailBytes - SegmentShape::kFooterBytes,
                              SegmentShape::kFooterBytes - 12);
  std::memcpy(tail + 8, &crc, 4);
  WriteAll(path, bytes);
  const Status status = SegmentReader::Open(path, kLayout, nullptr).status();
  CHECK_CODE(status, Code::kInvalidArgument);
  CHECK(Contains(status.message(), "written by a later version"));
}

TEST(a_sound_file_under_the_name_of_another_is_corruption) {
  const Scratch scratch;
  const SegmentDescriptor seven = WriteSegment(scratch, Keys(20), 7);
  const SegmentDescriptor eight = WriteSegment(scratch, Keys(20), 8);
  std::filesystem::rename(scratch / eight.file, scratch / seven.file);
  CHECK_CODE(SegmentReader::Open(scratch / seven.file, kLayout, &seven).status(),
             Code::kCorruption);
}

TEST(an_absent_file_is_not_found) {
  const Scratch scratch;
  CHECK_CODE(SegmentReader::Open(scratch / "seg", kLayout, nullptr).status(), Code::kNotFound);
}

TEST(a_writer_refuses_keys_out_of_order_no_rows_and_bad_row_sizes) {
  const Scratch scratch;
  CHECK_CODE(SegmentWriter::Create(scratch.path(), 1, 0, 0).status(), Code::kInvalidArgument);
  CHECK_CODE(SegmentWriter::Create(scratch.path(), 1, 2u << 20, 0).status(),
             Code::kInvalidArgument);
  {
    auto writer = SegmentWriter::Create(scratch.path(), 1, 4, 0);
    CHECK_CODE(writer.value()->Finish().status(), Code::kFailedPrecondition);
    CHECK_OK(writer.value()->Append(5, "abcd"));
    CHECK_CODE(writer.value()->Append(5, "abcd"), Code::kInvalidArgument);
    CHECK_CODE(writer.value()->Append(4, "abcd"), Code::kInvalidArgument);
  }
  CHECK_EQ(scratch.files(), 0u);
}

// docs/formats/segment.md, "Worked example". When this fails the format has changed: that is a
// decision (a new version), not something to mend here.
TEST(the_golden_file_reads_and_is_written_again_byte_for_byte) {
  const std::string here = __FILE__;
  const std::string golden =
      ReadAll(here.substr(0, here.rfind("ops/store/")) + "golden/segment_v1.seg");
  CHECK_EQ(golden.size(), size_t{4096 + 8 + 64 + 80});

  const Scratch scratch;
  const uint64_t keys[3] = {0x10, 0x2000, 0xffffffffffffffff};
  const char rows[3][5] = {"abcd", "efgh", "ijkl"};
  auto writer = SegmentWriter::Create(scratch.path(), 1, 4, 0x0102030405060708);
  for (size_t i = 0; i < 3; ++i) CHECK_OK(writer.value()->Append(keys[i], rows[i]));
  const auto descriptor = writer.value()->Finish();
  CHECK_OK(descriptor.status());
  CHECK(ReadAll(scratch / descriptor.value().file) == golden);

  WriteAll(scratch / "golden", golden);
  auto reader =
      SegmentReader::Open(scratch / "golden", {4, 0x0102030405060708}, &descriptor.value());
  CHECK_OK(reader.status());
  if (!reader.ok()) return;
  SegmentReader::Counts counts;
  char out[12] = {};
  uint8_t found[3] = {};
  CHECK_OK(reader.value()->Read(keys, 3, out, found, &counts));
  CHECK_EQ(std::string(out, 12), std::string("abcdefghijkl"));
}

}  // namespace
}  // namespace pbx
