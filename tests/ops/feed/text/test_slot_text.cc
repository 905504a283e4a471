#include "feed/feed_util.h"
#include "row/feasign.h"

using namespace pbx;
using namespace pbx::test;

namespace {

std::vector<SlotSpec> Slots() { return {Label("1"), Sparse("7"), Dense("x", 2), Sparse("ad")}; }
FeedSchema ValueFirst() { return Schema(Format::kFeasignSlot, Slots()); }
FeedSchema NameFirst() { return Schema(Format::kSlotValue, Slots()); }

void CheckColumns(const ParsedChunk& chunk) {
  CHECK_EQ(chunk.bad_lines, 0u);
  CHECK_EQ(Text(chunk.labels), "1 0.5");
  CHECK_EQ(Text(chunk.dense), "0.5 -2 3 4");
  CHECK_EQ(Text(chunk.feasigns), "5 6 9 18446744073709551615");
  CHECK_EQ(Text(chunk.lengths), "2 1 0 1");
}

}  // namespace

// Feasigns come out by slot, and within a slot in the order of the line, wherever they stand on it.
TEST(tokens_come_in_any_order_with_the_value_first) {
  CheckColumns(Parse(ValueFirst(),
                     "1:1 5:7 9:ad 0.5:x 6:7 0:7 -2:x 44:unnamed\n"
                     "18446744073709551615:ad 3:x 4:x 0.5:1\n"));
}

TEST(tokens_come_in_any_order_with_the_name_first) {
  CheckColumns(Parse(NameFirst(),
                     "1:1 7:5 ad:9 x:0.5 7:6 7:0 x:-2 unnamed:44\n"
                     "ad:18446744073709551615 x:3 x:4 1:0.5\n"));
}

TEST(lines_may_name_the_slots_in_different_orders) {
  const ParsedChunk chunk =
      Parse(ValueFirst(),
            "1:1 5:7 0:x 0:x 6:ad\n0:x 6:ad 5:7 0:x 1:1\n7:7 6:ad 5:7 1:1 0:x 0:x\n"
            "1:1 5:7 0:x 0:x 6:ad\n");
  CHECK_EQ(chunk.bad_lines, 0u);
  CHECK_EQ(Text(chunk.feasigns), "5 6 5 6 7 5 6 5 6");
  CHECK_EQ(Text(chunk.lengths), "1 1 1 1 2 1 1 1");
}

TEST(per_slot_keys_use_the_index_among_the_sparse_slots) {
  FeedSchema schema = ValueFirst();
  schema.per_slot_keys = true;
  const ParsedChunk chunk = Parse(schema, "1:1 0:x 0:x 5:ad 5:7\n");
  CHECK_EQ(chunk.feasigns.size(), 2u);
  CHECK_EQ(chunk.feasigns[0], FeasignInSlot(5, 0));
  CHECK_EQ(chunk.feasigns[1], FeasignInSlot(5, 1));
}

TEST(a_name_may_hold_a_colon) {
  const std::vector<SlotSpec> slots = {Label("y"), Sparse("a:b")};
  CHECK_EQ(Text(Parse(Schema(Format::kFeasignSlot, slots), "1:y 5:a:b").feasigns), "5");
  CHECK_EQ(Text(Parse(Schema(Format::kSlotValue, slots), "y:1 a:b:5").feasigns), "5");
}

// Fast ways see ':' as a blank: what then looks like turns of names and values is not taken for
// them. Parse compares all ways.
TEST(colons_and_blanks_in_other_places_read_alike_in_every_way) {
  const char* const lines[] = {"1:1 5:7 :7 6", "1:1 5 :7",      "1:1 5: 7",     "1:1 5::7",
                               ":1:1 5:7",     "1:1 5:7:",      "1:1 5:7 :",    "1:1\t 5:7  ",
                               "1:1:5:7",      "1 1:5 7 6:7:7", "1:1 5:7 6:7",  "1 :1 5: 7",
                               "1:1 5:\x01",   "1:1 5:un\x01",  "1:1 un:un 5:7"};
  for (const char* line : lines) {
    for (const Format format : {Format::kFeasignSlot, Format::kSlotValue}) {
      Parse(Schema(format, {Label("1"), Sparse("7"), Sparse("5")}), std::string(line) + "\n");
    }
  }
  const std::string name(130, 'n');
  const FeedSchema schema = Schema(Format::kSlotValue, {Label("1"), Sparse(name)});
  CHECK_EQ(Text(Parse(schema, "1:1 " + name + ":8\n").feasigns), "8");
  CHECK_EQ(Text(Parse(schema, "1:1 " + name.substr(3) + ":8\n").lengths), "0");
}

TEST(many_slots_are_all_found) {
  std::vector<SlotSpec> slots = {Label("click")};
  std::string line = "1:click";
  for (int i = 0; i < 1000; ++i) {
    slots.push_back(Sparse(std::to_string(i)));
    line += " " + std::to_string(i + 1) + ":" + std::to_string(i);
  }
  const ParsedChunk chunk = Parse(Schema(Format::kFeasignSlot, slots), line);
  CHECK_EQ(chunk.feasigns.size(), 1000u);
  for (size_t i = 0; i < chunk.feasigns.size(); ++i) {
    CHECK_EQ(chunk.feasigns[i], i + 1);
    CHECK_EQ(chunk.lengths[i], 1u);
  }
}

TEST(hostile_value_first_lines_are_counted_and_leave_nothing) {
  const std::string good = "1:1 0:x 0:x 5:7";
  CheckHostile(
      ValueFirst(),
      {{"empty file", "", 0, 0, ""},
       {"only line breaks", "\r\n\n\n", 0, 0, ""},
       {"no last line break", good, 1, 0, ""},
       {"CRLF", good + "\r\n" + good + "\r\n", 2, 0, ""},
       {"only blanks", "   \n", 0, 1, "label slot '1': 0 values, expected 1"},
       {"NUL byte", good + std::string("\0\n", 2), 0, 1, "NUL"},
       {"label missing", "0:x 0:x 5:7\n", 0, 1, "label slot '1': 0 values, expected 1"},
       {"label repeated", good + " 1:1\n", 0, 1, "label slot '1': 2 values, expected 1"},
       {"label empty", ":1 0:x 0:x\n", 0, 1, "is not a label"},
       {"label outside", "1.01:1 0:x 0:x\n", 0, 1, "is not a label in [0, 1]"},
       {"dense missing", "1:1 0:x\n", 0, 1, "dense slot 'x': 1 values, expected 2"},
       {"dense repeated", good + " 1:x\n", 0, 1, "dense slot 'x': 3 values, expected 2"},
       {"dense nan", "1:1 nan:x 0:x\n", 0, 1, "is not a finite number"},
       {"no colon", good + " 77\n", 0, 1, "'77' has no ':'"},
       {"unnamed slot without a number", good + " abc:zzz\n", 1, 0, ""},
       {"unnamed slot without a name", good + " 5:\n", 1, 0, ""},
       {"only a colon", good + " :\n", 1, 0, ""},
       {"feasign 2^64", good + " 18446744073709551616:7\n", 0, 1, "is not a decimal feasign"},
       {"feasign negative", good + " -5:7\n", 0, 1, "slot '7': '-5' is not"},
       {"feasign empty", good + " :7\n", 0, 1, "is not a decimal feasign"},
       {"name cut", good + " 5:a\n", 1, 0, ""},
       {"name too long", good + " 5:adx\n", 1, 0, ""}});
}

TEST(hostile_name_first_lines_are_counted_and_leave_nothing) {
  const std::string good = "1:1 x:0 x:0 7:5";
  CheckHostile(NameFirst(), {{"good", good, 1, 0, ""},
                             {"no colon", good + " 77\n", 0, 1, "'77' has no ':'"},
                             {"value empty", good + " 7:\n", 0, 1, "is not a decimal feasign"},
                             {"value with rubbish", good + " 7:5x\n", 0, 1, "'5x' is not"},
                             {"feasign 2^64", good + " 7:18446744073709551616\n", 0, 1, "decimal"},
                             {"label missing", "x:0 x:0 7:5\n", 0, 1, "label slot '1'"},
                             {"dense repeated", good + " x:0\n", 0, 1, "3 values, expected 2"}});
}
