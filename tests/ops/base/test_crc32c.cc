#include "base/crc32c.h"

#include <string>
#include <vector>

#include "check.h"

namespace pbx {
namespace {

TEST(known_values_of_the_standard) {
  CHECK_EQ(Crc32c("123456789", 9), 0xe3069283u);
  CHECK_EQ(Crc32c("", 0), 0u);
  // RFC 3720, appendix B.4.
  CHECK_EQ(Crc32c(std::string(32, '\0').data(), 32), 0x8a9136aau);
  CHECK_EQ(Crc32c(std::string(32, '\xff').data(), 32), 0x62a8ab43u);
  CHECK_EQ(Crc32cByTable("123456789", 9), 0xe3069283u);
}

TEST(instruction_and_table_agree_at_every_length_and_alignment) {
  std::vector<char> data(10000);  // more than three lanes, three times
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 7919 >> 3);
  for (size_t start = 0; start < 9; ++start) {
    for (size_t size = 0; size + start <= data.size(); size += size < 40 ? 1 : 337) {
      CHECK_EQ(Crc32c(data.data() + start, size), Crc32cByTable(data.data() + start, size));
    }
  }
}

TEST(pieces_continue_to_the_crc_of_the_whole) {
  const std::string text = "the quick brown fox jumps over the lazy dog";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    const uint32_t head = Crc32c(text.data(), cut);
    CHECK_EQ(Crc32c(text.data() + cut, text.size() - cut, head), Crc32c(text.data(), text.size()));
    CHECK_EQ(Crc32cByTable(text.data() + cut, text.size() - cut, head),
             Crc32c(text.data(), text.size()));
  }
}

}  // namespace
}  // namespace pbx
