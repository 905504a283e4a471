#include "feed/instances/shared_lists.h"

#include <string>
#include <vector>

#include "base/hash.h"
#include "feed/feed_util.h"
#include "feed/instances/instances.h"
#include "row/lists.h"

namespace pbx {
namespace {

using feed::Sharing;
using test::SameBytes;
using test::Text;

// Slots user and word: (7 8 | 1), (7 8 | 2), (7 8 | 2), ( | 2), (7 | ), (7 | 2).
ParsedChunk Sessions() {
  ParsedChunk chunk;
  chunk.instances = 6;
  chunk.labels.assign(6, 0);
  chunk.lengths = {2, 1, 2, 1, 2, 1, 0, 1, 1, 0, 1, 1};
  chunk.feasigns = {7, 8, 1, 7, 8, 2, 7, 8, 2, 2, 7, 7, 2};
  return chunk;
}

TEST(a_list_that_repeats_the_one_before_is_held_once) {
  ParsedChunk chunk = Sessions();
  const feed::SharedLists shared = feed::ShareLists(Sharing::kOn, {1, 1}, 2, &chunk);
  CHECK_EQ(Text(chunk.feasigns), "7 8 7 1 2 2");
  CHECK_EQ(Text(shared.begins), "0 3 0 4 0 4 2 4 2 5 2 5");
  CHECK_EQ(Text(shared.bounds), "0 3 6");
  CHECK_EQ(shared.lists_saved, 5u);
  CHECK_EQ(shared.values_saved, 7u);
}

using Lists = std::vector<std::vector<uint64_t>>;

// A chunk with one slot.
ParsedChunk ChunkOf(const Lists& lists) {
  ParsedChunk chunk;
  chunk.instances = lists.size();
  chunk.labels.assign(lists.size(), 0);
  for (const auto& list : lists) {
    chunk.lengths.push_back(static_cast<uint32_t>(list.size()));
    chunk.feasigns.insert(chunk.feasigns.end(), list.begin(), list.end());
  }
  return chunk;
}

// What is held, then the lists that the windows give.
std::string Held(const Lists& lists) {
  ParsedChunk chunk = ChunkOf(lists);
  const feed::SharedLists shared = feed::ShareLists(Sharing::kOn, {1}, 1, &chunk);
  for (size_t i = 0; i < lists.size(); ++i) {
    feed::EachList(shared, i, &chunk.lengths[i], 1, 0, [&](size_t, size_t begin, size_t end) {
      const auto at = [&](size_t k) {
        return chunk.feasigns.begin() + static_cast<std::ptrdiff_t>(k);
      };
      CHECK_EQ(Text(std::vector<uint64_t>(at(begin), at(end))), Text(lists[i]));
    });
  }
  return Text(chunk.feasigns);
}

TEST(a_history_that_grows_by_one_event_is_held_once) {
  CHECK_EQ(Held({{7, 4}, {9, 7, 4}, {9, 7, 4}}), "9 7 4");    // the latest first
  CHECK_EQ(Held({{4, 7}, {4, 7, 9}, {7, 9, 2}}), "4 7 9 2");  // the latest last, at most 3
  CHECK_EQ(Held({{1}, {2, 1}, {3, 2}, {4, 3}}), "4 3 2 1");   // the latest first, at most 2
  CHECK_EQ(Held({{5}, {5, 5}, {5, 5}, {5, 5, 5}}), "5 5 5");  // either end
  CHECK_EQ(Held({{5}, {5, 5}, {6, 5, 5}}), "5 5 6 5 5");      // it was taken to grow at the end
  CHECK_EQ(Held({{1, 2}, {1, 2, 3}, {4, 1, 2, 3}}), "1 2 3 4 1 2 3");
}

TEST(a_history_that_is_no_extension_of_the_one_before_is_held_whole) {
  CHECK_EQ(Held({{1, 2}, {3, 4}}), "1 2 3 4");
  CHECK_EQ(Held({{1}, {2}, {}, {2}}), "1 2 2");                // nothing in common, or nothing
  CHECK_EQ(Held({{1, 2}, {1, 2, 3, 4}}), "1 2 1 2 3 4");       // two events
  CHECK_EQ(Held({{1, 2, 3}, {3, 4}}), "1 2 3 3 4");            // two have left
  CHECK_EQ(Held({{1, 2, 3}, {1, 2}}), "1 2 3 1 2");            // only shorter
  CHECK_EQ(Held({{1, 2, 3}, {3, 2, 1}}), "1 2 3 3 2 1");       // another order
  CHECK_EQ(Held({{1, 2, 3}, {1, 9, 3, 4}}), "1 2 3 1 9 3 4");  // another event
}

TEST(what_growing_histories_save_is_counted_and_auto_finds_them) {
  const Lists lists = {{1, 2, 3}, {4, 1, 2, 3}, {5, 4, 1, 2}, {5, 4, 1, 2}};
  ParsedChunk chunk = ChunkOf(lists);
  const feed::SharedLists shared = feed::ShareLists(Sharing::kAuto, {}, 1, &chunk);
  CHECK_EQ(Text(shared.slots), "0");
  CHECK_EQ(shared.lists_saved, 3u);
  CHECK_EQ(shared.values_saved, 3u + 3u + 4u);
  CHECK_EQ(Text(shared.begins), "2 1 0 0");
}

TEST(only_the_slots_that_are_named_share) {
  ParsedChunk chunk = Sessions();
  const feed::SharedLists shared = feed::ShareLists(Sharing::kOn, {1, 0}, 2, &chunk);
  CHECK_EQ(Text(shared.slots), "0");
  CHECK_EQ(Text(chunk.feasigns), "1 2 2 2 2 7 8 7");
}

TEST(auto_shares_where_that_takes_less_memory_and_not_elsewhere) {
  ParsedChunk chunk = Sessions();  // 5 values of 4 bytes saved by user, an index of 6 entries
  CHECK(feed::ShareLists(Sharing::kAuto, {}, 2, &chunk).slots.empty());
  CHECK_EQ(chunk.feasigns.size(), 13u);
  chunk.instances = 3;  // 4 values, 3 entries
  chunk.labels.resize(3);
  chunk.lengths.resize(6);
  chunk.feasigns.resize(9);
  CHECK_EQ(Text(feed::ShareLists(Sharing::kAuto, {}, 2, &chunk).slots), "0");
  CHECK_EQ(Text(chunk.feasigns), "1 2 2 7 8");
  CHECK(feed::ShareLists(Sharing::kOff, {}, 2, &chunk).slots.empty());
}

TEST(auto_counts_no_savings_for_a_history_that_turns) {
  Lists lists = {{1, 2, 3}};  // grows at either end in turns: only each second list is a window
  for (uint64_t id = 4; lists.size() < 401; ++id) {
    std::vector<uint64_t> next = lists.back();
    const bool last = id % 2 == 0;
    next.erase(last ? next.begin() : next.end() - 1);
    next.insert(last ? next.end() : next.begin(), id);
    lists.push_back(next);
  }
  ParsedChunk chunk = ChunkOf(lists);
  const feed::SharedLists shared = feed::ShareLists(Sharing::kOn, {1}, 1, &chunk);
  CHECK_EQ(shared.values_saved, 400u);  // of 4 bytes each, for an index of 401 entries
  chunk = ChunkOf(lists);
  CHECK(feed::ShareLists(Sharing::kAuto, {}, 1, &chunk).slots.empty());
  CHECK_EQ(chunk.feasigns.size(), 3 * 401u);
}

// Sessions of 1 to 6 instances whose user slot stays or grows by one value, at the beginning or at
// the end, up to 6 values. The other slots change each time.
ParsedChunk Random(uint64_t seed, size_t n) {
  uint64_t state = seed;
  const auto below = [&](uint64_t bound) { return Mix(state += 0x9e3779b97f4a7c15ULL) % bound; };
  ParsedChunk chunk;
  std::vector<uint64_t> user;
  bool first = false;
  for (size_t left = 0; chunk.instances < n; ++chunk.instances) {
    if (left == 0) {
      left = 1 + below(6);
      first = below(2) == 0;
      user.assign(below(5), 0);
      for (uint64_t& value : user) value = 1 + below(50);
    }
    if (below(3) == 0) {
      user.insert(first ? user.begin() : user.end(), 1 + below(50));
      if (user.size() > 6) user.erase(first ? user.end() - 1 : user.begin());
    }
    --left;
    chunk.labels.push_back(static_cast<float>(below(2)));
    chunk.lengths.push_back(static_cast<uint32_t>(below(3)));
    for (uint32_t k = 0; k < chunk.lengths.back(); ++k) chunk.feasigns.push_back(1 + below(3));
    chunk.lengths.push_back(static_cast<uint32_t>(user.size()));
    chunk.feasigns.insert(chunk.feasigns.end(), user.begin(), user.end());
    chunk.lengths.push_back(1);
    chunk.feasigns.push_back(1 + below(1000));
  }
  return chunk;
}

std::unique_ptr<Instances> Filled(const std::vector<size_t>* slots, bool share, bool shuffle,
                                  ThreadPool* pool) {
  auto instances = std::make_unique<Instances>(3, 0);
  if (share) CHECK_OK(instances->ShareLists(slots));
  for (uint64_t chunk = 0; chunk < 3; ++chunk) CHECK_OK(instances->Append(Random(chunk, 700)));
  if (shuffle) CHECK_OK(instances->Shuffle(4));
  CHECK_OK(instances->Index(pool));
  return instances;
}

// The shared lists of a batch, which are numbered as they must be.
SharedCells Checked(const Batch& batch, size_t cells) {
  const SharedCells lists = FindShared(cells, batch.offsets.data(), batch.offsets.size()).value();
  CellChains chains;
  if (lists.list_of != nullptr) CHECK_OK(ChainCells(lists, cells, &chains));
  return lists;
}

TEST(a_batch_has_a_list_once_that_follows_itself_and_a_list_each_where_none_does) {
  ParsedChunk chunk;  // two slots: 7 7 8 7 and 1 1 1 1
  chunk.instances = 4;
  chunk.labels.assign(4, 0.0f);
  chunk.lengths.assign(8, 1);
  chunk.feasigns = {7, 1, 7, 1, 8, 1, 7, 1};
  Instances instances(2, 0);
  const std::vector<size_t> both = {0, 1};
  CHECK_OK(instances.ShareLists(&both));
  CHECK_OK(instances.Append(std::move(chunk)));
  ThreadPool pool(1);
  CHECK_OK(instances.Index(&pool));
  std::vector<int32_t> rows(3);
  for (size_t i = 0; i < 3; ++i) rows[i] = static_cast<int32_t>(i);
  Batch batch;
  CHECK_OK(instances.PackBatch(0, 4, rows.data(), 1, &batch));
  CHECK_EQ(batch.ids.size(), 4u);  // 7, 1, 8, 7
  CHECK(batch.ids[0] == batch.ids[3] && batch.ids[1] != batch.ids[2]);
  CHECK(batch.offsets == std::vector<int32_t>({0, 1, 2, 3, 4, 0, 1, 0, 1, 2, 1, 3, 1}));
  CHECK_EQ(batch.plan[2], 8);  // occurrences that a push adds up
  CHECK_OK(instances.PackBatch(3, 4, rows.data(), 1, &batch));
  CHECK(batch.offsets == std::vector<int32_t>({0, 1, 2}));
}

TEST(batches_splits_and_keys_are_the_same_with_and_without) {
  ThreadPool pool(2);
  const std::vector<size_t> every = {0, 1, 2}, one = {1};
  for (const bool shuffle : {false, true}) {
    const auto plain = Filled(nullptr, false, shuffle, &pool);
    CHECK_EQ(plain->shared_counts().lists, 0u);
    for (const std::vector<size_t>* slots : {&every, &one, (const std::vector<size_t>*)nullptr}) {
      const auto shared = Filled(slots, true, shuffle, &pool);
      CHECK(shared->shared_counts().values > 2000);
      CHECK(slots == &every || shared->bytes() < plain->bytes());
      CHECK_EQ(shared->occurrences(), plain->occurrences());
      const RangeKeys a = plain->SelectRange({100, 900}).value();
      const RangeKeys b = shared->SelectRange({100, 900}).value();
      CHECK(SameBytes(a.keys, b.keys) && SameBytes(a.slots, b.slots));
      CHECK(SameBytes(a.positions, b.positions));
      const auto cut = plain->Split(600, 100), cut_too = shared->Split(600, 100);
      CHECK(cut.value().size() > 1);
      CHECK_EQ(cut.value().size(), cut_too.value().size());
      std::vector<int32_t> rows(plain->unique_keys());
      for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>(i);
      for (size_t begin = 0; begin < 2100; begin += 300) {
        Batch left, right;
        std::vector<int32_t> ids, offsets;
        CHECK_OK(plain->PackBatch(begin, begin + 300, rows.data(), 1, &left));
        CHECK_OK(shared->PackBatch(begin, begin + 300, rows.data(), 1, &right));
        CHECK(SameBytes(left.plan, right.plan) && SameBytes(left.labels, right.labels));
        const SharedCells lists = Checked(right, 900);
        CHECK(shuffle || lists.list_of != nullptr);  // in order lists repeat within every batch
        if (lists.list_of != nullptr) {
          CHECK(right.ids.size() < left.ids.size());
          CHECK_OK(ExpandLists(lists, 900, right.ids.data(), right.offsets.data(), &ids, &offsets));
          right.ids.swap(ids);
          right.offsets.swap(offsets);
        }
        CHECK(SameBytes(left.ids, right.ids) && SameBytes(left.offsets, right.offsets));
      }
    }
  }
}

TEST(sharing_is_chosen_before_the_first_chunk_and_for_slots_that_are_there) {
  Instances instances(3, 0);
  const std::vector<size_t> outside = {3};
  CHECK(instances.ShareLists(&outside).code() == Code::kInvalidArgument);
  CHECK_OK(instances.Append(Random(1, 5)));
  CHECK(instances.ShareLists(nullptr).code() == Code::kFailedPrecondition);
}

}  // namespace
}  // namespace pbx
