#include "feed/text/transform.h"

#include "feed/feed_util.h"
#include "row/feasign.h"

using namespace pbx;
using namespace pbx::test;

namespace {

// label, dense "age", sparse "user", sparse "words"; then what the test adds.
FeedSchema Small(std::vector<SlotSpec> made = {}) {
  FeedSchema schema = Schema(Format::kMultiSlot,
                             {Label("click"), Dense("age", 1), Sparse("user"), Sparse("words")});
  for (SlotSpec& slot : made) schema.slots.push_back(std::move(slot));
  return schema;
}

SlotSpec Bucket(const std::string& name, const std::string& of,
                std::vector<long double> boundaries) {
  SlotSpec slot = Sparse(name);
  slot.transform.bucket_of = of;
  slot.transform.boundaries = std::move(boundaries);
  return slot;
}

SlotSpec Cross(const std::string& name, const std::string& a, const std::string& b) {
  SlotSpec slot = Sparse(name);
  slot.transform.cross = {a, b};
  return slot;
}

uint64_t Seed(const std::string& name) { return HashBytes(name.data(), name.size(), 0); }

}  // namespace

// A change of these numbers makes every trained row of such a slot worthless.
TEST(golden_feasigns_of_strings_and_pairs) {
  CHECK_EQ(FeasignOfString("ab", 2), 144753322831965956u);
  CHECK_EQ(FeasignOfString("", 0), 0u);
  CHECK_EQ(FeasignOfPair(Seed("x"), 1, 2), 17848684156747750617u);
  CHECK(FeasignOfPair(Seed("x"), 2, 1) != FeasignOfPair(Seed("x"), 1, 2));
  CHECK(FeasignOfPair(Seed("y"), 1, 2) != FeasignOfPair(Seed("x"), 1, 2));
}

TEST(the_first_values_are_kept_and_an_empty_slot_takes_its_default) {
  FeedSchema schema = Small();
  schema.slots[3].transform.max_length = 2;
  schema.slots[2].transform.has_default = true;
  schema.slots[2].transform.default_feasign = 77;
  const ParsedChunk chunk = Parse(schema, "1 1 1 0.5 1 0 3 7 8 9\n1 0 1 0.5 1 4 1 5\n");
  CHECK_EQ(Text(chunk.feasigns), "77 7 8 4 5");
  CHECK_EQ(Text(chunk.lengths), "1 2 1 1");
  CHECK_EQ(Text(chunk.cut_lists), "0 1");
  CHECK_EQ(Text(chunk.cut_values), "0 1");
  CHECK_EQ(Parse(schema, "1 1 1 0.5 1 0 2 7 8\n").cut_lists.size(), 0u);
}

TEST(a_bucket_is_how_many_boundaries_are_not_above_the_value_as_read) {
  FeedSchema schema = Small({Bucket("b", "age", {1, 3})});
  schema.slots[1].transform.clip = true;
  schema.slots[1].transform.clip_low = 2;
  schema.slots[1].transform.clip_high = 2;
  const ParsedChunk chunk = Parse(schema, "1 1 1 0.5 1 0 1 0\n1 1 1 1 1 0 1 0\n1 1 1 3 1 0 1 0\n");
  CHECK_EQ(chunk.feasigns.size(), 3u);
  for (uint64_t i = 0; i < 3; ++i) CHECK_EQ(chunk.feasigns[i], FeasignOfPair(Seed("b"), i, 0));
  CHECK_EQ(Text(chunk.dense), "2 2 2");
  CHECK_EQ(Text(chunk.lengths), "0 0 1 0 0 1 0 0 1");
}

TEST(a_bucket_without_boundaries_is_one_feasign_of_every_instance) {
  FeedSchema schema = Small({Bucket("b", "age", {})});
  schema.slots[1].dim = 2;
  const ParsedChunk chunk = Parse(schema, "1 1 2 0.5 7 1 0 1 0\n1 1 2 -9 9 1 0 1 0\n");
  CHECK_EQ(chunk.feasigns.size(), 2u);
  for (uint64_t i = 0; i < 2; ++i) CHECK_EQ(chunk.feasigns[i], FeasignOfPair(Seed("b"), 0, 0));
  schema.slots.back().transform.boundaries = {1};
  CHECK(schema.Check().code() == Code::kInvalidArgument);
}

TEST(a_cross_has_all_pairs_in_order_up_to_its_length) {
  FeedSchema schema = Small({Cross("c", "user", "words"), Cross("d", "c", "user")});
  schema.slots[5].transform.max_length = 1;
  const ParsedChunk chunk = Parse(schema, "1 1 1 0.5 2 1 2 2 7 8\n");
  CHECK_EQ(Text(chunk.lengths), "2 2 4 1");
  CHECK_EQ(Text(chunk.cut_lists), "0 0 0 1");
  CHECK_EQ(Text(chunk.cut_values), "0 0 0 7");
  const uint64_t seed = Seed("c");
  CHECK_EQ(chunk.feasigns[4], FeasignOfPair(seed, 1, 7));
  CHECK_EQ(chunk.feasigns[5], FeasignOfPair(seed, 1, 8));
  CHECK_EQ(chunk.feasigns[6], FeasignOfPair(seed, 2, 7));
  CHECK_EQ(chunk.feasigns[8], FeasignOfPair(Seed("d"), chunk.feasigns[4], 1));
}

TEST(a_cross_of_two_long_slots_stays_small) {
  std::string line = "1 1 1 0.5 2000";
  for (int i = 1; i <= 2000; ++i) line += " " + std::to_string(i);
  line += " 2000";
  for (int i = 1; i <= 2000; ++i) line += " " + std::to_string(i);
  const ParsedChunk chunk = Parse(Small({Cross("c", "user", "words")}), line);
  CHECK_EQ(Text(chunk.lengths), "2000 2000 1024");
}

TEST(log1p_comes_after_clip_and_takes_no_negative) {
  FeedSchema schema = Small();
  schema.slots[1].transform.log1p = true;
  CHECK_EQ(Text(Parse(schema, "1 1 1 -5 1 1 1 1\n1 1 1 1 1 1 1 1\n").dense), "0 0.693147");
}

TEST(hashed_tokens_are_any_bytes_between_blanks) {
  FeedSchema schema = Small();
  schema.slots[3].transform.hash = true;
  const ParsedChunk chunk = Parse(schema, "1 1 1 0.5 1 1 2 ab a:b\n1 1 1 0.5 1 1 3 ab a:b\n");
  CHECK_EQ(chunk.bad_lines, 1u);
  CHECK_EQ(Text(chunk.lengths), "1 2");
  CHECK_EQ(chunk.feasigns[1], FeasignOfString("ab", 2));
  schema.per_slot_keys = true;
  CHECK_EQ(Parse(schema, "1 1 1 0.5 1 1 1 ab\n").feasigns[1],
           FeasignInSlot(FeasignOfString("ab", 2), 1));
}

TEST(a_count_that_no_line_can_hold_is_malformed_when_hashed) {
  FeedSchema schema = Small();
  schema.slots[3].transform.hash = true;
  CheckHostile(schema,
               {{"huge count", "1 1 1 0.5 1 1 18446744073709551615 ab\n", 0, 1, "announced"},
                {"no token", "1 1 1 0.5 1 1 1 \n", 0, 1, "announced"}});
}

TEST(a_transform_that_makes_no_sense_is_refused) {
  const std::vector<SlotSpec> wrong[] = {
      {Bucket("b", "none", {1})},   {Bucket("b", "user", {1})},
      {Bucket("b", "user", {})},    {Bucket("b", "age", {2, 1})},
      {Cross("c", "user", "none")}, {Cross("c", "user", "age")},
      {Cross("c", "c", "user")},    {Bucket("b", "age", {1}), Sparse("late")}};
  for (const std::vector<SlotSpec>& made : wrong) CHECK(!Small(made).Check().ok());
  CHECK_OK(Small({Bucket("b", "age", {1}), Cross("c", "b", "user")}).Check());
}
