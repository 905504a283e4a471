#include <clocale>
#include <cmath>
#include <cstring>

#include "feed/feed_util.h"
#include "feed/text/dense_limits.h"
#include "feed/text/scan.h"
#include "row/feasign.h"

using namespace pbx;
using namespace pbx::test;

namespace {

FeedSchema Small() {
  return Schema(Format::kMultiSlot,
                {Label("click"), Sparse("user"), Dense("price", 2), Sparse("ad")});
}

std::string NulIn(const std::string& text, size_t at) {
  std::string with = text;
  with[at] = '\0';
  return with;
}

}  // namespace

TEST(columns_are_what_the_line_says) {
  const ParsedChunk chunk = Parse(Small(), "1 1 2 7 8 2 0.5 -3e2 1 9\n1 0 1 5 2 1 2 3 4 5 6\n");
  CHECK_EQ(chunk.instances, 2u);
  CHECK_EQ(chunk.lines, 2u);
  CHECK_EQ(Text(chunk.labels), "1 0");
  CHECK_EQ(Text(chunk.dense), "0.5 -300 1 2");
  CHECK_EQ(Text(chunk.feasigns), "7 8 9 5 4 5 6");
  CHECK_EQ(Text(chunk.lengths), "2 1 1 3");
}

TEST(zero_is_padding_and_dropped) {
  const ParsedChunk chunk = Parse(Small(), "1 1 3 0 8 0 2 0 0 1 0\n");
  CHECK_EQ(Text(chunk.feasigns), "8");
  CHECK_EQ(Text(chunk.lengths), "1 0");
}

TEST(without_a_label_slot_the_label_is_zero) {
  const FeedSchema schema = Schema(Format::kMultiSlot, {Dense("spent", 1), Sparse("user")});
  const ParsedChunk chunk = Parse(schema, "1 -2.5 2 7 8\n1 300 1 9\n");
  CHECK_EQ(Text(chunk.labels), "0 0");
  CHECK_EQ(Text(chunk.dense), "-2.5 300");
  CHECK_EQ(Text(chunk.feasigns), "7 8 9");
  FeedSchema criteo = Schema(Format::kCriteoTsv, {Sparse("C1")});
  CHECK(criteo.Check().code() == Code::kInvalidArgument);  // its lines begin with a label
  FeedSchema two = Schema(Format::kMultiSlot, {Label("click"), Label("buy"), Sparse("user")});
  CHECK(two.Check().code() == Code::kInvalidArgument);
}

TEST(the_whole_uint64_range_is_legal) {
  const ParsedChunk chunk = Parse(
      Small(),
      "1 1 3 18446744073709551615 9223372036854775808 00000000000000000000000012 2 0 0 1 1\n");
  CHECK_EQ(chunk.bad_lines, 0u);
  CHECK_EQ(Text(chunk.feasigns), "18446744073709551615 9223372036854775808 12 1");
}

TEST(per_slot_keys_part_the_same_token_of_two_slots) {
  FeedSchema schema = Small();
  schema.per_slot_keys = true;
  const ParsedChunk chunk = Parse(schema, "1 1 1 7 2 0 0 2 7 0\n");
  CHECK_EQ(chunk.feasigns.size(), 2u);
  CHECK_EQ(chunk.feasigns[0], FeasignInSlot(7, 0));
  CHECK_EQ(chunk.feasigns[1], FeasignInSlot(7, 1));
}

TEST(a_slot_may_share_the_feasigns_of_another) {
  FeedSchema schema = Small();
  schema.per_slot_keys = true;
  schema.key_slots = {1, 1};
  const ParsedChunk chunk = Parse(schema, "1 1 1 7 2 0 0 2 7 0\n");
  CHECK_EQ(chunk.feasigns.size(), 2u);
  CHECK_EQ(chunk.feasigns[0], FeasignInSlot(7, 1));
  CHECK_EQ(chunk.feasigns[1], FeasignInSlot(7, 1));
}

TEST(key_slots_that_make_no_sense_are_refused) {
  FeedSchema schema = Small();
  schema.per_slot_keys = true;
  for (const std::vector<uint32_t>& slots : {std::vector<uint32_t>{1}, {2, 1}, {1, 0}, {0, 1, 2}}) {
    schema.key_slots = slots;
    CHECK(schema.Check().code() == Code::kInvalidArgument);
  }
}

TEST(hostile_lines_are_counted_and_leave_nothing) {
  const std::string good = "1 1 1 7 2 0 0 1 9";
  CheckHostile(
      Small(),
      {{"empty file", "", 0, 0, ""},
       {"only line breaks", "\n\n\r\n\n", 0, 0, ""},
       {"no last line break", good, 1, 0, ""},
       {"CRLF", good + "\r\n" + good + "\r", 2, 0, ""},
       {"blanks around", "  " + good + " \t\n", 1, 0, ""},
       {"good around bad", good + "\nx\n" + good + "\n", 2, 1, "slot 'click': 'x' is not a count"},
       {"byte order mark", "\xef\xbb\xbf" + good + "\n" + good + "\n", 2, 0, ""},
       {"byte order mark of a joined file", good + "\n\xef\xbb\xbf" + good + "\n", 2, 0, ""},
       {"byte order mark and nothing", "\xef\xbb\xbf\n" + good + "\n", 1, 0, ""},
       {"byte order mark of UTF-16", "\xff\xfe" + good + "\n", 0, 1,
        "byte 1 of the line, \\xff, is not UTF-8"},
       {"carriage return inside", "1 1 1\r7 2 0 0 1 9\n", 0, 1, "'1\\x0d7' is not a count"},
       {"two carriage returns", good + "\r\r\n", 0, 1, "'9\\x0d' is not a decimal feasign"},
       {"more values than the other lines", "1 1 4 7 8 9 10 2 0 0 1 9\n" + good + "\n", 2, 0, ""},
       {"a slot too many", good + " 1 5\n", 0, 1, "3 bytes are left over"},
       {"dense exponent", "1 1 1 7 2 1e-3 -2.5E+1 1 9\n", 1, 0, ""},
       {"NUL byte", NulIn(good, 4) + "\n", 0, 1, "a NUL byte at offset 4"},
       {"NUL after the last slot", good + std::string("\0", 1), 0, 1, "NUL"},
       {"only a blank", " \n", 0, 1, "slot 'click' is missing"},
       {"slot missing", "1 1 1 7 2 0 0\n", 0, 1, "slot 'ad' is missing: the line ends"},
       {"values missing", "1 1 1 7 2 0 0 3 9 9\n", 0, 1, "3 values were announced, 2 are there"},
       {"dense values missing", "1 1 1 7 2 0\n", 0, 1, "2 values were announced, 1 are there"},
       {"left over", good + " 9\n", 0, 1, "1 bytes are left over"},
       {"count of zero", "1 1 0 2 0 0 1 9\n", 0, 1, "0 values"},
       {"negative count", "1 1 -1 7 2 0 0 1 9\n", 0, 1, "'-1' is not a count"},
       {"count of 2^64", "1 1 18446744073709551616 7\n", 0, 1, "is not a count"},
       {"count of 2^64 - 1", "1 1 18446744073709551615 7\n", 0, 1, "announced, 1 are there"},
       {"feasign 2^64", "1 1 1 18446744073709551616 2 0 0 1 9\n", 0, 1, "is not a decimal feasign"},
       {"feasign of 400 digits", "1 1 1 " + std::string(400, '9') + " 2 0 0 1 9\n", 0, 1,
        "decimal"},
       {"negative feasign", "1 1 1 -7 2 0 0 1 9\n", 0, 1, "'-7' is not a decimal feasign"},
       {"signed feasign", "1 1 1 +7 2 0 0 1 9\n", 0, 1, "'+7' is not"},
       {"float feasign", "1 1 1 7.5 2 0 0 1 9\n", 0, 1, "'7.5' is not"},
       {"dense of the wrong size", "1 1 1 7 1 0 1 9\n", 0, 1, "1 values, expected 2"},
       {"dense not a number", "1 1 1 7 2 0 x 1 9\n", 0, 1, "'x' is not a finite number"},
       {"dense nan", "1 1 1 7 2 0 nan 1 9\n", 0, 1, "'nan' is not a finite number"},
       {"dense inf", "1 1 1 7 2 0 inf 1 9\n", 0, 1, "'inf'"},
       {"dense beyond float", "1 1 1 7 2 0 1e39 1 9\n", 0, 1, "'1e39'"},
       {"dense exponent cut", "1 1 1 7 2 0 1e 1 9\n", 0, 1, "'1e'"},
       {"dense lone point", "1 1 1 7 2 0 . 1 9\n", 0, 1, "'.'"},
       {"dense hexadecimal", "1 1 1 7 2 0 0x10 1 9\n", 0, 1, "'0x10'"},
       {"label above 1", "1 2 1 7 2 0 0 1 9\n", 0, 1, "'2' is not a label in [0, 1]"},
       {"label negative", "1 -1 1 7 2 0 0 1 9\n", 0, 1, "'-1' is not a label"},
       {"label nan", "1 nan 1 7 2 0 0 1 9\n", 0, 1, "'nan' is not a label"},
       {"two labels", "2 1 1 1 7 2 0 0 1 9\n", 0, 1, "2 values, expected 1"},
       {"label missing", "1", 0, 1, "'' is not a label"},
       {"unprintable", "\x01\x7f 1\n", 0, 1, "'\\x01\\x7f'"}});
}

TEST(an_overlong_line_is_bad_and_the_next_is_read) {
  FeedSchema schema = Small();
  const std::string good = "1 1 1 7 2 0 0 1 9";
  schema.max_line_bytes = good.size();
  CheckHostile(schema, {{"exactly the limit", good + "\r\n", 1, 0, ""},
                        {"one more", good + " \n" + good, 1, 1, "18 bytes, expected at most 17"}});
}

TEST(a_line_of_100_megabytes_is_bad_or_read_by_the_limit) {
  std::string text = "1 1 5000000";
  text.reserve(105 << 20);
  for (int i = 0; i < 5000000; ++i) text += " 18446744073709551615";
  text += " 2 0 0 1 9\n1 1 1 7 2 0 0 1 9\n";
  CHECK(text.size() > 100u << 20);
  FeedSchema schema = Small();
  ParsedChunk chunk = ParseBlock(schema, text);
  CHECK_EQ(chunk.bad_lines, 1u);
  CHECK_EQ(chunk.instances, 1u);
  CHECK(chunk.first_bad.at(0).reason.find("expected at most 1048576") != std::string::npos);
  schema.max_line_bytes = text.size();
  chunk = ParseBlock(schema, text);
  CHECK_EQ(chunk.bad_lines, 0u);
  CHECK_EQ(chunk.instances, 2u);
  CHECK_EQ(chunk.feasigns.size(), 5000003u);
}

TEST(the_first_eight_bad_lines_are_quoted_with_their_number) {
  std::string text = "1 1 1 7 2 0 0 1 9\n\n";
  for (int i = 0; i < 20; ++i) text += std::string(100, 'a') + "\n";
  const ParsedChunk chunk = Parse(Small(), text);
  CHECK_EQ(chunk.lines, 22u);
  CHECK_EQ(chunk.bad_lines, 20u);
  CHECK_EQ(chunk.first_bad.size(), 8u);
  CHECK_EQ(chunk.first_bad[0].line, 2u);
  CHECK_EQ(chunk.first_bad[7].line, 9u);
  CHECK_EQ(chunk.first_bad[0].excerpt, std::string(80, 'a'));
}

TEST(floats_are_the_nearest_double_rounded_to_float) {
  const FeedSchema schema = Schema(Format::kMultiSlot, {Label("y"), Dense("x", 1)});
  for (const char* text : {"0",
                           "-0",
                           "+1.5",
                           "1.",
                           ".5",
                           "0.1",
                           "3.4028234e38",
                           "-1e-45",
                           "1e-400",
                           "1e-99",
                           "0e999999999999",
                           "123456789012345678901234567890",
                           "0.000000000000000000000000012345678901234567890123",
                           "9007199254740993",
                           "1.00000005960464477539062501",
                           "1e22",
                           "1e23",
                           "-12.5E-3",
                           "7e+2",
                           "0.00497512437811",
                           "1000000000000000000000000000000e-30"}) {
    const float expected = static_cast<float>(std::strtod(text, nullptr));
    if (std::fabs(expected) > kMostDense) {  // no line may hold it
      const char* const end = text + std::strlen(text);
      float value = 0;
      CHECK(feed::ScanFloat(text, end, &value) == end);
      CHECK_EQ(value, expected);
      continue;
    }
    const ParsedChunk chunk = Parse(schema, std::string("1 0 1 ") + text);
    CHECK_EQ(chunk.bad_lines, 0u);
    CHECK_EQ(chunk.dense.at(0), expected);
  }
}

TEST(the_locale_does_not_matter) {
  const FeedSchema schema = Schema(Format::kMultiSlot, {Label("y"), Dense("x", 1)});
  const std::string before = std::setlocale(LC_ALL, nullptr);
  for (const char* name : {"de_DE.UTF-8", "fr_FR.UTF-8", "C.UTF-8"}) {
    if (std::setlocale(LC_ALL, name) == nullptr) continue;  // not on this machine
    CHECK_EQ(Text(Parse(schema, "1 0.25 1 2.5").dense), "2.5");
  }
  std::setlocale(LC_ALL, before.c_str());
}

TEST(a_schema_that_makes_no_sense_is_refused) {
  ParsedChunk chunk;
  const auto parse = [&](std::vector<SlotSpec> slots) {
    return ParseChunk(Schema(Format::kMultiSlot, std::move(slots)), "", 0, &chunk);
  };
  CHECK_OK(parse({Label("y")}));
  CHECK_OK(parse({Sparse("a")}));
  CHECK_CODE(parse({Label("y"), Label("z")}), Code::kInvalidArgument);
  CHECK_CODE(parse({Label("y"), Sparse("a"), Sparse("a")}), Code::kInvalidArgument);
  CHECK_CODE(parse({Label("y"), Sparse("")}), Code::kInvalidArgument);
  CHECK_CODE(parse({Label("y"), Dense("d", 0)}), Code::kInvalidArgument);
  std::vector<SlotSpec> many = {Label("y")};
  for (int i = 0; i < 65535; ++i) many.push_back(Sparse(std::to_string(i)));
  CHECK_OK(parse(many));
  many.push_back(Sparse("one more"));
  CHECK_CODE(parse(many), Code::kInvalidArgument);
}
