// Ids with weights in text.
#include <algorithm>
#include <ctime>
#include <string>

#include "feed/feed_util.h"
#include "feed/text/transform.h"
#include "row/feasign.h"

using namespace pbx;
using namespace pbx::test;

namespace {

SlotSpec Weighted(const std::string& name) {
  SlotSpec slot = Sparse(name);
  slot.weighted = true;
  return slot;
}

FeedSchema WeightedSchema(Format format) {
  return Schema(format, {Label("click"), Sparse("user"), Weighted("tag"), Sparse("ad")});
}

struct Line {
  Format format;
  const char* text;
};

}  // namespace

TEST(each_format_has_ids_with_and_without_weights) {
  for (const Line& line :
       {Line{Format::kMultiSlot, "1 1 2 7 8 4 5:0.5 6 9:2e1 0:3 1 4\n1 0 1 7 1 0 1 3\n"},
        Line{Format::kSlotValue,
             "tag:5:0.5 user:7 click:1 tag:6 ad:4 user:8 tag:9:2e1 tag:0:3\nclick:0 user:7 ad:3\n"},
        Line{Format::kFeasignSlot,
             "5:0.5:tag 7:user 1:click 6:tag 4:ad 8:user 9:2e1:tag 0:3:tag\n0:click 7:user 3:ad\n"},
        Line{Format::kCsv, "1,7|8,5:0.5|6|9:2e1|0:3,4\n0,7,,3\n"}}) {
    const ParsedChunk chunk = Parse(WeightedSchema(line.format), line.text);
    CHECK_EQ(chunk.bad_lines, 0u);
    CHECK_EQ(Text(chunk.feasigns), "7 8 5 6 9 4 7 3");
    CHECK_EQ(Text(chunk.lengths), "2 3 1 1 0 1");
    CHECK_EQ(Text(chunk.weights), "1 1 0.5 1 20 1 1 1");
  }
}

TEST(a_schema_without_weighted_slots_has_no_weights) {
  const FeedSchema schema = Schema(Format::kCsv, {Label("click"), Sparse("user")});
  CHECK(Parse(schema, "1,7\n").weights.empty());
}

TEST(the_weight_of_a_hashed_id_follows_its_last_colon) {
  for (const Line& line : {Line{Format::kMultiSlot, "1 1 1 7 3 red:0.5 a:b:2 blue 1 4\n"},
                           Line{Format::kSlotValue,
                                "click:1 user:7 tag:red:0.5 tag:a:b:2 tag:blue "
                                "ad:4\n"},
                           Line{Format::kFeasignSlot,
                                "1:click 7:user red:0.5:tag a:b:2:tag "
                                "blue:tag 4:ad\n"},
                           Line{Format::kCsv, "1,7,red:0.5|a:b:2|blue,4\n"}}) {
    FeedSchema schema = WeightedSchema(line.format);
    schema.slots[2].transform.hash = true;
    const ParsedChunk chunk = Parse(schema, line.text);
    CHECK_EQ(Text(chunk.weights), "1 0.5 2 1 1");
    CHECK_EQ(chunk.feasigns[1], FeasignOfString("red", 3));
    CHECK_EQ(chunk.feasigns[2], FeasignOfString("a:b", 3));
    CHECK_EQ(chunk.feasigns[3], FeasignOfString("blue", 4));
  }
}

TEST(what_is_no_weight_makes_the_line_bad) {
  const char* const reason = "slot 'tag'";
  for (const char* weight : {"-1", "nan", "inf", "", "x", "5e9", "1e39", "0.5 ", "0.5x"}) {
    const std::string value = std::string("5:") + weight;
    CheckHostile(WeightedSchema(Format::kCsv),
                 {{weight, "1,7," + value + ",4\n1,7,5,4\n", 1, 1, reason}});
  }
  for (const char* weight : {"-1", "nan", "inf", "", "x", "5e9"}) {
    const std::string value = std::string("5:") + weight;
    CheckHostile(WeightedSchema(Format::kMultiSlot),
                 {{weight, "1 1 1 7 1 " + value + " 1 4\n", 0, 1, reason}});
    CheckHostile(WeightedSchema(Format::kSlotValue),
                 {{weight, "click:1 tag:" + value + "\n", 0, 1, reason}});
    CheckHostile(WeightedSchema(Format::kFeasignSlot),
                 {{weight, "1:click " + value + ":tag\n", 0, 1, reason}});
  }
  CHECK_EQ(Text(Parse(WeightedSchema(Format::kCsv), "1,7,5:-0|6:4294967296,4\n").weights),
           "1 0 4.29497e+09 1");
}

TEST(a_weight_in_a_slot_without_weights_makes_the_line_bad) {
  CheckHostile(WeightedSchema(Format::kCsv), {{"csv", "1,7:2,5,4\n", 0, 1, "slot 'user'"}});
  CheckHostile(WeightedSchema(Format::kMultiSlot),
               {{"multislot", "1 1 1 7:2 1 5 1 4\n", 0, 1, "slot 'user'"}});
  CheckHostile(WeightedSchema(Format::kSlotValue),
               {{"slot_value", "click:1 user:7:2\n", 0, 1, "slot 'user'"}});
  CheckHostile(WeightedSchema(Format::kFeasignSlot),
               {{"feasign_slot", "1:click 7:2:user\n", 0, 1, "slot 'user'"}});
}

TEST(transforms_keep_weights_with_their_ids_and_give_1_to_those_they_make) {
  FeedSchema schema = WeightedSchema(Format::kCsv);
  schema.slots[2].transform.max_length = 2;
  schema.slots[2].transform.has_default = true;
  schema.slots[2].transform.default_feasign = 99;
  SlotSpec cross = Sparse("user_tag");
  cross.transform.cross = {"user", "tag"};
  schema.slots.push_back(cross);
  const ParsedChunk chunk = Parse(schema, "1,7,5:0.5|6:2|9:3,4\n0,7,,3\n");
  CHECK_EQ(Text(chunk.lengths), "1 2 1 2 1 1 1 1");
  CHECK_EQ(Text(chunk.weights), "1 0.5 2 1 1 1 1 1 1 1");
  CHECK_EQ(chunk.feasigns[7], 99u);
  CHECK_EQ(chunk.feasigns.size(), chunk.weights.size());
}

TEST(feasigns_that_are_only_made_have_weights_too) {
  FeedSchema schema = Schema(Format::kCsv, {Label("click"), Weighted("tag")});
  schema.slots[1].transform.has_default = true;
  schema.slots[1].transform.default_feasign = 99;
  const ParsedChunk chunk = Parse(schema, "1,\n0,\n");
  CHECK_EQ(Text(chunk.feasigns), "99 99");
  CHECK_EQ(Text(chunk.weights), "1 1");
}

TEST(no_weight_of_a_line_reaches_the_next) {
  for (const Line& line :
       {Line{Format::kMultiSlot, "1 1 1 7 2 5:3 6:4 1 4\n1 0 3 7 8 9 1 5 2 3 2\n"},
        Line{Format::kMultiSlot, "1 1 1 7 2 5:3 6:x 1 4\n1 0 3 7 8 9 1 5 2 3 2\n"},
        Line{Format::kSlotValue, "tag:5:3 tag:6:4 user:7 click:1\nclick:0 user:7 user:8 user:9\n"},
        Line{Format::kCsv, "1,7,5:3|6:4,4\n0,7|8|9,5,3|2\n"}}) {
    const ParsedChunk chunk = Parse(WeightedSchema(line.format), line.text);
    CHECK_EQ(chunk.weights.size(), chunk.feasigns.size());
    const uint32_t* const last = chunk.lengths.data() + chunk.lengths.size() - 3;
    for (size_t i = chunk.weights.size() - (last[0] + last[1] + last[2]); i < chunk.weights.size();
         ++i) {
      CHECK_EQ(chunk.weights[i], 1.0f);
    }
  }
}

TEST(a_long_line_does_not_slow_down_the_lines_after_it) {
  std::string long_line = "1 1 1 7 100000";
  for (int i = 0; i < 100000; ++i) long_line += " 5:2";
  long_line += " 1 4\n";
  std::string short_lines;
  for (int i = 0; i < 2000; ++i) short_lines += "1 1 1 7 1 5:0.5 1 4\n";
  FeedSchema schema = WeightedSchema(Format::kMultiSlot);
  schema.max_line_bytes = 1 << 20;
  const auto seconds = [&](const std::string& text) {
    const std::clock_t start = std::clock();
    CHECK_EQ(Parse(schema, text).bad_lines, 0u);
    return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  };
  double apart = 1e9, together = 1e9;
  for (int i = 0; i < 3; ++i) {
    apart = std::min(apart, seconds(long_line) + seconds(short_lines));
    together = std::min(together, seconds(long_line + short_lines));
  }
  CHECK(together < 10 * apart);  // 100 times as long if each line cleared the room of the longest
}

TEST(a_schema_that_cannot_have_weights_is_refused) {
  FeedSchema schema = WeightedSchema(Format::kCsv);
  schema.csv_list_separator = ':';
  CHECK_CODE(schema.Check(), Code::kInvalidArgument);
  schema = WeightedSchema(Format::kSlotValue);
  schema.slots[3].name = "a:d";
  CHECK_CODE(schema.Check(), Code::kInvalidArgument);
  schema = WeightedSchema(Format::kColumns);
  CHECK_CODE(schema.Check(), Code::kInvalidArgument);
  schema.slots[2].weight_column = "tag_weight";
  CHECK_OK(schema.Check());
  schema.slots[0].weighted = true;
  CHECK_CODE(schema.Check(), Code::kInvalidArgument);
}
