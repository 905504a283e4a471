#include "store/parity.h"

#include <random>
#include <string>
#include <vector>

#include "base/xor.h"
#include "check.h"
#include "scratch.h"

namespace pbx {
namespace {

using test::Contains;
using test::ReadAll;
using test::Scratch;
using test::WriteAll;

// Sizes around the strip of 1 MiB in which files are read.
const std::vector<size_t> kSizes = {1, 4096, (1u << 20) - 1, 1u << 20, (2u << 20) + 3};

std::string RandomBytes(size_t n, unsigned seed) {
  std::mt19937_64 random(seed);
  std::string bytes(n, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

struct Files {
  Scratch scratch;
  std::vector<std::string> names, contents;
  std::string parity = scratch.path() + "/par";

  Files() {
    for (size_t i = 0; i < kSizes.size(); ++i) {
      names.push_back("f" + std::to_string(i));
      contents.push_back(RandomBytes(kSizes[i], static_cast<unsigned>(i)));
      WriteAll(scratch.path() + "/" + names[i], contents[i]);
    }
    CHECK_OK(WriteParity(scratch.path(), names, parity).status());
  }
  std::string Path(size_t i) const { return scratch.path() + "/" + names[i]; }
  Status Rebuild(size_t i, const std::string& out) const {
    return RebuildMember(parity, scratch.path(), names[i], out);
  }
};

TEST(xor_is_that_of_the_bytes) {
  std::string a = "\x01\x02\xff", b = "\x03\x02\x0f";
  XorInto(a.data(), b.data(), a.size());
  CHECK(a == std::string("\x02\x00\xf0", 3));
}

TEST(the_body_is_the_padded_exclusive_or_and_the_index_says_what_of) {
  const Files files;
  std::string expected(kSizes.back(), '\0');
  for (const std::string& bytes : files.contents) {
    XorInto(expected.data(), bytes.data(), bytes.size());
  }
  CHECK(ReadAll(files.parity).substr(0, expected.size()) == expected);
  const auto index = ReadParityIndex(files.parity);
  CHECK_OK(index.status());
  CHECK_EQ(index.value().body_bytes, uint64_t{kSizes.back()});
  CHECK_EQ(index.value().members.size(), kSizes.size());
  CHECK_EQ(index.value().members[2].file, std::string("f2"));
  CHECK_EQ(index.value().members[2].bytes, uint64_t{kSizes[2]});
  CHECK_OK(CheckParity(files.parity));
}

TEST(any_one_member_comes_back_to_the_bit) {
  for (size_t lost = 0; lost < kSizes.size(); ++lost) {
    const Files files;
    CHECK_EQ(std::remove(files.Path(lost).c_str()), 0);
    CHECK_OK(files.Rebuild(lost, ""));
    CHECK_OK(files.Rebuild(lost, files.Path(lost)));
    CHECK(ReadAll(files.Path(lost)) == files.contents[lost]);
  }
}

TEST(two_that_are_lost_are_both_named) {
  const Files files;
  CHECK_EQ(std::remove(files.Path(1).c_str()), 0);
  std::string damaged = files.contents[4];
  damaged[100] = static_cast<char>(damaged[100] ^ 1);
  WriteAll(files.Path(4), damaged);
  const Status status = files.Rebuild(1, files.Path(1));
  CHECK_CODE(status, Code::kCorruption);
  CHECK(Contains(status.message(), "f1 cannot be rebuilt"));
  CHECK(Contains(status.message(), "f4 is damaged"));
  CHECK_EQ(std::remove(files.Path(3).c_str()), 0);
  CHECK(Contains(files.Rebuild(1, "").message(), "f3 is missing"));
}

TEST(a_flipped_bit_of_the_parity_is_found_wherever_it_is) {
  const Files files;
  const std::string whole = ReadAll(files.parity);
  const size_t tail = whole.size() - kSizes.back();
  std::vector<size_t> places = {0, kSizes.back() / 2, kSizes.back() - 1};
  for (size_t i = 1; i <= tail; ++i) places.push_back(whole.size() - i);
  for (const size_t at : places) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    WriteAll(files.parity, damaged);
    CHECK_CODE(CheckParity(files.parity), Code::kCorruption);
    CHECK_CODE(files.Rebuild(0, ""), Code::kCorruption);
  }
  for (const size_t bytes : {size_t{0}, size_t{10}, whole.size() / 2, whole.size() - 1}) {
    WriteAll(files.parity, whole.substr(0, bytes));
    CHECK_CODE(ReadParityIndex(files.parity).status(), Code::kCorruption);
  }
}

TEST(a_file_that_is_no_member_and_an_empty_group_are_refused) {
  const Files files;
  CHECK_CODE(RebuildMember(files.parity, files.scratch.path(), "other", ""),
             Code::kInvalidArgument);
  CHECK_CODE(WriteParity(files.scratch.path(), {}, files.parity).status(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace pbx
