// Sampling, merging, orders, page views and exchanged slots of Instances.
#include <algorithm>
#include <map>
#include <set>

#include "feed/feed_util.h"
#include "feed/instances/instances.h"
#include "row/feasign.h"

using namespace pbx;
using namespace pbx::test;

namespace {

constexpr size_t kSlots = 2;

// One instance: its id is "i<id>", its search id `search`.
struct Row {
  int id;
  uint64_t search;
  uint32_t cmatch, rank;
  float label;
  std::vector<float> dense;  // two slots, of dim 1 and 2
  std::vector<std::vector<uint64_t>> slots;
};

ParsedChunk ChunkOf(const std::vector<Row>& rows) {
  ParsedChunk chunk;
  for (const Row& row : rows) {
    ++chunk.instances;
    chunk.labels.push_back(row.label);
    chunk.dense.insert(chunk.dense.end(), row.dense.begin(), row.dense.end());
    for (const auto& slot : row.slots) {
      chunk.lengths.push_back(static_cast<uint32_t>(slot.size()));
      chunk.feasigns.insert(chunk.feasigns.end(), slot.begin(), slot.end());
    }
    chunk.tags.ins_ids.Add("i" + std::to_string(row.id));
    chunk.tags.log_keys.push_back({row.search, row.cmatch, row.rank});
  }
  return chunk;
}

void Fill(Instances* instances, const std::vector<Row>& rows, size_t chunk_size) {
  for (size_t at = 0; at < rows.size(); at += chunk_size) {
    const size_t end = std::min(rows.size(), at + chunk_size);
    CHECK_OK(instances->Append(ChunkOf({rows.begin() + static_cast<std::ptrdiff_t>(at),
                                        rows.begin() + static_cast<std::ptrdiff_t>(end)})));
  }
}

// n instances: number k has label k / n, id k % 10, search id k % 7, user 1 + k % 5.
std::vector<Row> Many(size_t n) {
  std::vector<Row> rows;
  for (size_t k = 0; k < n; ++k) {
    rows.push_back({static_cast<int>(k % 10),
                    k % 7,
                    0,
                    0,
                    static_cast<float>(k) / 128,
                    {static_cast<float>(k), 0, 0},
                    {{1 + k % 5}, {100 + k}}});
  }
  return rows;
}

// Numbers of the instances of Many, in their order.
std::vector<size_t> Numbers(const Instances& instances) {
  std::vector<size_t> numbers;
  for (const float label : instances.labels()) {
    numbers.push_back(static_cast<size_t>(label * 128));
  }
  return numbers;
}

// Feasigns of all instances, slot by slot: "5,6|7 |5 ".
std::string Fed(const Instances& instances) {
  std::vector<uint64_t> feasigns;
  std::vector<int32_t> offsets;
  CHECK_OK(instances.PackFeasigns(0, instances.size(), &feasigns, &offsets));
  std::string text;
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    for (int32_t at = offsets[i]; at < offsets[i + 1]; ++at) {
      text +=
          std::to_string(feasigns[static_cast<size_t>(at)]) + (at + 1 < offsets[i + 1] ? "," : "");
    }
    text += i % kSlots + 1 < kSlots ? "|" : " ";
  }
  return text;
}

}  // namespace

TEST(instances_of_one_id_become_one) {
  Instances instances(kSlots, 3);
  Fill(&instances,
       {{1, 0, 0, 0, 0, {5, 1, 1}, {{7}, {}}},   // merged with the third
        {2, 0, 0, 0, 1, {0, 0, 0}, {{8}, {9}}},  // alone: dropped
        {1, 0, 0, 0, 1, {0, 0, 2}, {{}, {10, 11}}},
        {3, 0, 0, 0, 1, {0, 0, 0}, {{12}, {}}},  // both have the first slot: dropped
        {3, 0, 0, 0, 1, {0, 0, 0}, {{13}, {14}}},
        {0, 0, 0, 0, 1, {0, 0, 0}, {{15}, {}}},
        {0, 0, 0, 0, 0, {0, 0, 0}, {{}, {}}}},
       3);
  CHECK_EQ(instances.MergeByInsId(2, {1, 2}).value(), 3u);
  CHECK_EQ(instances.size(), 2u);  // in the order of the first lines, not of the ids
  CHECK_EQ(std::string(instances.ins_id(0)), "i1");
  CHECK_EQ(std::string(instances.ins_id(1)), "i0");
  CHECK_EQ(Text(instances.labels()), "1 1");  // the last that is not zero
  ThreadPool pool(1);
  CHECK_OK(instances.Index(&pool));
  CHECK_EQ(Fed(instances), "7|10,11 15| ");
  CHECK_EQ(instances.unique_keys(), 4u);  // nothing is left of what was dropped
  Batch batch;
  const std::vector<int32_t> rows(4);
  CHECK_OK(instances.PackBatch(0, 2, rows.data(), 1, &batch));
  CHECK_EQ(Text(batch.dense), "5 0 2 0 0 0");  // slot by slot the last that is not all zero
}

TEST(any_number_of_one_id_is_merged_when_no_size_is_given) {
  Instances instances(kSlots, 0);
  std::vector<Row> rows = {{1, 0, 0, 0, 0, {}, {{7}, {}}},
                           {2, 0, 0, 0, 0, {}, {{8}, {}}},
                           {1, 0, 0, 0, 0, {}, {{}, {9}}},
                           {1, 0, 0, 0, 0, {}, {{}, {}}}};
  Fill(&instances, rows, 4);
  CHECK_EQ(instances.MergeByInsId(0, {}).value(), 0u);
  CHECK_EQ(instances.size(), 2u);
  CHECK_CODE(instances.MergeByInsId(0, {4}).status(), Code::kInvalidArgument);
}

TEST(sampling_does_not_depend_on_chunks_and_keeps_ids_whole) {
  std::vector<std::vector<size_t>> kept;
  for (const size_t chunk_size : {1u, 7u, 100u}) {
    Instances instances(kSlots, 3);
    CHECK_OK(instances.SetSampling(0.5, 3));
    Fill(&instances, Many(100), chunk_size);
    kept.push_back(Numbers(instances));
  }
  CHECK(kept[0] == kept[1] && kept[0] == kept[2]);
  CHECK(!kept[0].empty() && kept[0].size() < 100);
  std::set<size_t> ids;
  for (const size_t number : kept[0]) ids.insert(number % 10);
  CHECK_EQ(kept[0].size(), ids.size() * 10);
  Instances none(kSlots, 3), all(kSlots, 3);
  CHECK_OK(none.SetSampling(0, 3));
  CHECK_OK(all.SetSampling(1, 3));
  Fill(&none, Many(20), 6);
  Fill(&all, Many(20), 6);
  CHECK_EQ(none.size(), 0u);
  CHECK_EQ(all.size(), 20u);
  CHECK_CODE(all.SetSampling(1.5, 0), Code::kInvalidArgument);
}

TEST(without_ids_sampling_goes_by_number_and_keeps_about_its_share) {
  Instances instances(1, 0);
  CHECK_OK(instances.SetSampling(0.25, 1));
  ParsedChunk chunk;
  chunk.instances = 10000;
  chunk.labels.assign(10000, 0);
  chunk.lengths.assign(10000, 0);
  CHECK_OK(instances.Append(std::move(chunk)));
  CHECK(instances.size() > 2300 && instances.size() < 2700);  // 4.6 standard deviations
}

TEST(groups_stay_together_in_file_order_and_the_seed_moves_them) {
  const auto group = [](Order order, size_t k) {
    return order == Order::kInsId ? k % 10 : order == Order::kSearchId ? k % 7 : k % 5;
  };
  for (const Order order : {Order::kInsId, Order::kSearchId, Order::kSlot}) {
    std::vector<std::vector<size_t>> found;
    for (const uint64_t seed : {1u, 1u, 2u}) {
      Instances instances(kSlots, 3);
      Fill(&instances, Many(100), found.empty() ? 100 : 9);
      CHECK_OK(instances.ArrangeBy(order, seed));
      found.push_back(Numbers(instances));
      std::set<size_t> done;
      for (size_t i = 0; i < 100; ++i) {
        const size_t now = group(order, found.back()[i]);
        const bool goes_on = i > 0 && group(order, found.back()[i - 1]) == now;
        CHECK(goes_on ? found.back()[i - 1] < found.back()[i] : done.insert(now).second);
      }
    }
    CHECK(found[0] == found[1]);
    CHECK(found[0] != found[2]);
  }
}

TEST(an_order_does_not_depend_on_the_one_before_it) {
  ThreadPool pool(1);
  Instances instances(kSlots, 3);
  Fill(&instances, Many(50), 8);
  CHECK_OK(instances.Index(&pool));
  CHECK_OK(instances.ArrangeBy(Order::kShuffled, 5));
  const std::vector<size_t> shuffled = Numbers(instances);
  CHECK_OK(instances.ArrangeBy(Order::kPageViews, 0));
  CHECK_OK(instances.ArrangeBy(Order::kShuffled, 5));
  CHECK(Numbers(instances) == shuffled);
  Instances other(kSlots, 3);
  Fill(&other, Many(50), 50);
  CHECK_OK(other.Shuffle(5));
  CHECK(Numbers(other) == shuffled);
  CHECK_OK(instances.ArrangeBy(Order::kFile, 0));
  for (size_t i = 0; i < 50; ++i) CHECK_EQ(Numbers(instances)[i], i);
  CHECK_CODE(instances.ArrangeBy(Order::kSlot, 0, 2), Code::kInvalidArgument);
}

TEST(page_views_and_their_rank_offsets) {
  ThreadPool pool(1);
  Instances instances(kSlots, 0);
  Fill(&instances,
       {{0, 9, 222, 1, 0.1f, {}, {{}, {}}},
        {0, 5, 223, 2, 0.2f, {}, {{}, {}}},
        {0, 9, 222, 3, 0.3f, {}, {{}, {}}},
        {0, 9, 100, 2, 0.4f, {}, {{}, {}}},   // a cmatch without ranks
        {0, 5, 222, 4, 0.5f, {}, {{}, {}}},   // a rank too high
        {0, 9, 223, 1, 0.6f, {}, {{}, {}}}},  // rank 1 a second time: the last counts
       4);
  CHECK_OK(instances.Index(&pool));
  CHECK_OK(instances.ArrangeBy(Order::kPageViews, 0));
  CHECK_EQ(Text(instances.labels()), "0.2 0.5 0.1 0.3 0.4 0.6");
  CHECK_EQ(Text(instances.PageViewStarts().value()), "0 2 6");
  std::vector<int32_t> offsets;
  CHECK_OK(instances.RankOffsets(0, 6, 3, &offsets));
  CHECK_EQ(Text(offsets),
           "2 -1 -1 2 0 -1 -1 "     // alone with rank 2, in row 0
           "-1 -1 -1 -1 -1 -1 -1 "  // no rank
           "1 1 5 -1 -1 3 3 "       // rank 1 in row 5, rank 3 in row 3
           "3 1 5 -1 -1 3 3 "
           "-1 -1 -1 -1 -1 -1 -1 "
           "1 1 5 -1 -1 3 3");
  CHECK_OK(instances.RankOffsets(2, 6, 3, &offsets));  // rows count from the batch's first
  CHECK_EQ(offsets[2], 3);
}

TEST(replaced_slots_come_from_one_real_instance_and_go_back) {
  ThreadPool pool(1);
  Instances instances(kSlots, 0);
  std::vector<Row> rows;
  for (int k = 0; k < 40; ++k) {  // the second slot tells which instance a value is of
    rows.push_back({k, 0, 0, 0, 0, {}, {{static_cast<uint64_t>(k + 1)}, {}}});
    rows.back().slots[1].assign(static_cast<size_t>(k % 3), static_cast<uint64_t>(k + 101));
  }
  Fill(&instances, rows, 7);
  CHECK_CODE(instances.ReplaceSlots({1}, 10, 1), Code::kFailedPrecondition);
  CHECK_OK(instances.Index(&pool));
  const std::string before = Fed(instances);
  CHECK_OK(instances.ReplaceSlots({1}, 10, 1));
  const std::string replaced = Fed(instances);
  CHECK(replaced != before);
  std::vector<uint64_t> feasigns;
  std::vector<int32_t> offsets;
  CHECK_OK(instances.PackFeasigns(0, 40, &feasigns, &offsets));
  std::set<uint64_t> donors;
  for (size_t i = 0; i < 40; ++i) {
    const size_t own = static_cast<size_t>(offsets[2 * i]), second = own + 1;
    CHECK_EQ(feasigns[own], i + 1);  // a slot that is not named stays
    const size_t n = static_cast<size_t>(offsets[2 * i + 2]) - second;
    if (n == 0) continue;
    donors.insert(feasigns[second]);
    CHECK_EQ(n, (feasigns[second] - 101) % 3);  // all values of the donor
    CHECK_EQ(feasigns[second + n - 1], feasigns[second]);
  }
  CHECK(donors.size() >= 2 && donors.size() <= 10);  // of a pool of ten
  CHECK_OK(instances.ReplaceSlots({0}, 10, 2));      // restores the second slot first
  CHECK_OK(instances.ReplaceSlots({1}, 10, 1));
  CHECK_EQ(Fed(instances), replaced);
  CHECK_OK(instances.ReplaceSlots({}, 10, 0));
  CHECK_EQ(Fed(instances), before);
  CHECK_CODE(instances.ReplaceSlots({2}, 10, 0), Code::kInvalidArgument);
}

TEST(lists_held_once_change_nothing) {
  std::vector<Row> rows = Many(60);
  for (size_t k = 0; k < rows.size(); ++k) {
    rows[k].slots = {{1 + k / 4, 50}, {90 + k / 6}};  // repeated by the next few
    if (k % 2 != 0) rows[k].slots[0].clear();
    if (k % 2 == 0) rows[k].slots[1].clear();
    rows[k].id = static_cast<int>(k / 2);
  }
  std::vector<std::string> seen;
  for (const bool shared : {false, true}) {
    for (const bool merged : {false, true}) {
      std::vector<Row> input = rows;
      if (!merged) {
        for (size_t k = 0; k < input.size(); ++k) input[k].slots = rows[k / 2 * 2].slots;
      }
      ThreadPool pool(1);
      Instances instances(kSlots, 3);
      const std::vector<size_t> both = {0, 1};
      if (shared) CHECK_OK(instances.ShareLists(&both));
      Fill(&instances, input, 16);
      CHECK(!shared || merged || instances.shared_counts().lists > 0);
      if (merged) CHECK_EQ(instances.MergeByInsId(2, {1, 2}).value(), 0u);
      CHECK_OK(instances.ArrangeBy(Order::kSlot, 4, 0));
      CHECK_OK(instances.Index(&pool));
      CHECK_OK(instances.ReplaceSlots({1}, 9, 5));
      seen.push_back(Fed(instances));
      CHECK_OK(instances.ArrangeBy(Order::kSlot, 6, 1));
      seen.back() += Fed(instances);
    }
  }
  CHECK_EQ(seen[0], seen[2]);
  CHECK_EQ(seen[1], seen[3]);
}

TEST(what_needs_a_tag_says_which_setting_is_missing) {
  Instances instances(1, 0);
  ParsedChunk chunk;
  chunk.instances = 1;
  chunk.labels = {0};
  chunk.lengths = {0};
  CHECK_OK(instances.Append(std::move(chunk)));
  CHECK_CODE(instances.MergeByInsId(2, {}).status(), Code::kFailedPrecondition);
  const Status status = instances.ArrangeBy(Order::kSearchId, 1);
  CHECK_CODE(status, Code::kFailedPrecondition);
  CHECK(status.message().find("set_parse_logkey(True) is missing") != std::string::npos);
  CHECK_CODE(instances.PageViewStarts().status(), Code::kFailedPrecondition);
  ParsedChunk tagged;
  tagged.instances = 1;
  tagged.labels = {0};
  tagged.lengths = {0};
  tagged.tags.ins_ids.Add("x");
  CHECK_CODE(instances.Append(std::move(tagged)), Code::kInvalidArgument);
}
