// Dense values that are too large to be fed: which lines are malformed, and what is noted of the
// others.
#include "feed/text/dense_limits.h"

#include "feed/feed_util.h"

using namespace pbx;
using namespace pbx::test;

namespace {

// Dense slots: raw, two floats wide; one with log1p; one clipped to [0, 100]; one clipped from
// below only, in effect.
FeedSchema Small(Format format) {
  FeedSchema schema = Schema(format, {Label("y"), Dense("raw", 2), Dense("log", 1),
                                      Dense("clipped", 1), Dense("low", 1), Sparse("u")});
  schema.slots[2].transform.log1p = true;
  schema.slots[3].transform = {};
  schema.slots[3].transform.clip = true;
  schema.slots[3].transform.clip_high = 100;
  schema.slots[4].transform.clip = true;
  schema.slots[4].transform.clip_high = 1e30f;
  return schema;
}

}  // namespace

TEST(a_line_with_a_value_beyond_the_bound_is_malformed_and_says_what_bounds_it) {
  const ParsedChunk chunk = Parse(Small(Format::kMultiSlot),
                                  "1 1 2 0 -1e30 1 0 1 0 1 0 1 7\n"
                                  "1 1 2 1e15 -1e15 1 0 1 0 1 0 1 7\n"
                                  "1 1 2 0 0 1 0 1 0 1 2e15 1 7\n");
  CHECK_EQ(chunk.instances, 1u);
  CHECK_EQ(chunk.bad_lines, 2u);
  CHECK_EQ(chunk.first_bad.size(), 2u);
  if (chunk.first_bad.size() != 2) return;
  CHECK_EQ(chunk.first_bad[0].line, 0u);
  CHECK_EQ(chunk.first_bad[0].reason,
           std::string("slot 'raw': -1e+30 is beyond 1e+15, too large for a network; bound it in "
                       "slots.yaml by clip: [low, high] or log1p: true"));
  CHECK_EQ(chunk.first_bad[1].line, 2u);
  CHECK_EQ(chunk.first_bad[1].reason.substr(0, 18), std::string("slot 'low': 2e+15 "));
}

TEST(log1p_and_clip_make_any_value_fit) {
  const ParsedChunk chunk =
      Parse(Small(Format::kMultiSlot), "1 1 2 0 0 1 1e30 1 -1e30 1 -1e30 1 7\n");
  CHECK_EQ(chunk.instances, 1u);
  CHECK_EQ(chunk.large.size(), 0u);
}

TEST(the_largest_value_of_each_slot_is_noted_with_its_line_and_no_bad_line_is) {
  const ParsedChunk chunk = Parse(Small(Format::kCsv),
                                  "1,10000|0,0,0,0,7\n"
                                  "1,20000|-30000,0,0,0,7\n"
                                  "1,1e20|1e9,0,0,0,7\n"
                                  "1,0|0,5e9,5e9,70000,7\n"
                                  "1,0|-30000,0,0,60000,7\n");
  CHECK_EQ(chunk.bad_lines, 1u);
  CHECK_EQ(chunk.large.size(), 2u);
  CHECK_EQ(chunk.large[0].slot, 0u);
  CHECK_EQ(chunk.large[0].line, 1u);
  CHECK_EQ(chunk.large[0].value, -30000.0f);
  CHECK_EQ(chunk.large[1].slot, 3u);
  CHECK_EQ(chunk.large[1].line, 3u);
  CHECK_EQ(chunk.large[1].value, 70000.0f);
}

TEST(logarithms_of_criteo_are_never_too_large) {
  const FeedSchema schema = Schema(Format::kCriteoTsv, {Label("label"), Dense("I1", 1)});
  const std::string line = "1\t9223372036854775807" + std::string(38, '\t') + "\n";
  const ParsedChunk chunk = Parse(schema, line);
  CHECK_EQ(chunk.instances, 1u);
  CHECK_EQ(chunk.large.size(), 0u);
}

TEST(a_weight_is_0_or_above_and_is_never_noted_as_large) {
  FeedSchema schema = Schema(Format::kMultiSlot, {Label("y"), Dense("w", 1), Sparse("u")});
  schema.slots[1].weight = true;
  const ParsedChunk chunk = Parse(schema,
                                  "1 1 1 0 1 7\n"
                                  "1 1 1 -0 1 7\n"
                                  "1 1 1 4294967296 1 7\n"
                                  "1 1 1 4.3e9 1 7\n"
                                  "1 1 1 -1e-30 1 7\n"
                                  "1 1 1 -3e38 1 7\n"
                                  "1 1 1 nan 1 7\n"
                                  "1 1 1 inf 1 7\n");
  CHECK_EQ(chunk.instances, 3u);
  CHECK_EQ(chunk.bad_lines, 5u);
  CHECK_EQ(chunk.large.size(), 0u);
  CHECK_EQ(chunk.first_bad[0].reason,
           std::string("slot 'w': found 4.3e+09, expected a number in [0, 2^32]"));
}
