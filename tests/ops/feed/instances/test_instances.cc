#include "feed/instances/instances.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/hash.h"
#include "feed/feed_util.h"
#include "row/feasign.h"
#include "row/plan.h"

using namespace pbx;
using namespace pbx::test;

namespace {

constexpr size_t kSlots = 2;
constexpr size_t kWidth = 1;

// One instance as a person would write it down.
struct Instance {
  float label;
  float dense;
  std::vector<std::vector<uint64_t>> slots;
};

ParsedChunk ChunkOf(const std::vector<Instance>& instances) {
  ParsedChunk chunk;
  for (const Instance& instance : instances) {
    ++chunk.instances;
    chunk.labels.push_back(instance.label);
    chunk.dense.push_back(instance.dense);
    for (const auto& slot : instance.slots) {
      chunk.lengths.push_back(static_cast<uint32_t>(slot.size()));
      chunk.feasigns.insert(chunk.feasigns.end(), slot.begin(), slot.end());
    }
  }
  return chunk;
}

// Number i: label i / 10, dense i.
std::vector<Instance> Four() {
  return {{0.0f, 0, {{5, 6}, {7}}},
          {0.1f, 1, {{}, {5}}},
          {0.2f, 2, {{8}, {8, 9}}},
          {0.3f, 3, {{5}, {}}}};
}

// Many instances with repeats: half of the feasigns come from a handful.
std::vector<Instance> Many(size_t n, uint64_t seed) {
  std::vector<Instance> instances;
  uint64_t random = seed << 32;
  for (size_t i = 0; i < n; ++i) {
    Instance instance = {static_cast<float>(i % 2), static_cast<float>(i), {{}, {}}};
    for (auto& slot : instance.slots) {
      for (uint64_t k = Mix(++random) % 5; k > 0; --k) {
        const uint64_t draw = Mix(++random);
        slot.push_back(draw % 2 ? 1 + draw % 7 : 1 + draw % (n * 4));
      }
    }
    instances.push_back(instance);
  }
  return instances;
}

void Fill(Instances* instances, const std::vector<Instance>& all, size_t chunk_size) {
  for (size_t at = 0; at < all.size(); at += chunk_size) {
    const size_t end = std::min(all.size(), at + chunk_size);
    CHECK_OK(instances->Append(ChunkOf({all.begin() + static_cast<std::ptrdiff_t>(at),
                                        all.begin() + static_cast<std::ptrdiff_t>(end)})));
  }
}

// Rows that are the positions themselves.
std::vector<int32_t> Identity(size_t n) {
  std::vector<int32_t> rows(n);
  for (size_t i = 0; i < n; ++i) rows[i] = static_cast<int32_t>(i);
  return rows;
}

// Everything that later stages see of a load.
std::string Dump(const Instances& instances, size_t batch_size) {
  std::ostringstream out;
  const RangeKeys keys = instances.SelectRange({0, instances.size()}).value();
  out << Text(keys.keys) << "|" << Text(keys.slots) << "|" << Text(keys.positions) << "\n";
  const std::vector<int32_t> rows = Identity(instances.unique_keys());
  Batch batch;
  for (size_t at = 0; at < instances.size(); at += batch_size) {
    const size_t end = std::min(instances.size(), at + batch_size);
    CHECK_OK(instances.PackBatch(at, end, rows.data(), 9, &batch));
    out << Text(batch.ids) << "|" << Text(batch.offsets) << "|" << Text(batch.plan) << "|"
        << Text(batch.dense) << "|" << Text(batch.labels) << "|" << Text(batch.show_click) << "\n";
  }
  return out.str();
}

}  // namespace

TEST(keys_are_unique_sorted_and_know_their_lowest_slot) {
  ThreadPool pool(1);
  Instances instances(kSlots, kWidth);
  Fill(&instances, Four(), 3);
  CHECK_OK(instances.Index(&pool));
  CHECK_EQ(instances.size(), 4u);
  CHECK_EQ(instances.occurrences(), 8u);
  CHECK_EQ(instances.unique_keys(), 5u);
  std::map<uint64_t, uint16_t> expected = {
      {KeyOf(5), 0}, {KeyOf(6), 0}, {KeyOf(7), 1}, {KeyOf(8), 0}, {KeyOf(9), 1}};
  const RangeKeys all = instances.SelectRange({0, 4}).value();
  size_t at = 0;
  for (const auto& [key, slot] : expected) {
    CHECK_EQ(all.keys.at(at), key);
    CHECK_EQ(all.slots.at(at), slot);
    CHECK_EQ(all.positions.at(at), static_cast<int32_t>(at));
    ++at;
  }
  // The lowest slot is that of the whole load, so that it does not depend on how a pass is split.
  const RangeKeys second = instances.SelectRange({1, 2}).value();
  CHECK_EQ(second.keys.size(), 1u);
  CHECK_EQ(second.keys.at(0), KeyOf(5));
  CHECK_EQ(second.slots.at(0), 0u);
  CHECK_EQ(all.keys.at(static_cast<size_t>(second.positions.at(0))), KeyOf(5));
}

TEST(a_batch_holds_its_instances_slot_by_slot) {
  ThreadPool pool(1);
  Instances instances(kSlots, kWidth);
  Fill(&instances, Four(), 2);
  CHECK_OK(instances.Index(&pool));
  // Feasign f gets row 10 * f; 9 has none.
  const RangeKeys all = instances.SelectRange({0, 4}).value();
  std::vector<int32_t> rows;
  for (const uint64_t key : all.keys) {
    rows.push_back(FeasignOf(key) == 9 ? -1 : static_cast<int32_t>(10 * FeasignOf(key)));
  }
  Batch batch;
  CHECK_OK(instances.PackBatch(0, 3, rows.data(), 77, &batch));
  CHECK_EQ(batch.size, 3u);
  CHECK_EQ(Text(batch.ids), "50 60 70 50 80 80 -1");
  CHECK_EQ(Text(batch.offsets), "0 2 3 3 4 5 7");
  CHECK_EQ(Text(batch.plan),
           "77 4 6 50 60 70 80 0 2 3 4 6 " +
               Text(std::vector<int32_t>{kFirst | 0, 3, kFirst | 0, kFirst | 1, kFirst | 4, 5}));
  CHECK_EQ(Text(batch.dense), "0 1 2");
  CHECK_EQ(Text(batch.labels), "0 0.1 0.2");
  CHECK_EQ(Text(batch.show_click), "1 0 1 0.1 1 0.2");
  CHECK_OK(instances.PackBatch(3, 4, rows.data(), 77, &batch));  // the vectors are reused
  CHECK_EQ(Text(batch.ids), "50");
  CHECK_EQ(Text(batch.offsets), "0 1 1");
  CHECK_EQ(Text(batch.labels), "0.3");

  std::vector<uint64_t> feasigns;
  std::vector<int32_t> offsets;
  CHECK_OK(instances.PackFeasigns(0, 3, &feasigns, &offsets));
  CHECK_EQ(Text(feasigns), "5 6 7 5 8 8 9");
  CHECK_EQ(Text(offsets), "0 2 3 3 4 5 7");
}

TEST(the_result_does_not_depend_on_threads_or_chunks) {
  const std::vector<Instance> all = Many(5000, 3);
  std::string first;
  for (const int threads : {1, 2, 4}) {
    for (const size_t chunk_size : {size_t{5000}, size_t{700}, size_t{1}}) {
      ThreadPool pool(threads);
      Instances instances(kSlots, kWidth);
      Fill(&instances, all, chunk_size);
      CHECK_OK(instances.Shuffle(11));
      CHECK_OK(instances.Index(&pool));
      const std::string dump = Dump(instances, 512);
      if (first.empty()) first = dump;
      CHECK(dump == first);
    }
  }
}

// Enough keys for several partitions; a small alphabet beside them, so that groups repeat.
TEST(many_keys_agree_with_a_map) {
  const std::vector<Instance> all = Many(150000, 5);
  ThreadPool pool(4);
  Instances instances(kSlots, kWidth);
  Fill(&instances, all, 40000);
  CHECK_OK(instances.Index(&pool));
  std::map<uint64_t, uint16_t> model;
  for (const Instance& instance : all) {
    for (uint16_t s = 0; s < kSlots; ++s) {
      for (const uint64_t feasign : instance.slots[s]) {
        const auto entry = model.insert({KeyOf(feasign), s}).first;
        entry->second = std::min(entry->second, s);
      }
    }
  }
  const RangeKeys keys = instances.SelectRange({0, all.size()}).value();
  CHECK_EQ(keys.keys.size(), model.size());
  size_t at = 0;
  size_t wrong = 0;
  for (const auto& [key, slot] : model) {
    wrong += keys.keys.at(at) != key || keys.slots.at(at) != slot;
    ++at;
  }
  CHECK_EQ(wrong, 0u);
}

// Keys that agree in all the bits that are sorted by digit, so that comparison must tell them
// apart.
TEST(keys_with_equal_high_bits_are_told_apart) {
  Instance instance = {1, 0, {{}, {}}};
  std::set<uint64_t> keys;
  for (uint64_t i = 0; i < 3000; ++i) {
    const uint64_t key = (0xabcdef0123ULL << 24) + (i * 7919) % 1000 + 1;
    keys.insert(key);
    instance.slots[i % 2].push_back(FeasignOf(key));
  }
  ThreadPool pool(2);
  Instances instances(kSlots, kWidth);
  Fill(&instances, {instance}, 1);
  CHECK_OK(instances.Index(&pool));
  const std::vector<uint64_t> sorted(keys.begin(), keys.end());
  CHECK(instances.SelectRange({0, 1}).value().keys == sorted);
}

TEST(shuffling_is_a_permutation_of_seed_and_size_only) {
  const auto order = [](uint64_t seed, size_t n) {
    ThreadPool pool(1);
    Instances instances(kSlots, kWidth);
    std::vector<Instance> all = Many(n, 1);
    for (size_t i = 0; i < n; ++i) all[i].label = all[i].dense / 1000;
    Fill(&instances, all, 7);
    CHECK_OK(instances.Shuffle(seed));
    CHECK_OK(instances.Index(&pool));
    Batch batch;
    const std::vector<int32_t> rows = Identity(instances.unique_keys());
    CHECK_OK(instances.PackBatch(0, n, rows.data(), 1, &batch));
    // Features and labels move together.
    for (size_t i = 0; i < n; ++i) {
      const Instance& was = all[static_cast<size_t>(batch.dense[i])];
      CHECK_EQ(batch.labels[i], was.label);
      CHECK_EQ(instances.labels()[i], was.label);
      for (size_t s = 0; s < kSlots; ++s) {
        CHECK_EQ(
            static_cast<size_t>(batch.offsets[i * kSlots + s + 1] - batch.offsets[i * kSlots + s]),
            was.slots[s].size());
      }
    }
    return batch.dense;
  };
  const std::vector<float> once = order(1, 100);
  CHECK(order(1, 100) == once);
  CHECK(order(2, 100) != once);
  std::vector<float> sorted = once;
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 0; i < 100; ++i) CHECK_EQ(sorted[i], static_cast<float>(i));
  // Golden: a change of the generator is a decision, not an accident.
  CHECK_EQ(Text(order(1, 8)), "5 2 4 0 7 3 6 1");
}

// Each of the 6 orders of 3 instances should come up 1000 times in 6000; 5 standard deviations.
TEST(all_orders_are_equally_likely) {
  std::map<std::string, int> counts;
  for (uint64_t seed = 0; seed < 6000; ++seed) {
    Instances instances(kSlots, kWidth);
    Fill(&instances, {{0.0f, 0, {{}, {}}}, {0.1f, 0, {{}, {}}}, {0.2f, 0, {{}, {}}}}, 3);
    CHECK_OK(instances.Shuffle(seed));
    ++counts[Text(instances.labels())];
  }
  CHECK_EQ(counts.size(), 6u);
  for (const auto& entry : counts) CHECK_NEAR(entry.second, 1000, 5 * 29);
}

// Unique keys: {5,6,7} {5} {8,9} {5}.
TEST(a_load_is_split_at_batches_so_that_each_range_fits) {
  ThreadPool pool(1);
  Instances instances(kSlots, kWidth);
  Fill(&instances, Four(), 4);
  CHECK_OK(instances.Index(&pool));
  const auto split = [&](size_t max_rows, size_t batch_size) {
    const Result<std::vector<InstanceRange>> ranges = instances.Split(max_rows, batch_size);
    if (!ranges.ok()) return ranges.status().message();
    std::string text;
    for (const InstanceRange& range : ranges.value()) {
      text += std::to_string(range.begin) + "-" + std::to_string(range.end) + " ";
    }
    return text;
  };
  CHECK_EQ(split(5, 1), "0-4 ");
  CHECK_EQ(split(4, 1), "0-2 2-4 ");
  CHECK_EQ(split(3, 1), "0-2 2-4 ");
  CHECK_EQ(split(3, 2), "0-2 2-4 ");
  CHECK_EQ(split(4, 3).substr(0, 46), "the batch of instances [0, 3) alone needs 5 ro");
  CHECK_EQ(split(2, 1).substr(0, 46), "the batch of instances [0, 1) alone needs 3 ro");
  CHECK_CODE(instances.Split(2, 1).status(), Code::kInvalidArgument);
  CHECK_CODE(instances.Split(5, 0).status(), Code::kInvalidArgument);
}

TEST(every_range_of_a_split_fits_and_none_could_take_another_batch) {
  ThreadPool pool(2);
  Instances instances(kSlots, kWidth);
  Fill(&instances, Many(2000, 9), 300);
  CHECK_OK(instances.Index(&pool));
  const size_t max_rows = 500, batch = 32;
  const std::vector<InstanceRange> ranges = instances.Split(max_rows, batch).value();
  CHECK(ranges.size() > 3);
  size_t next = 0;
  for (const InstanceRange& range : ranges) {
    CHECK_EQ(range.begin, next);
    CHECK_EQ(range.begin % batch, 0u);
    CHECK(instances.SelectRange(range).value().keys.size() <= max_rows);
    next = range.end;
    if (next == 2000) break;
    const InstanceRange more = {range.begin, std::min<size_t>(2000, range.end + batch)};
    CHECK(instances.SelectRange(more).value().keys.size() > max_rows);
  }
  CHECK_EQ(next, 2000u);
}

TEST(an_empty_load_is_legal) {
  ThreadPool pool(2);
  Instances instances(kSlots, kWidth);
  CHECK_OK(instances.Append(ParsedChunk()));
  CHECK_OK(instances.Shuffle(1));
  CHECK_OK(instances.Index(&pool));
  CHECK_EQ(instances.Split(10, 4).value().size(), 0u);
  CHECK_EQ(instances.SelectRange({0, 0}).value().keys.size(), 0u);
  Batch batch;
  CHECK_OK(instances.PackBatch(0, 0, nullptr, 3, &batch));
  CHECK_EQ(Text(batch.offsets), "0");
  CHECK_EQ(Text(batch.plan), "3 0 0 0");
}

TEST(calls_out_of_order_say_which_is_missing) {
  ThreadPool pool(1);
  Instances instances(kSlots, kWidth);
  Batch batch;
  CHECK_CODE(instances.PackBatch(0, 0, nullptr, 1, &batch), Code::kFailedPrecondition);
  CHECK_CODE(instances.Split(1, 1).status(), Code::kFailedPrecondition);
  CHECK_CODE(instances.SelectRange({0, 0}).status(), Code::kFailedPrecondition);
  CHECK_OK(instances.Shuffle(1));
  CHECK_CODE(instances.Shuffle(1), Code::kFailedPrecondition);
  CHECK_CODE(instances.Append(ChunkOf(Four())), Code::kFailedPrecondition);
  CHECK_OK(instances.Index(&pool));
  CHECK_CODE(instances.Index(&pool), Code::kFailedPrecondition);
  CHECK_CODE(instances.Shuffle(1), Code::kFailedPrecondition);
  CHECK_CODE(instances.PackBatch(0, 1, nullptr, 1, &batch), Code::kInvalidArgument);
  CHECK_CODE(instances.SelectRange({1, 0}).status(), Code::kInvalidArgument);
}

TEST(a_chunk_whose_columns_do_not_fit_is_refused) {
  Instances instances(kSlots, kWidth);
  const auto append = [&](void (*damage)(ParsedChunk*)) {
    ParsedChunk chunk = ChunkOf(Four());
    damage(&chunk);
    return instances.Append(std::move(chunk));
  };
  CHECK_CODE(append([](ParsedChunk* c) { ++c->instances; }), Code::kInvalidArgument);
  CHECK_CODE(append([](ParsedChunk* c) { c->labels.pop_back(); }), Code::kInvalidArgument);
  CHECK_CODE(append([](ParsedChunk* c) { c->dense.push_back(0); }), Code::kInvalidArgument);
  CHECK_CODE(append([](ParsedChunk* c) { c->lengths.pop_back(); }), Code::kInvalidArgument);
  CHECK_CODE(append([](ParsedChunk* c) { ++c->lengths[0]; }), Code::kInvalidArgument);
  CHECK_CODE(append([](ParsedChunk* c) { c->feasigns.pop_back(); }), Code::kInvalidArgument);
  CHECK_CODE(append([](ParsedChunk* c) { c->feasigns[0] = 0; }), Code::kInvalidArgument);
  CHECK_OK(append([](ParsedChunk*) {}));
  CHECK_EQ(instances.size(), 4u);
}
