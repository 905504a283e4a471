#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "check.h"
#include "scratch.h"
#include "store/batch_read.h"
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
  auto writer = SegmentWriter::Create(scratch.path(), {id, id + 100, kRowBytes, kFingerprint, 8});
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
  ThreadPool pool(1);
  PBX_RETURN_IF_ERROR(BatchReader(&pool).Read({std::move(reader.value())}, keys.data(), keys.size(),
                                              kRowBytes, rows.data(), found.data()));
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
    CHECK_EQ(descriptor.sequence, 107u);
    CHECK_EQ(descriptor.rows, n);
    CHECK_EQ(descriptor.bytes % 4096, 0u);
    CHECK_EQ(descriptor.bytes, ReadAll(scratch / descriptor.file).size());
    size_t right = 0;
    CHECK_OK(ReadEverything(scratch / descriptor.file, keys, &descriptor, &right));
    CHECK_EQ(right, n);
  }
}

TEST(unused_bytes_of_a_block_are_zero_after_others_were_written) {
  const Scratch scratch;
  SegmentShape shape;
  shape.row_bytes = kRowBytes;
  shape.block_bytes = SegmentShape::BlockBytes(kRowBytes);
  const size_t full = Buffer::kHugePage / shape.block_bytes;  // blocks of one write
  const std::vector<uint64_t> keys = Keys(full * shape.rows_per_block() + 1);
  const std::string file = ReadAll(scratch / WriteSegment(scratch, keys).file);
  const char* const last = file.data() + full * shape.block_bytes;
  uint64_t key;
  std::memcpy(&key, last + SegmentShape::kKeysOffset, 8);
  CHECK_EQ(key, keys.back());
  const auto zeros = [&](uint64_t from, uint64_t until) {
    return std::all_of(last + from, last + until, [](char byte) { return byte == 0; });
  };
  CHECK(zeros(SegmentShape::kKeysOffset + 8, shape.rows_offset()));
  CHECK(zeros(shape.rows_offset() + kRowBytes, shape.block_bytes));
}

TEST(fence_and_filter_take_a_byte_and_a_half_a_row_for_any_row_size) {
  for (const uint32_t row_bytes : {1u, 48u, 80u, 300u, 340u, 500u, 1000u, 4096u, 65536u}) {
    SegmentShape shape;
    shape.row_bytes = row_bytes;
    shape.block_bytes = SegmentShape::BlockBytes(row_bytes);
    shape.rows = 300000;
    CHECK(shape.rows_per_block() >= 12);
    shape.filter = FuseShapeFor(shape.rows, 8);
    CHECK(2 * (4 * shape.blocks() + shape.filter.bytes()) <= 3 * shape.rows);
    shape.filter = FuseShapeFor(shape.rows, 12);
    CHECK(10 * (4 * shape.blocks() + shape.filter.bytes()) <= 21 * shape.rows);
  }
}

TEST(neighbouring_blocks_that_share_a_quantum_of_the_fence_lose_no_row) {
  // 2,000 keys side by side and one at the far end: the fence cannot tell their blocks apart.
  std::vector<uint64_t> keys;
  for (uint64_t i = 0; i < 2000; ++i) keys.push_back(1000 + i);
  keys.push_back(UINT64_MAX);
  const Scratch scratch;
  const SegmentDescriptor descriptor = WriteSegment(scratch, keys);
  const auto reader = SegmentReader::Open(scratch / descriptor.file, kLayout, &descriptor);
  CHECK_OK(reader.status());
  CHECK(reader.value()->MayBeBefore(1000 + 1000, reader.value()->BlockOf(1000 + 1000, 0)));
  size_t right = 0;
  CHECK_OK(ReadEverything(scratch / descriptor.file, keys, &descriptor, &right));
  CHECK_EQ(right, keys.size());
  for (size_t i = 0; i < keys.size(); i += 7) {
    CHECK_OK(ReadEverything(scratch / descriptor.file, {keys[i]}, &descriptor, &right));
    CHECK_EQ(right, size_t{1});
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
  WriteAll(path, whole + whole.substr(whole.size() - 4096));
  CHECK_CODE(ReadEverything(path, keys, nullptr), Code::kCorruption);
}

TEST(a_flipped_bit_anywhere_is_corruption_and_names_the_file) {
  const Scratch scratch;
  const std::vector<uint64_t> keys = Keys(20);  // two blocks; fence, filter, padding, footer
  const SegmentDescriptor descriptor = WriteSegment(scratch, keys);
  const std::string path = scratch / descriptor.file;
  const std::string whole = ReadAll(path);
  for (size_t at = 0; at < whole.size(); at += at < 2 * 4096 ? 61 : at < 3 * 4096 - 120 ? 5 : 1) {
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
  CHECK_EQ(whole.size(), size_t{3 * 4096});
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

TEST(another_version_is_told_apart_from_damage) {
  const Scratch scratch;
  const SegmentDescriptor descriptor = WriteSegment(scratch, Keys(20));
  const std::string path = scratch / descriptor.file;
  std::string bytes = ReadAll(path);
  char* tail = bytes.data() + bytes.size() - SegmentShape::kTailBytes;
  for (const uint32_t version : {1u, 3u}) {
    std::memcpy(tail + 4, &version, 4);
    constexpr size_t kFooterBytes = SegmentShape::kFooterBytes;
    const uint32_t crc = Crc32c(tail + SegmentShape::kTailBytes - kFooterBytes, kFooterBytes - 12);
    std::memcpy(tail + 8, &crc, 4);
    WriteAll(path, bytes);
    const Status status = SegmentReader::Open(path, kLayout, nullptr).status();
    CHECK_CODE(status, Code::kInvalidArgument);
    CHECK(Contains(status.message(), "has format " + std::to_string(version) + ", expected 2"));
  }
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
  for (const SegmentSpec& bad : {SegmentSpec{1, 1, 0, 0, 8}, SegmentSpec{1, 1, 2u << 20, 0, 8},
                                 SegmentSpec{1, 1, 4, 0, 9}}) {
    CHECK_CODE(SegmentWriter::Create(scratch.path(), bad).status(), Code::kInvalidArgument);
  }
  {
    auto writer = SegmentWriter::Create(scratch.path(), {1, 1, 4, 0, 8});
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
  const uint64_t keys[3] = {0x10, 0x2000, 0xffffffffffffffff};
  const std::string rows = "abcdefghijkl";
  const SegmentLayout layout{4, 0x0102030405060708};
  const std::string here = __FILE__;
  const std::string golden =
      ReadAll(here.substr(0, here.rfind("ops/store/")) + "golden/segment.seg");
  CHECK_EQ(golden.size(), size_t{2 * 4096});
  const Scratch scratch;
  auto writer = SegmentWriter::Create(scratch.path(), {1, 3, 4, layout.fingerprint, 8});
  for (size_t i = 0; i < 3; ++i) { CHECK_OK(writer.value()->Append(keys[i], rows.data() + 4 * i)); }
  const auto descriptor = writer.value()->Finish();
  CHECK_OK(descriptor.status());
  CHECK(ReadAll(scratch / descriptor.value().file) == golden);
  WriteAll(scratch / "golden", golden);
  auto reader = SegmentReader::Open(scratch / "golden", layout, &descriptor.value());
  CHECK_OK(reader.status());
  if (!reader.ok()) return;
  CHECK_EQ(reader.value()->shape().sequence, 3u);
  char out[12] = {};
  uint8_t found[3] = {};
  ThreadPool pool(1);
  CHECK_OK(BatchReader(&pool).Read({std::move(reader.value())}, keys, 3, 4, out, found));
  CHECK_EQ(std::string(out, 12), rows);
}

}  // namespace
}  // namespace pbx
