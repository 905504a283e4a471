#include "feed/feed_util.h"
#include "feed/text/transform.h"

using namespace pbx;
using namespace pbx::test;

namespace {

FeedSchema Small() {
  FeedSchema schema =
      Schema(Format::kCsv, {Label("click"), Dense("geo", 2), Sparse("user"), Sparse("words")});
  schema.slots[3].transform.hash = true;
  return schema;
}

}  // namespace

TEST(cells_are_slots_in_their_order) {
  const ParsedChunk chunk = Parse(Small(), "1,0.5|2,7|0|8,\n0,1|2,,ab||ab\n");
  CHECK_EQ(Text(chunk.labels), "1 0");
  CHECK_EQ(Text(chunk.dense), "0.5 2 1 2");
  CHECK_EQ(Text(chunk.lengths), "2 0 0 2");
  CHECK_EQ(chunk.feasigns[3], FeasignOfString("ab", 2));
}

TEST(a_header_finds_columns_by_name_and_two_slots_may_share_one) {
  FeedSchema schema = Small();
  schema.slots.push_back(Sparse("again"));
  schema.slots.back().column = "user";
  const std::string header = "words,\"a \"\"b\"\"\",user,geo,click";
  CHECK_OK(SetCsvHeader(header.data(), header.size(), &schema));
  CHECK_EQ(schema.csv_columns[1], "a \"b\"");
  std::string line = "x,,1";
  for (int i = 2; i < 1000; ++i) line += "|" + std::to_string(i % 9 + 1);  // a byte a feasign
  const ParsedChunk chunk = Parse(schema, line + ",1|2,1");
  CHECK_EQ(Text(chunk.lengths), "999 1 999");
  const std::string without = "words,user,geo";
  CHECK(!SetCsvHeader(without.data(), without.size(), &schema).ok());
}

TEST(quotes_hide_delimiters_and_doubled_ones_are_one) {
  const ParsedChunk chunk = Parse(Small(), "\"1\",\"1|2\",,\"a,\"\"b\"\"\"\r\n1,1|2,,\"\"\n");
  CHECK_EQ(chunk.bad_lines, 0u);
  CHECK_EQ(Text(chunk.lengths), "0 1 0 0");
  CHECK_EQ(chunk.feasigns[0], FeasignOfString("a,\"b\"", 5));
}

TEST(hostile_lines_are_counted_and_leave_nothing) {
  CheckHostile(Small(),
               {{"too few", "1,1|2,3\n", 0, 1, "3 cells, expected 4"},
                {"too many", "1,1|2,3,a,\n", 0, 1, "5 cells, expected 4"},
                {"open quote", "1,1|2,3,\"a\n", 0, 1, "quote of cell 4 is not closed"},
                {"a quote alone", "\"\n", 0, 1, "quote of cell 1 is not closed"},
                {"three quotes", "1,1|2,3,\"\"\"\n", 0, 1, "is not closed"},
                {"after the quote", "1,1|2,3,\"a\"b\n", 0, 1, "continues after its closing quote"},
                {"separators only", "1,1|2,||||,||\n", 0, 1, "slot 'user': ''"},
                {"dense too short", "1,1,3,a\n", 0, 1, "1 values, expected 2"},
                {"dense too long", "1,1|2|3,3,a\n", 0, 1, "3 values, expected 2"},
                {"dense empty", "1,,3,a\n", 0, 1, "'' is not a finite number"},
                {"no number", "1,1|2,3x,a\n", 0, 1, "'3x' is not a decimal feasign"},
                {"commas", ",,,\n", 0, 1, "slot 'click'"}});
}

TEST(a_text_that_is_null_makes_its_whole_cell_empty) {
  FeedSchema schema = Small();
  schema.slots[1].transform.has_default = true;
  schema.slots[1].transform.default_value = 3;
  schema.csv_nulls = {"NULL", "nan"};
  const ParsedChunk chunk =
      Parse(schema, "1,nan,NULL,\"NULL\"\n0,1|2,7,NULL|ab|NULLs\nNULL,1|2,7,ab\n");
  CHECK_EQ(Text(chunk.labels), "1 0");
  CHECK_EQ(Text(chunk.dense), "3 3 1 2");
  CHECK_EQ(Text(chunk.lengths), "0 0 1 3");
  CHECK_EQ(chunk.bad_lines, 1u);  // a label is never empty
  schema.csv_nulls.clear();
  CHECK_EQ(Parse(schema, "1,1|2,NULL,ab\n").bad_lines, 1u);
}

TEST(separators_that_cannot_be_told_apart_are_refused) {
  FeedSchema schema = Small();
  schema.csv_list_separator = ',';
  CHECK(!schema.Check().ok());
  schema.csv_list_separator = '"';
  CHECK(!schema.Check().ok());
}
