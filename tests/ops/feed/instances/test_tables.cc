// Slots of one load that belong to several tables: each table gets what a load of its slots alone
// would give it.
#include <algorithm>
#include <utility>

#include "base/hash.h"
#include "feed/feed_util.h"
#include "feed/instances/instances.h"
#include "row/feasign.h"
#include "row/lists.h"

using namespace pbx;
using namespace pbx::test;

namespace {

using Slots = std::vector<std::vector<uint64_t>>;  // of one instance

ParsedChunk ChunkOf(const std::vector<Slots>& instances, const std::vector<size_t>& chosen) {
  ParsedChunk chunk;
  for (const Slots& slots : instances) {
    chunk.labels.push_back(static_cast<float>(chunk.instances++ % 2));
    for (const size_t s : chosen) {
      chunk.lengths.push_back(static_cast<uint32_t>(slots[s].size()));
      chunk.feasigns.insert(chunk.feasigns.end(), slots[s].begin(), slots[s].end());
    }
  }
  return chunk;
}

std::vector<Slots> Many(size_t n) {
  std::vector<Slots> instances;
  uint64_t random = 0;
  for (size_t i = 0; i < n; ++i) {
    Slots slots(4);
    for (auto& slot : slots) {
      // A third repeats the instance before, so that lists are shared.
      if (i > 0 && Mix(++random) % 3 == 0) {
        slot = instances.back()[static_cast<size_t>(&slot - slots.data())];
        continue;
      }
      for (uint64_t k = Mix(++random) % 4; k > 0; --k) slot.push_back(1 + Mix(++random) % (n / 2));
    }
    instances.push_back(slots);
  }
  return instances;
}

std::vector<int32_t> Identity(size_t begin, size_t n) {
  std::vector<int32_t> rows(begin + n);
  for (size_t i = 0; i < n; ++i) rows[begin + i] = static_cast<int32_t>(i);
  return rows;
}

// Gives each cell a list of its own again; whether some shared one.
bool Expand(size_t cells, SparseBatch* batch) {
  const SharedCells shared =
      FindShared(cells, batch->offsets.data(), batch->offsets.size()).value();
  if (shared.list_of == nullptr) return false;
  std::vector<int32_t> ids, offsets;
  CHECK_OK(ExpandLists(shared, cells, batch->ids.data(), batch->offsets.data(), &ids, &offsets));
  batch->ids.swap(ids);
  batch->offsets.swap(offsets);
  return true;
}

const std::vector<size_t> kAll = {0, 1, 2, 3};

}  // namespace

TEST(a_feasign_in_slots_of_two_tables_is_a_key_of_each) {
  ThreadPool pool(1);
  Instances instances(4, 0);
  CHECK_OK(instances.SetTables({0, 1, 0, 1}));
  CHECK_OK(instances.Append(ChunkOf({{{5}, {5, 6}, {7}, {}}, {{}, {6}, {5}, {8}}}, kAll)));
  CHECK_OK(instances.Index(&pool));
  CHECK_EQ(Text(instances.key_bounds()), Text(std::vector<size_t>{0, 2, 5}));
  const RangeKeys all = instances.SelectRange({0, 2}).value();
  std::vector<uint64_t> first = {KeyOf(5), KeyOf(7)}, second = {KeyOf(5), KeyOf(6), KeyOf(8)};
  std::sort(first.begin(), first.end());
  std::sort(second.begin(), second.end());
  first.insert(first.end(), second.begin(), second.end());
  CHECK_EQ(Text(all.keys), Text(first));
  for (size_t i = 0; i < all.keys.size(); ++i) {  // the lowest slot of that table
    const uint64_t feasign = FeasignOf(all.keys[i]);
    const uint16_t expected = i < 2 ? (feasign == 5 ? 0 : 2) : (feasign == 8 ? 3 : 1);
    CHECK_EQ(all.slots[i], expected);
  }
  // Row f of table 0, row 10 * f of table 1.
  std::vector<int32_t> rows;
  for (size_t i = 0; i < all.keys.size(); ++i) {
    rows.push_back(static_cast<int32_t>((i < 2 ? 1 : 10) * FeasignOf(all.keys[i])));
  }
  Batch batch;
  CHECK_OK(instances.PackBatch(0, 2, rows.data(), 1, &batch));
  CHECK_EQ(Text(batch.ids), Text(std::vector<int32_t>{5, 7, 5}));
  CHECK_EQ(Text(batch.offsets), Text(std::vector<int32_t>{0, 1, 2, 2, 3}));
  SparseBatch other;
  CHECK_OK(instances.PackTable(1, 0, 2, rows.data(), 2, &other));
  CHECK_EQ(Text(other.ids), Text(std::vector<int32_t>{50, 60, 60, 80}));
  CHECK_EQ(Text(other.offsets), Text(std::vector<int32_t>{0, 2, 2, 3, 4}));
  std::vector<uint64_t> feasigns;
  std::vector<int32_t> offsets;
  CHECK_OK(instances.PackFeasigns(0, 2, &feasigns, &offsets));
  CHECK_EQ(Text(feasigns), Text(std::vector<uint64_t>{5, 5, 6, 7, 6, 5, 8}));
}

TEST(each_table_gets_what_a_load_of_its_slots_alone_gives) {
  const std::vector<Slots> many = Many(3000);
  const std::vector<std::vector<size_t>> slots_of = {{1, 2}, {0, 3}};
  for (const int threads : {1, 4}) {
    for (const int how : {0, 1, 2, 3}) {
      const bool share = how % 2 == 1, shuffle = how < 2;
      ThreadPool pool(threads);
      Instances both(4, 0);
      CHECK_OK(both.SetTables({1, 0, 0, 1}));
      if (share) CHECK_OK(both.ShareLists(&kAll));
      for (size_t at = 0; at < many.size(); at += 700) {
        const auto begin = many.begin() + static_cast<std::ptrdiff_t>(at);
        const size_t n = std::min<size_t>(700, many.size() - at);
        CHECK_OK(both.Append(ChunkOf({begin, begin + static_cast<std::ptrdiff_t>(n)}, kAll)));
      }
      if (shuffle) CHECK_OK(both.Shuffle(3));
      CHECK_OK(both.Index(&pool));
      CHECK_EQ(both.shared_counts().lists > 0, share);
      const RangeKeys keys = both.SelectRange({0, both.size()}).value();
      const std::vector<uint32_t> counts = both.KeyCounts().value();
      for (size_t t = 0; t < 2; ++t) {
        Instances alone(2, 0);
        CHECK_OK(alone.Append(ChunkOf(many, slots_of[t])));
        if (shuffle) CHECK_OK(alone.Shuffle(3));
        CHECK_OK(alone.Index(&pool));
        const size_t begin = both.key_bounds()[t], n = alone.unique_keys();
        CHECK_EQ(both.key_bounds()[t + 1] - begin, n);
        const RangeKeys own = alone.SelectRange({0, alone.size()}).value();
        const std::vector<uint32_t> own_counts = alone.KeyCounts().value();
        for (size_t i = 0; i < n; ++i) {
          CHECK_EQ(keys.keys[begin + i], own.keys[i]);
          CHECK_EQ(keys.slots[begin + i], slots_of[t][own.slots[i]]);
          CHECK_EQ(counts[begin + i], own_counts[i]);
        }
        // ReplaceSlots does the same to both: slot 0 of table 1 gives way to other instances'.
        for (const bool replaced : {false, true}) {
          if (replaced && t == 1) {
            CHECK_OK(both.ReplaceSlots({0}, 100, 7));
            CHECK_OK(alone.ReplaceSlots({0}, 100, 7));
          }
          Batch expected;
          SparseBatch found;
          const std::vector<int32_t> ids = Identity(0, n), rows = Identity(begin, n);
          for (size_t at = 0; at < many.size(); at += 512) {
            const size_t end = std::min(many.size(), at + 512);
            CHECK_OK(alone.PackBatch(at, end, ids.data(), 9, &expected));
            CHECK_OK(both.PackTable(t, at, end, rows.data(), 9, &found));
            // In order lists repeat in every batch, but donors' are fed as they are.
            const bool shared = Expand(2 * (end - at), &found);
            if (!share || !shuffle) CHECK_EQ(shared, share && !(replaced && t == 1));
            CHECK_EQ(Text(found.ids), Text(expected.ids));
            CHECK_EQ(Text(found.offsets), Text(expected.offsets));
            CHECK_EQ(Text(found.plan), Text(expected.plan));
          }
        }
      }
    }
  }
}

TEST(a_split_respects_the_limit_of_each_table) {
  ThreadPool pool(1);
  Instances instances(2, 0);
  CHECK_OK(instances.SetTables({0, 1}));
  // Keys of the first table: 1 | 2 | 1; of the second: 1, 2 | 3 | 4.
  ParsedChunk chunk;
  chunk.instances = 3;
  chunk.labels = {0, 0, 0};
  chunk.lengths = {1, 2, 1, 1, 1, 1};
  chunk.feasigns = {1, 1, 2, 2, 3, 1, 4};
  CHECK_OK(instances.Append(std::move(chunk)));
  CHECK_OK(instances.Index(&pool));
  const auto split = [&](std::vector<size_t> most) {
    std::string text;
    const auto ranges = instances.Split(most, 1);
    if (!ranges.ok()) return ranges.status().message();
    for (const InstanceRange& range : ranges.value()) {
      text += std::to_string(range.begin) + "-" + std::to_string(range.end) + " ";
    }
    return text;
  };
  CHECK_EQ(split({2, 4}), "0-3 ");
  CHECK_EQ(split({9, 3}), "0-2 2-3 ");
  CHECK_EQ(split({1, 9}), "0-1 1-2 2-3 ");
  CHECK_EQ(split({9, 2}), "0-1 1-3 ");
  CHECK_EQ(split({9, 1}).substr(0, 46), "the batch of instances [0, 1) alone needs 2 ro");
  CHECK_EQ(split({9}), "rows of 1 tables, but there are 2");
}

TEST(a_table_without_a_feasign_in_the_load_has_no_keys) {
  ThreadPool pool(2);
  Instances instances(2, 0);
  CHECK_OK(instances.SetTables({0, 1}));
  ParsedChunk chunk;
  chunk.instances = 1;
  chunk.labels = {0};
  chunk.lengths = {1, 0};
  chunk.feasigns = {3};
  CHECK_OK(instances.Append(std::move(chunk)));
  CHECK_OK(instances.Index(&pool));
  CHECK_EQ(Text(instances.key_bounds()), Text(std::vector<size_t>{0, 1, 1}));
  SparseBatch batch;
  const int32_t row = 0;
  CHECK_OK(instances.PackTable(1, 0, 1, &row, 1, &batch));
  CHECK(batch.ids.empty());
  CHECK_EQ(Text(batch.offsets), Text(std::vector<int32_t>{0, 0}));
}

TEST(tables_that_do_not_fit_the_slots_are_refused) {
  Instances instances(2, 0);
  CHECK_CODE(instances.SetTables({0}), Code::kInvalidArgument);
  CHECK_CODE(instances.SetTables({0, 2}), Code::kInvalidArgument);
  CHECK_OK(instances.SetTables({1, 0}));
  SparseBatch batch;
  CHECK_CODE(instances.PackTable(0, 0, 0, nullptr, 1, &batch), Code::kFailedPrecondition);
  CHECK_OK(instances.Append(ChunkOf({{{1}, {2}}}, {0, 1})));
  CHECK_CODE(instances.SetTables({0, 1}), Code::kFailedPrecondition);
  ThreadPool pool(1);
  CHECK_OK(instances.Index(&pool));
  const std::vector<int32_t> rows = {0, 0};
  CHECK_CODE(instances.PackTable(2, 0, 1, rows.data(), 1, &batch), Code::kInvalidArgument);
  CHECK_CODE(instances.PackTable(0, 0, 2, rows.data(), 1, &batch), Code::kInvalidArgument);
}
