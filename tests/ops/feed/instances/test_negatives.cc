#include "feed/instances/negatives.h"

#include <set>

#include "feed/feed_util.h"

using namespace pbx;
using pbx::test::Text;

namespace {

constexpr double kRate = 0.25;

// Instance i has the dense value i and, in its two slots, the feasigns {i + 1} and, if i is even,
// {1000, i + 1}. Every 10th instance is a positive.
ParsedChunk Chunk(size_t begin, size_t end) {
  ParsedChunk chunk;
  chunk.lines = 7;
  chunk.bad_lines = 2;
  for (size_t i = begin; i < end; ++i) {
    ++chunk.instances;
    chunk.labels.push_back(i % 10 == 0 ? 1.0f : 0.0f);
    chunk.dense.push_back(static_cast<float>(i));
    chunk.lengths.insert(chunk.lengths.end(), {1u, i % 2 == 0 ? 2u : 0u});
    chunk.feasigns.push_back(i + 1);
    if (i % 2 == 0) chunk.feasigns.insert(chunk.feasigns.end(), {1000, i + 1});
  }
  return chunk;
}

std::set<float> Kept(ParsedChunk chunk, uint64_t seed = 3) {
  const size_t before = chunk.instances;
  const Result<size_t> removed = SampleNegatives(2, 1, kRate, seed, &chunk);
  CHECK_OK(removed.status());
  CHECK_EQ(removed.value(), before - chunk.instances);
  return {chunk.dense.begin(), chunk.dense.end()};
}

}  // namespace

TEST(all_positives_and_a_share_of_the_negatives_are_kept_whole_and_in_order) {
  ParsedChunk chunk = Chunk(0, 4000);
  CHECK_OK(SampleNegatives(2, 1, kRate, 3, &chunk).status());
  CHECK_EQ(chunk.lines, 7u);
  CHECK_EQ(chunk.bad_lines, 2u);
  CHECK_EQ(chunk.labels.size(), chunk.instances);
  size_t positives = 0, at = 0;
  for (size_t row = 0; row < chunk.instances; ++row) {
    const auto i = static_cast<size_t>(chunk.dense[row]);
    if (row > 0) CHECK(chunk.dense[row - 1] < chunk.dense[row]);
    CHECK_EQ(chunk.labels[row], i % 10 == 0 ? 1.0f : 0.0f);
    positives += i % 10 == 0;
    CHECK_EQ(chunk.lengths[2 * row], 1u);
    CHECK_EQ(chunk.lengths[2 * row + 1], i % 2 == 0 ? 2u : 0u);
    CHECK_EQ(chunk.feasigns[at], i + 1);
    at += i % 2 == 0 ? 3 : 1;
  }
  CHECK_EQ(at, chunk.feasigns.size());
  CHECK_EQ(positives, 400u);
  const size_t negatives = chunk.instances - positives;  // of 3600; the deviation is 26
  CHECK(negatives > 800 && negatives < 1000);
}

TEST(the_choice_does_not_depend_on_chunks_but_on_the_seed) {
  const std::set<float> whole = Kept(Chunk(0, 600));
  std::set<float> parts = Kept(Chunk(0, 250));
  parts.merge(Kept(Chunk(250, 600)));
  CHECK(whole == parts);
  CHECK(whole != Kept(Chunk(0, 600), 4));
}

TEST(equal_instances_are_drawn_one_by_one) {
  size_t kept = 0;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    ParsedChunk chunk;
    chunk.instances = 1000;
    chunk.labels.assign(1000, 0.0f);
    chunk.dense.assign(1000, 1.0f);
    chunk.lengths.assign(2000, 1);
    chunk.feasigns.assign(2000, 7);
    CHECK_OK(SampleNegatives(2, 1, kRate, seed, &chunk).status());
    CHECK(chunk.instances > 180 && chunk.instances < 320);  // the deviation is 14
    kept += chunk.instances;
  }
  CHECK(kept > 860 && kept < 1140);
}

TEST(labels_between_0_and_1_are_refused) {
  ParsedChunk chunk = Chunk(0, 50);
  chunk.labels[20] = 0.5f;
  const Result<size_t> removed = SampleNegatives(2, 1, kRate, 3, &chunk);
  CHECK_CODE(removed.status(), Code::kInvalidArgument);
  CHECK_EQ(chunk.instances, 50u);
  CHECK_OK(SampleNegatives(2, 1, 1, 3, &chunk).status());
}

TEST(an_id_is_a_part_of_an_instance) {
  ParsedChunk chunk;
  for (size_t i = 0; i < 200; ++i) {
    chunk.labels.push_back(0);
    chunk.dense.push_back(1);
    chunk.lengths.insert(chunk.lengths.end(), {1u, 0u});
    chunk.feasigns.push_back(2);
    chunk.tags.Add({true, false, false, false}, {std::to_string(i), "", {}, 0});
  }
  chunk.instances = 200;
  CHECK_OK(SampleNegatives(2, 1, kRate, 3, &chunk).status());
  CHECK(chunk.instances > 20 && chunk.instances < 80);
  CHECK_EQ(chunk.tags.ins_ids.size(), chunk.instances);
}

TEST(a_rate_of_1_keeps_all_and_others_are_refused) {
  ParsedChunk chunk = Chunk(0, 50);
  CHECK_OK(SampleNegatives(2, 1, 1, 3, &chunk).status());
  CHECK_EQ(chunk.instances, 50u);
  for (const double rate : {0.0, -1.0, 1.5}) {
    CHECK_CODE(SampleNegatives(2, 1, rate, 3, &chunk).status(), Code::kInvalidArgument);
  }
  CHECK_CODE(SampleNegatives(3, 1, kRate, 3, &chunk).status(), Code::kInvalidArgument);
  chunk.feasigns.pop_back();
  chunk.labels.back() = 1;
  CHECK_CODE(SampleNegatives(2, 1, kRate, 3, &chunk).status(), Code::kInvalidArgument);
}
