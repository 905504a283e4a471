// Weights of ids go along with their ids, and batches have the factors that follow from them.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "feed/feed_util.h"
#include "feed/instances/instances.h"
#include "feed/instances/negatives.h"
#include "feed/instances/parsed_file.h"
#include "row/feasign.h"
#include "row/plan.h"

using namespace pbx;
using namespace pbx::test;

namespace {

using Floats = std::vector<float>;
using Ints = std::vector<int32_t>;

constexpr ListPooling kMean = ListPooling::kMean, kPlain = ListPooling::kPlain,
                      kSqrtN = ListPooling::kSqrtN, kSum = ListPooling::kSum;

// Instances of two slots: {5:3, 6:1} {7:1}, {} {5:4, 8:3}, {5:0} {}.
ParsedChunk Chunk() {
  ParsedChunk chunk;
  chunk.instances = 3;
  chunk.labels = {0, 1, 0};
  chunk.feasigns = {5, 6, 7, 5, 8, 5};
  chunk.weights = {3, 1, 1, 4, 3, 0};
  chunk.lengths = {2, 1, 0, 2, 1, 0};
  return chunk;
}

std::unique_ptr<Instances> Made(const std::vector<ListPooling>& poolings,
                                const std::vector<uint8_t>& tables = {}) {
  auto instances = std::make_unique<Instances>(2, 0);
  if (!tables.empty()) CHECK_OK(instances->SetTables(tables));
  CHECK_OK(instances->SetPoolings(poolings));
  CHECK_OK(instances->Append(Chunk()));
  return instances;
}

void Index(Instances* instances) {
  ThreadPool pool(1);
  CHECK_OK(instances->Index(&pool));
}

Ints Rows(const Instances& instances) {
  Ints rows;
  for (size_t i = 0; i < instances.unique_keys(); ++i) rows.push_back(static_cast<int32_t>(i));
  return rows;
}

// The factors of the ids in a plan; empty: it has none.
Floats FactorsIn(const SparseBatch& batch) {
  const auto found = FactorsOf(batch.plan.data(), batch.plan.size(), batch.ids.size());
  CHECK_OK(found.status());
  return found.value() == nullptr ? Floats()
                                  : Floats(found.value(), found.value() + batch.ids.size());
}

Floats Packed(const Instances& instances) {
  Batch batch;
  const Ints rows = Rows(instances);
  CHECK_OK(instances.PackBatch(0, instances.size(), rows.data(), 1, &batch));
  CHECK_OK(
      ViewPlan(batch.plan.data(), batch.plan.size(), rows.size(), 2 * batch.size, batch.ids.size())
          .status());
  return FactorsIn(batch);
}

}  // namespace

TEST(factors_of_a_batch_worked_by_hand) {
  const struct {
    std::vector<ListPooling> poolings;
    Floats expected;
  } cases[] = {
      {{kSum, kSum}, {3, 1, 1, 4, 3, 0}},
      {{kMean, kPlain}, {0.75f, 0.25f, 1, 1, 1, 0}},
      {{kMean, kSqrtN}, {0.75f, 0.25f, 1, 0.8f, 0.6f, 0}},
      {{kPlain, kPlain}, {}},
  };
  for (const auto& one : cases) {
    const auto instances = Made(one.poolings);
    Index(instances.get());
    CHECK(Packed(*instances) == one.expected);
  }
}

TEST(factors_follow_their_instances_through_an_order_and_to_donors) {
  const auto instances = Made({kSum, kSum});
  const uint32_t order[] = {1, 2, 0};
  CHECK_OK(instances->Arrange(order, 3));
  Index(instances.get());
  CHECK(Packed(*instances) == Floats({4, 3, 0, 3, 1, 1}));
  const uint32_t donors[] = {2, 2, 0};  // slot 1 of each place comes from this place
  CHECK_OK(instances->FeedFrom({1}, donors, 3));
  CHECK(Packed(*instances) == Floats({1, 0, 1, 3, 1, 4, 3}));
}

TEST(a_table_has_factors_only_if_a_slot_of_it_needs_them) {
  const auto instances = Made({kPlain, kMean}, {0, 1});
  Index(instances.get());
  const Ints rows = Rows(*instances);
  Batch first;
  SparseBatch second;
  CHECK_OK(instances->PackBatch(0, 3, rows.data(), 1, &first));
  CHECK_OK(instances->PackTable(1, 0, 3, rows.data(), 1, &second));
  CHECK(FactorsIn(first).empty());
  CHECK(FactorsIn(second) == Floats({1, 4.0f / 7, 3.0f / 7}));
}

TEST(ids_without_weights_are_pooled_as_if_each_were_1) {
  Instances instances(2, 0);
  CHECK_OK(instances.SetPoolings({kMean, kSqrtN}));
  ParsedChunk chunk = Chunk();
  chunk.weights.clear();
  CHECK_OK(instances.Append(std::move(chunk)));
  Index(&instances);
  const float half = 0.70710678f;
  CHECK(Packed(instances) == Floats({0.5f, 0.5f, 1, half, half, 1}));
}

// One instance of two slots, {5} {6}, without weights.
ParsedChunk Plain() {
  ParsedChunk chunk;
  chunk.instances = 1;
  chunk.labels = {1};
  chunk.feasigns = {5, 6};
  chunk.lengths = {1, 1};
  return chunk;
}

ParsedChunk Tagged(ParsedChunk chunk, const std::vector<std::string>& ids) {
  TagSpec spec;
  spec.ins_id = true;
  for (const std::string& id : ids) {
    LineTags tags;
    tags.ins_id = id;
    chunk.tags.Add(spec, tags);
  }
  return chunk;
}

TEST(chunks_with_and_without_weights_can_be_joined) {
  for (const bool plain_first : {false, true}) {
    Instances instances(2, 0);
    CHECK_OK(instances.SetPoolings({kSum, kSum}));
    if (plain_first) CHECK_OK(instances.Append(Tagged(Plain(), {"p"})));
    CHECK_OK(instances.Append(Tagged(Chunk(), {"a", "b", "c"})));
    if (!plain_first) CHECK_OK(instances.Append(Tagged(Plain(), {"p"})));
    const Floats expected =
        plain_first ? Floats({1, 1, 3, 1, 1, 4, 3, 0}) : Floats({3, 1, 1, 4, 3, 0, 1, 1});

    const uint32_t numbers[] = {0, 1, 2, 3};
    const Result<ParsedChunk> gathered = instances.Gather(numbers, 4);
    CHECK_OK(gathered.status());
    CHECK(gathered.value().weights == expected);

    std::vector<ParsedChunk> parts(1);
    const uint32_t to_first[] = {0, 0, 0};
    if (plain_first) CHECK_OK(ScatterRows(Plain(), 2, to_first, &parts));
    CHECK_OK(ScatterRows(Chunk(), 2, to_first, &parts));
    if (!plain_first) CHECK_OK(ScatterRows(Plain(), 2, to_first, &parts));
    CHECK(parts[0].weights == expected);

    CHECK_OK(instances.MergeByInsId(0, {}).status());
    Index(&instances);
    CHECK(Packed(instances) == expected);
    Floats weights;
    CHECK_OK(instances.PackWeights(0, 4, &weights));
    CHECK(weights == expected);
  }
}

TEST(an_instance_merged_of_chunks_with_and_without_weights_has_weights) {
  Instances instances(2, 0);
  CHECK_OK(instances.SetPoolings({kSum, kSum}));
  ParsedChunk plain = Plain();  // {} {6}
  plain.feasigns = {6};
  plain.lengths = {0, 1};
  CHECK_OK(instances.Append(Tagged(std::move(plain), {"a"})));
  ParsedChunk weighted = Plain();  // {5:3} {}
  weighted.feasigns = {5};
  weighted.weights = {3};
  weighted.lengths = {1, 0};
  CHECK_OK(instances.Append(Tagged(std::move(weighted), {"a"})));
  CHECK_OK(instances.MergeByInsId(2, {}).status());
  Index(&instances);
  CHECK(Packed(instances) == Floats({3, 1}));
}

TEST(weights_of_instances_can_be_read) {
  const auto instances = Made({kSum, kSum});
  Index(instances.get());
  Floats weights;
  CHECK_OK(instances->PackWeights(1, 3, &weights));
  CHECK(weights == Floats({4, 3, 0}));
}

TEST(gathered_merged_and_sampled_instances_keep_their_weights) {
  const auto instances = Made({kSum, kSum});
  const uint32_t numbers[] = {2, 0};
  const Result<ParsedChunk> gathered = instances->Gather(numbers, 2);
  CHECK_OK(gathered.status());
  CHECK_EQ(Text(gathered.value().feasigns), "5 5 6 7");
  CHECK_EQ(Text(gathered.value().weights), "0 3 1 1");

  ParsedChunk tagged = Tagged(Chunk(), {"a", "b", "a"});
  tagged.feasigns = {7, 5, 8, 5};  // {} {7:1}, {} {5:4, 8:3}, {5:0} {}
  tagged.weights = {1, 4, 3, 0};
  tagged.lengths = {0, 1, 0, 2, 1, 0};
  Instances merged(2, 0);
  CHECK_OK(merged.SetPoolings({kSum, kSum}));
  CHECK_OK(merged.Append(std::move(tagged)));
  CHECK_OK(merged.MergeByInsId(0, {}).status());
  Index(&merged);
  CHECK(Packed(merged) == Floats({0, 1, 4, 3}));
}

TEST(scattered_rows_and_sampled_negatives_keep_their_weights) {
  std::vector<ParsedChunk> parts(2);
  const uint32_t part_of_row[] = {1, 0, 1};
  CHECK_OK(ScatterRows(Chunk(), 2, part_of_row, &parts));
  CHECK_EQ(Text(parts[0].weights), "4 3");
  CHECK_EQ(Text(parts[1].weights), "3 1 1 0");
  bool dropped = false;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    ParsedChunk chunk = Chunk();
    CHECK_OK(SampleNegatives(2, 0, 0.5, seed, &chunk).status());
    CHECK_EQ(chunk.weights.size(), chunk.feasigns.size());
    const std::string weights = Text(chunk.weights);
    dropped = dropped || weights == "4 3";
    CHECK(weights == "4 3" || weights == "3 1 1 4 3" || weights == "4 3 0" ||
          weights == "3 1 1 4 3 0");
  }
  CHECK(dropped);
}

TEST(a_piece_holds_the_weights) {
  std::string piece;
  EncodePiece(Chunk(), &piece);
  std::vector<uint64_t> aligned(piece.size() / 8);
  std::memcpy(aligned.data(), piece.data(), piece.size());
  ParsedChunk read;
  CHECK_OK(DecodePiece(reinterpret_cast<const char*>(aligned.data()), piece.size(), "it", &read));
  CHECK(read.weights == Chunk().weights);
  ParsedChunk few = Chunk();
  few.weights.pop_back();
  EncodePiece(few, &piece);
  std::memcpy(aligned.data(), piece.data(), piece.size());
  CHECK_CODE(DecodePiece(reinterpret_cast<const char*>(aligned.data()), piece.size(), "it", &read),
             Code::kCorruption);
}

TEST(what_does_not_fit_is_refused) {
  Instances instances(2, 0);
  CHECK_CODE(instances.SetPoolings({kSum}), Code::kInvalidArgument);
  CHECK_OK(instances.SetPoolings({kSum, kSum}));
  CHECK_CODE(instances.ShareLists(nullptr), Code::kFailedPrecondition);
  ParsedChunk few = Chunk();
  few.weights.pop_back();
  CHECK_CODE(instances.Append(std::move(few)), Code::kInvalidArgument);
  CHECK_OK(instances.Append(Chunk()));
  CHECK_CODE(instances.SetPoolings({kSum, kSum}), Code::kFailedPrecondition);

  Instances sharing(2, 0);
  CHECK_OK(sharing.ShareLists(nullptr));
  CHECK_CODE(sharing.SetPoolings({kSum, kSum}), Code::kFailedPrecondition);
  CHECK_CODE(sharing.Append(Chunk()), Code::kFailedPrecondition);
}
