#include "feed/text/side_text.h"

#include <cstring>
#include <memory>

#include "check.h"

using namespace pbx;

namespace {

// The text lies in a block of exactly its size, so that the address sanitizer sees every byte
// beyond.
Status Parse(const SideTextLayout& layout, const std::string& text, uint64_t first_row,
             uint64_t* line, SideRows* out) {
  const std::unique_ptr<char[]> block(new char[text.size()]);
  std::memcpy(block.get(), text.data(), text.size());
  out->origin = "f";
  return ParseSideText(layout, block.get(), text.size(), first_row, line, out);
}

}  // namespace

TEST(rows_keep_their_keys_values_and_lines) {
  SideRows rows;
  uint64_t line = 10;
  CHECK_OK(Parse({2}, "a 1 -2.5e1\r\n\n\tb\t\t3  4 \n", 0, &line, &rows));
  CHECK_OK(Parse({2}, "c 5 6", 2, &line, &rows));
  CHECK_EQ(line, 14u);
  CHECK((rows.values == std::vector<float>{1, -25, 3, 4, 5, 6}));
  CHECK((rows.lines == std::vector<uint64_t>{11, 13, 14}));
  CHECK_EQ(rows.size(2), 3u);
  CHECK_EQ(rows.key(0), "a");
  CHECK_EQ(rows.key(2), "c");
  CHECK_EQ(rows.Where(1), "f:13");
}

TEST(numbered_rows_count_on_from_the_chunk_before) {
  SideRows rows;
  uint64_t line = 0;
  CHECK_OK(Parse({1, true}, "0 7\n1 8\n", 0, &line, &rows));
  CHECK_OK(Parse({1, true}, "2 9\n", 2, &line, &rows));
  CHECK((rows.values == std::vector<float>{7, 8, 9}));
  CHECK(rows.key_ends.empty());
}

TEST(hostile_lines_are_named_with_file_line_and_reason) {
  struct Hostile {
    std::string line;
    bool numbered;
    const char* reason;
  };
  const Hostile table[] = {
      {" \t ", false, "no key"},
      {"a", false, "0 values, expected 2"},
      {"a 1", false, "1 values, expected 2"},
      {"a 1 2 3", false, "more than 2 values"},
      {"a 1 x", false, "value 2 'x' is not a finite number"},
      {"a nan 1", false, "value 1 'nan' is not a finite number"},
      {"a 1 inf", false, "is not a finite number"},
      {"a 1 1e39", false, "is not a finite number"},
      {"a 1,5 2", false, "value 1 '1,5' is not"},
      {std::string("a 1 \0", 5), false, "a NUL byte"},
      {std::string(200, 'k') + " 1 2", false, "the line has 204 bytes, expected at most 100"},
      {"a\xff 1", false, "not UTF-8: a\\xff 1"},
      {"2 1 2", true, "row number '2', expected 1"},
      {"0 1 2", true, "row number '0', expected 1"},
      {"-1 1 2", true, "row number '-1', expected 1"},
      {"1x 1 2", true, "row number '1x', expected 1"},
      {"18446744073709551617 1 2", true, "row number '18446744073709551617', expected 1"},
  };
  for (const Hostile& row : table) {
    SideRows rows;
    uint64_t line = 0;
    SideTextLayout layout;
    layout.dim = 2;
    layout.numbered = row.numbered;
    layout.max_line_bytes = 100;
    const Status status = Parse(layout, "0 1 2\n" + row.line + "\n1 1 2\n", 0, &line, &rows);
    CHECK_CODE(status, Code::kInvalidArgument);
    const bool said = status.message().find("f:2: ") == 0 &&
                      status.message().find(row.reason) != std::string::npos;
    if (!said) test::Fail(__FILE__, __LINE__, status.message() + " lacks " + row.reason);
  }
}
