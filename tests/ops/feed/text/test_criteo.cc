#include <cmath>
#include <set>

#include "base/hash.h"
#include "feed/feed_util.h"
#include "row/feasign.h"

using namespace pbx;
using namespace pbx::test;

namespace {

// A line with the given label, one integer (I1..I13) and one token (C1..C26); the rest is empty.
std::string Line(const std::string& label, int i, const std::string& integer, int c,
                 const std::string& token) {
  std::string line = label;
  for (int k = 1; k <= 13; ++k) line += "\t" + (k == i ? integer : "");
  for (int k = 1; k <= 26; ++k) line += "\t" + (k == c ? token : "");
  return line + "\n";
}

SlotSpec On(SlotSpec slot, const std::string& column) {
  slot.column = column;
  return slot;
}

FeedSchema One(const SlotSpec& slot) { return Schema(Format::kCriteoTsv, {Label("label"), slot}); }

// The one feasign that the integer becomes in sparse slot I1, 0 for none.
uint64_t IntegerFeasign(const std::string& integer) {
  const ParsedChunk chunk = Parse(One(Sparse("I1")), Line("0", 1, integer, 1, ""));
  CHECK_EQ(chunk.lengths.at(0), 1u);
  return chunk.feasigns.at(0);
}

float DenseValue(const std::string& integer) {
  return Parse(One(On(Dense("d", 1), "I2")), Line("0", 2, integer, 1, "")).dense.at(0);
}

}  // namespace

TEST(integers_fall_into_buckets_of_the_squared_logarithm) {
  CHECK_EQ(IntegerFeasign("3"), IntegerFeasign("1"));          // ln(3)^2 = 1.2
  CHECK_EQ(IntegerFeasign("5"), IntegerFeasign("2"));          // ln(5)^2 = 2.6
  CHECK_EQ(IntegerFeasign("21"), IntegerFeasign("23"));        // 9.27, 9.83
  CHECK(IntegerFeasign("23") != IntegerFeasign("24"));         // 10.1
  CHECK_EQ(IntegerFeasign("22027"), IntegerFeasign("22028"));  // 100.00003, above the table
  CHECK(IntegerFeasign("22026") != IntegerFeasign("22027"));   // 99.9999
  std::set<uint64_t> different;
  for (const char* integer : {"", "0", "-1", "-2", "1", "2", "24", "1000000", "9223372036854775807",
                              "-9223372036854775807"}) {
    different.insert(IntegerFeasign(integer));
  }
  CHECK_EQ(different.size(), 10u);
  CHECK_EQ(different.count(0), 0u);
}

TEST(dense_integers_are_log_one_plus) {
  CHECK_EQ(DenseValue(""), 0.0f);
  CHECK_EQ(DenseValue("0"), 0.0f);
  CHECK_EQ(DenseValue("-5"), 0.0f);
  CHECK_NEAR(static_cast<double>(DenseValue("1")), 0.693147, 1e-6);
  CHECK_NEAR(static_cast<double>(DenseValue("4095")), 8.317766, 1e-6);
  CHECK_NEAR(static_cast<double>(DenseValue("4096")), 8.318010, 1e-6);
}

// Large values take a shorter way than the definition: no last bit may differ.
TEST(large_integers_are_what_the_long_double_logarithm_says) {
  const FeedSchema schema =
      Schema(Format::kCriteoTsv, {Label("label"), On(Dense("d", 1), "I1"), Sparse("I1")});
  std::string text;
  std::vector<float> dense;
  std::vector<uint64_t> feasigns;
  for (uint64_t i = 0; i < 30000; ++i) {
    const uint64_t v = Mix(i + 1) >> (1 + i % 62);
    text += Line("0", 1, std::to_string(v), 1, "");
    const long double log = std::log(static_cast<long double>(v));
    const uint64_t bucket = v <= 2 ? v : static_cast<uint64_t>(log * log);
    dense.push_back(static_cast<float>(std::log(1 + static_cast<long double>(v))));
    feasigns.push_back((uint64_t{'I'} << 56 | uint64_t{1} << 48) ^ (2 * bucket + 1));
  }
  const ParsedChunk chunk = Parse(schema, text);
  CHECK(SameBytes(chunk.dense, dense));
  CHECK(SameBytes(chunk.feasigns, feasigns));
}

TEST(tokens_keep_apart_and_zero_is_not_padding) {
  std::set<uint64_t> different;
  for (const char* token : {"0", "1", "a", "ffffffff", "ffffffffffffffff", "68fd1e64"}) {
    const ParsedChunk chunk = Parse(One(Sparse("C3")), Line("1", 1, "", 3, token));
    CHECK_EQ(chunk.lengths.at(0), 1u);
    different.insert(chunk.feasigns.at(0));
  }
  CHECK_EQ(different.size(), 6u);
  CHECK_EQ(different.count(0), 0u);
  CHECK_EQ(Parse(One(Sparse("C3")), Line("1", 1, "", 3, "AbC")).feasigns.at(0),
           Parse(One(Sparse("C3")), Line("1", 1, "", 3, "000abc")).feasigns.at(0));
}

TEST(an_empty_token_is_no_feasign) {
  const ParsedChunk chunk = Parse(One(Sparse("C3")), Line("1", 1, "", 4, "a"));
  CHECK_EQ(chunk.instances, 1u);
  CHECK_EQ(chunk.lengths.at(0), 0u);
}

TEST(a_column_can_feed_several_slots_in_the_order_of_the_schema) {
  FeedSchema schema = Schema(Format::kCriteoTsv,
                             {Sparse("C26"), On(Dense("log", 1), "I13"), On(Sparse("again"), "C26"),
                              On(Label("click"), "label"), Sparse("I13")});
  const std::string line = Line("1", 13, "1", 26, "7f");
  const ParsedChunk shared = Parse(schema, line);
  CHECK_EQ(Text(shared.lengths), "1 1 1");
  CHECK_EQ(shared.feasigns.at(0), shared.feasigns.at(1));
  CHECK_NEAR(static_cast<double>(shared.dense.at(0)), 0.693147, 1e-6);
  schema.per_slot_keys = true;
  const ParsedChunk apart = Parse(schema, line);
  for (uint32_t s = 0; s < 3; ++s) {
    CHECK_EQ(apart.feasigns.at(s), FeasignInSlot(shared.feasigns.at(s), s));
  }
}

// More feasigns than half the bytes of the line: every empty integer is a bucket.
TEST(a_line_of_empty_fields_has_a_feasign_for_each_integer_slot) {
  std::vector<SlotSpec> slots = {Label("label")};
  for (int i = 0; i < 500; ++i) slots.push_back(On(Sparse(std::to_string(i)), "I1"));
  CHECK_EQ(Parse(Schema(Format::kCriteoTsv, slots), Line("0", 1, "", 1, "")).feasigns.size(), 500u);
}

TEST(hostile_lines_are_counted_and_leave_nothing) {
  const std::string good = Line("1", 1, "5", 1, "68fd1e64");
  const std::string bare = good.substr(0, good.size() - 1);
  CheckHostile(
      Schema(Format::kCriteoTsv, {Label("label"), Sparse("C1"), On(Dense("d", 1), "I1")}),
      {{"empty file", "", 0, 0, ""},
       {"only line breaks", "\n\r\n", 0, 0, ""},
       {"no last line break", bare, 1, 0, ""},
       {"CRLF", bare + "\r\n", 1, 0, ""},
       {"NUL byte", "1" + std::string(1, '\0') + bare.substr(1), 0, 1, "NUL"},
       {"39 columns", bare.substr(0, bare.size() - 1), 0, 1, "39 columns, expected 40"},
       {"42 columns", bare + "\t\t", 0, 1, "42 columns, expected 40"},
       {"one column", "1", 0, 1, "1 columns, expected 40"},
       {"spaces for tabs", "1 5 68fd1e64", 0, 1, "1 columns"},
       {"label empty", Line("", 1, "5", 1, "a"), 0, 1, "is not a label"},
       {"label of another kind", Line("3", 1, "5", 1, "a"), 0, 1, "is not a label"},
       {"integer with rubbish", Line("1", 4, "5x", 1, "a"), 0, 1,
        "slot 'I4': '5x' is not a decimal"},
       {"integer 2^63", Line("1", 1, "9223372036854775808", 1, ""), 0, 1,
        "is not a decimal integer"},
       {"integer -2^63", Line("1", 1, "-9223372036854775808", 1, ""), 1, 0, ""},
       {"integer -2^63 - 1", Line("1", 1, "-9223372036854775809", 1, ""), 0, 1, "integer"},
       {"integer 2^64", Line("1", 1, "18446744073709551616", 1, ""), 0, 1, "integer"},
       {"lone minus", Line("1", 1, "-", 1, ""), 0, 1, "'-' is not a decimal integer"},
       {"float", Line("1", 1, "1.0", 1, ""), 0, 1, "integer"},
       {"token with rubbish", Line("1", 1, "", 3, "xyz"), 0, 1, "slot 'C3': 'xyz' is not a token"},
       {"16 digits", Line("1", 1, "", 3, "0123456789abcdef"), 1, 0, ""},
       {"17 digits", Line("1", 1, "", 3, "0123456789abcdef0"), 0, 1, "hexadecimal"}});
}

TEST(a_schema_with_an_unfit_column_is_refused) {
  ParsedChunk chunk;
  const auto parse = [&](const SlotSpec& slot) { return ParseChunk(One(slot), "", 0, &chunk); };
  CHECK_OK(parse(Sparse("C26")));
  CHECK_OK(parse(Sparse("I13")));
  for (const char* name : {"C27", "C0", "C01", "I14", "I", "X1", "C1x", "c1", "C111"}) {
    CHECK_CODE(parse(Sparse(name)), Code::kInvalidArgument);
  }
  CHECK_CODE(parse(Dense("C1", 1)), Code::kInvalidArgument);
  CHECK_CODE(parse(Dense("I1", 2)), Code::kInvalidArgument);
  CHECK_CODE(parse(On(Sparse("a"), "label")), Code::kInvalidArgument);
  CHECK_CODE(ParseChunk(Schema(Format::kCriteoTsv, {On(Label("a"), "I1")}), "", 0, &chunk),
             Code::kInvalidArgument);
}
