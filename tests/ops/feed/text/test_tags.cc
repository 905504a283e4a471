#include "feed/text/tags.h"

#include "feed/feed_util.h"

using namespace pbx;
using namespace pbx::test;

namespace {

// [11, 14) cmatch 0xde = 222, [14, 16) rank 2, [16, 32) search id 0xff.
const std::string kKey = "aaaaaaaaaaa0de0200000000000000ff";

FeedSchema Tagged(TagSpec tags) {
  FeedSchema schema = Schema(Format::kMultiSlot, {Label("click"), Sparse("user")});
  schema.tags = tags;
  return schema;
}

}  // namespace

TEST(a_log_key_is_cut_where_paddlebox_cuts_it) {
  LogKey key;
  CHECK(ParseLogKey(kKey, &key));
  CHECK_EQ(key.cmatch, 222u);
  CHECK_EQ(key.rank, 2u);
  CHECK_EQ(key.search_id, 255u);
  CHECK(
      ParseLogKey("           DF1"
                  "fF"
                  "FFFFFFFFFFFFFFFF and more",
                  &key));
  CHECK_EQ(key.cmatch, 0xdf1u);
  CHECK_EQ(key.rank, 0xffu);
  CHECK_EQ(key.search_id, 0xffffffffffffffffu);
  CHECK(!ParseLogKey("           DF1fFFFFFFFFFFFFFFF", &key));
}

TEST(tags_stand_before_the_slots_in_one_order) {
  const ParsedChunk chunk = Parse(Tagged({true, true, true}), "1 id7 1 some:content 1 " + kKey +
                                                                  " 1 1 2 7 8\n"
                                                                  "1 id8 1 c 1 " +
                                                                  kKey + "tail 1 0 1 9\n");
  CHECK_EQ(chunk.instances, 2u);
  CHECK_EQ(chunk.bad_lines, 0u);
  CHECK_EQ(Text(chunk.feasigns), "7 8 9");
  CHECK_EQ(std::string(chunk.tags.ins_ids[0]), kKey);  // the key is the id, in place of an ins_id
  CHECK_EQ(std::string(chunk.tags.ins_ids[1]), kKey + "tail");
  CHECK_EQ(std::string(chunk.tags.contents[0]), "some:content");
  CHECK_EQ(chunk.tags.log_keys.at(1).search_id, 255u);
}

TEST(a_time_stands_last_and_is_an_integer) {
  TagSpec timed;
  timed.content = timed.time = true;
  const ParsedChunk chunk = Parse(Tagged(timed),
                                  "1 c 1 9223372036854775807 1 1 1 7\n"
                                  "1 c 1 9223372036854775808 1 1 1 7\n"
                                  "1 c 1 -1 1 1 1 7\n"
                                  "1 c 1 1 1 7\n"
                                  "1 c 1 007 1 0 1 8\n");
  CHECK_EQ(chunk.instances, 2u);
  CHECK(chunk.tags.times == (std::vector<int64_t>{INT64_MAX, 7}));
  CHECK(chunk.tags.spec() == timed);
  CHECK_EQ(chunk.bad_lines, 3u);
  CHECK_EQ(chunk.first_bad[1].reason, "time: '-1' is not an integer in [0, 2^63 - 1]");

  FeedSchema csv = Schema(Format::kCsv, {Label("click")});
  csv.tags = timed;
  csv.time_column = "ts";
  CHECK_OK(SetCsvHeader("ts,click,content", 16, &csv));
  ParsedChunk out;
  CHECK_OK(ParseChunk(csv, "5,1,x\n,1,x\n1.5,1,x\n", 20, &out));
  CHECK(out.tags.times == (std::vector<int64_t>{5}));
  CHECK_EQ(out.first_bad[0].reason, "time: '' is not an integer in [0, 2^63 - 1]");
}

TEST(a_schema_without_tags_has_none) {
  const ParsedChunk chunk = Parse(Tagged({}), "1 1 2 7 8\n");
  CHECK_EQ(chunk.tags.ins_ids.size(), 0u);
  CHECK(!chunk.tags.spec().any());
  FeedSchema text = Schema(Format::kSlotValue, {Label("click")});
  text.tags.ins_id = true;
  ParsedChunk out;
  CHECK_CODE(ParseChunk(text, "", 0, &out), Code::kInvalidArgument);
}

TEST(cells_of_csv_are_tags_and_stand_first_without_a_header) {
  FeedSchema csv = Schema(Format::kCsv, {Label("click")});
  csv.tags = {true, true, false};
  ParsedChunk out;
  const std::string text = "a,x,1\n\"b \"\"q\"\"\",,0\n,y,1\nshort,1\n";
  CHECK_OK(ParseChunk(csv, text.data(), text.size(), &out));
  CHECK_EQ(out.instances, 2u);
  CHECK_EQ(std::string(out.tags.ins_ids[1]), "b \"q\"");
  CHECK_EQ(std::string(out.tags.contents[0]), "x");
  CHECK_EQ(std::string(out.tags.contents[1]), "");
  CHECK_EQ(out.bad_lines, 2u);
  CHECK(out.first_bad[0].reason == "ins_id: an empty cell, expected an id");

  csv.tags = {false, false, true};  // the log key is the id as well
  csv.log_key_column = "key";
  CHECK_OK(SetCsvHeader("click,other,key", 15, &csv));
  const std::string keyed = "1,7," + kKey + "\n0,7,short\n";
  CHECK_OK(ParseChunk(csv, keyed.data(), keyed.size(), &out));
  CHECK_EQ(out.instances, 1u);
  CHECK_EQ(std::string(out.tags.ins_ids[0]), kKey);
  CHECK(out.first_bad[0].reason.rfind("logkey: 'short' is not a log key", 0) == 0);
  CHECK_CODE(SetCsvHeader("click,other", 11, &csv), Code::kInvalidArgument);
}

TEST(damaged_tags_make_a_malformed_line_that_leaves_nothing) {
  const std::string good = "1 " + kKey + " 1 1 1 7\n";
  std::string nul = good;
  nul[5] = '\0';
  std::string not_hex = good;
  not_hex[2 + 12] = 'g';
  CheckHostile(
      Tagged({false, false, true}),
      {{"good around bad", good + "1 short 1 1 1 7\n" + good, 2, 1, "logkey: 'short'"},
       {"not hexadecimal", not_hex, 0, 1, "is not a log key"},
       {"two keys announced", "2" + good.substr(1), 0, 1, "expected '1 <logkey>', found '2'"},
       {"a NUL in it", nul, 0, 1, "NUL"},
       {"no key", "1 1 1 7\n", 0, 1, "logkey: '1'"},
       {"only a key", "1 " + kKey + "\n", 0, 1, "slot 'click' is missing"},
       {"only a count", "1\n", 0, 1, "the line ends before it"},
       {"more blanks", "  1 \t" + kKey + "  1 1 1 7\n", 1, 0, ""},
       {"byte order mark", "\xef\xbb\xbf" + good, 1, 0, ""}});
}
