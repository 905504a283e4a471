#include "feed/instances/sequences.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "base/hash.h"
#include "feed/feed_util.h"
#include "feed/instances/instances.h"
#include "row/feasign.h"

using namespace pbx;
using namespace pbx::feed;
using namespace pbx::test;

namespace {

std::string Text(const std::vector<SequencePiece>& pieces) {
  std::string text;
  for (const SequencePiece& piece : pieces) {
    text += std::to_string(piece.begin) + "-" + std::to_string(piece.end) + "/" +
            std::to_string(piece.context) + " ";
  }
  return text;
}

struct Events {
  std::vector<uint64_t> users;
  std::vector<int64_t> times;
  std::vector<uint8_t> trained;

  void Add(uint64_t user, int64_t time, bool trains = true) {
    users.push_back(user);
    times.push_back(time);
    trained.push_back(trains ? 1 : 0);
  }
  Result<Sequences> Cut(const SequenceOptions& options) const {
    return CutSequences({users.size(), users.data(), times.data(), trained.data(), 0}, options);
  }
};

// The sequences as numbers of instances, with context in brackets.
std::string Text(const Sequences& made) {
  std::string text;
  for (size_t p = 0; p + 1 < made.starts.size(); ++p) {
    for (auto at = static_cast<size_t>(made.starts[p]);
         at < static_cast<size_t>(made.starts[p + 1]); ++at) {
      const std::string number = std::to_string(made.order[at]);
      text += made.trained[at] != 0 ? number + " " : "(" + number + ") ";
    }
    text += "| ";
  }
  return text;
}

ParsedChunk ChunkOf(const std::vector<std::vector<uint64_t>>& lists) {
  ParsedChunk chunk;
  for (const auto& list : lists) {
    chunk.labels.push_back(static_cast<float>(chunk.instances++) / 10);
    chunk.lengths.push_back(static_cast<uint32_t>(list.size()));
    chunk.feasigns.insert(chunk.feasigns.end(), list.begin(), list.end());
  }
  return chunk;
}

}  // namespace

TEST(lists_are_cut_as_paddlebox_cuts_them) {
  const SequenceOptions none{SequenceSplit::kNone, 0, 0, false, 0};
  const SequenceOptions direct{SequenceSplit::kDirect, 4, 0, false, 0};
  const SequenceOptions mask{SequenceSplit::kMask, 4, 2, false, 0};
  const SequenceOptions apart{SequenceSplit::kMask, 4, 0, false, 0};
  CHECK_EQ(Text(CutList(0, direct)), "");
  CHECK_EQ(Text(CutList(9, none)), "0-9/0 ");
  CHECK_EQ(Text(CutList(4, direct)), "0-4/0 ");
  CHECK_EQ(Text(CutList(9, direct)), "0-1/0 1-5/0 5-9/0 ");
  CHECK_EQ(Text(CutList(4, mask)), "0-4/0 ");
  CHECK_EQ(Text(CutList(5, mask)), "0-3/0 1-5/2 ");
  CHECK_EQ(Text(CutList(9, mask)), "0-3/0 1-5/2 3-7/2 5-9/2 ");
  CHECK_EQ(Text(CutList(8, apart)), "0-4/0 4-8/0 ");
  CHECK_EQ(Text(CutList(9, apart)), "0-1/0 1-5/0 5-9/0 ");
}

TEST(each_instance_is_trained_once_and_context_comes_first) {
  for (const SequenceSplit split :
       {SequenceSplit::kNone, SequenceSplit::kDirect, SequenceSplit::kMask}) {
    for (size_t most = 1; most < 9; ++most) {
      for (size_t overlap = 0; overlap < most; ++overlap) {
        for (size_t n = 0; n < 40; ++n) {
          std::vector<int> trained(n);
          for (const SequencePiece& piece : CutList(n, {split, most, overlap, false, 0})) {
            CHECK(piece.begin + piece.context < piece.end);
            CHECK(split == SequenceSplit::kNone || piece.end - piece.begin <= most);
            for (size_t i = piece.begin + piece.context; i < piece.end; ++i) ++trained[i];
          }
          CHECK_EQ(std::count(trained.begin(), trained.end(), 1), static_cast<std::ptrdiff_t>(n));
        }
      }
    }
  }
}

TEST(a_sequence_has_one_user_and_ascends_in_time_and_ties_keep_their_order) {
  Events events;
  events.Add(7, 30);
  events.Add(5, 10);
  events.Add(7, 20);
  events.Add(5, 10);
  events.Add(0, 1);
  events.Add(7, 20);
  events.Add(0, 1);
  const Sequences made = events.Cut({}).value();
  CHECK_EQ(Text(made), "2 5 0 | 1 3 | 4 | 6 | ");
  CHECK_EQ(made.users, 4u);
  CHECK_EQ(made.longest, 3u);
  CHECK_EQ(made.longest_first, 2u);
  CHECK_EQ(made.positions[1], 1);
  events.Add(5, 11);
  CHECK_EQ(events.Cut({}).value().longest_first, 2u);  // the first of several
}

TEST(what_an_earlier_piece_trained_is_context) {
  Events events;
  for (int64_t time = 0; time < 5; ++time) events.Add(5, time);
  CHECK_EQ(Text(events.Cut({SequenceSplit::kMask, 4, 2, false, 0}).value()),
           "0 1 2 | (1) (2) 3 4 | ");
}

TEST(instances_that_are_not_trained_are_context) {
  Events events;
  events.Add(5, 1, false);
  events.Add(9, 1, false);
  for (int64_t time = 2; time < 7; ++time) events.Add(5, time, time > 4);
  const Sequences whole = events.Cut({}).value();
  CHECK_EQ(Text(whole), "(0) (2) (3) (4) 5 6 | ");
  CHECK_EQ(whole.users, 1u);
  const Sequences cut = events.Cut({SequenceSplit::kDirect, 3, 0, false, 0}).value();
  CHECK_EQ(Text(cut), "(4) 5 6 | ");
  CHECK(cut.positions == (std::vector<int32_t>{3, 4, 5}));
  CHECK_EQ(Text(events.Cut({SequenceSplit::kMask, 3, 1, false, 0}).value()), "(4) 5 6 | ");
}

TEST(carried_instances_come_first_if_times_are_equal) {
  Events events;
  events.Add(5, 2);
  events.Add(5, 1);
  events.Add(5, 2, false);
  const SequenceInstances in = {3, events.users.data(), events.times.data(), events.trained.data(),
                                1};
  CHECK_EQ(Text(CutSequences(in, {}).value()), "1 (2) 0 | ");
  const SequenceInstances fewer = {0, nullptr, nullptr, nullptr, 1};
  CHECK_CODE(CutSequences(fewer, {}).status(), Code::kInvalidArgument);
}

TEST(shuffled_users_depend_on_the_seed_and_keep_their_sequences_together) {
  Events events;
  for (int64_t i = 0; i < 60; ++i) events.Add(1 + static_cast<uint64_t>(i % 10), i);
  const SequenceOptions cut{SequenceSplit::kDirect, 4, 0, true, 3};
  const Sequences made = events.Cut(cut).value(), again = events.Cut(cut).value();
  CHECK(made.order == again.order);
  CHECK(made.order != events.Cut({SequenceSplit::kDirect, 4, 0, true, 4}).value().order);
  std::vector<uint64_t> users;
  for (const uint32_t number : made.order) {
    if (users.empty() || users.back() != events.users[number])
      users.push_back(events.users[number]);
  }
  CHECK_EQ(users.size(), 10u);
}

TEST(options_that_contradict_each_other_are_refused) {
  const Events events;
  CHECK_CODE(events.Cut({SequenceSplit::kDirect, 0, 0, false, 0}).status(), Code::kInvalidArgument);
  CHECK_CODE(events.Cut({SequenceSplit::kMask, 4, 4, false, 0}).status(), Code::kInvalidArgument);
  CHECK_EQ(events.Cut({SequenceSplit::kMask, 4, 3, false, 0}).value().starts.size(), 1u);
}

TEST(users_and_times_leave_a_chunk) {
  ParsedChunk chunk = ChunkOf({{4, 5}, {}, {6}});
  chunk.tags.times = {7, 8, 9};
  const UserTimes taken = TakeUserTimes(1, 0, &chunk).value();
  CHECK(taken.users == (std::vector<uint64_t>{4, 0, 6}));
  CHECK(taken.times == (std::vector<int64_t>{7, 8, 9}));
  CHECK(!chunk.tags.spec().any());
  CHECK_CODE(TakeUserTimes(1, 0, &chunk).status(), Code::kInvalidArgument);
  ParsedChunk two = ChunkOf({{1, 2, 3}});
  two.lengths = {2, 1};
  two.tags.times = {7};
  CHECK(TakeUserTimes(2, 1, &two).value().users == (std::vector<uint64_t>{3}));
}

TEST(an_instance_may_have_several_places_or_none) {
  Instances instances(1, 0);
  CHECK_OK(instances.Append(ChunkOf({{5}, {6, 7}})));
  CHECK_OK(instances.Append(ChunkOf({{8}, {6}})));
  const std::vector<uint32_t> order = {3, 1, 1, 0};
  CHECK_OK(instances.ArrangePlaces(order.data(), order.size()));
  const ParsedChunk copies = instances.Gather(order.data(), 2).value();
  CHECK(copies.feasigns == (std::vector<uint64_t>{6, 6, 7}));
  CHECK(copies.labels == (std::vector<float>{0.1f, 0.1f}));
  ThreadPool pool(1);
  CHECK_OK(instances.Index(&pool));
  CHECK_EQ(instances.unique_keys(), 4u);
  std::vector<uint64_t> feasigns;
  std::vector<int32_t> offsets;
  CHECK_OK(instances.PackFeasigns(0, 4, &feasigns, &offsets));
  CHECK(feasigns == (std::vector<uint64_t>{6, 6, 7, 6, 7, 5}));
  CHECK(instances.labels() == (std::vector<float>{0.1f, 0.1f, 0.1f, 0.0f}));
  const std::vector<uint8_t> counted = {1, 0, 1, 1};
  const std::vector<uint32_t> counts = instances.KeyCounts(counted.data()).value();
  CHECK_EQ(std::accumulate(counts.begin(), counts.end(), 0u), 4u);
  const auto ranges = instances.SplitAt({2}, {1, 3, 4}).value();
  CHECK_EQ(ranges.size(), 2u);
  CHECK_EQ(ranges[0].end, 3u);
  CHECK_CODE(instances.SplitAt({2}, {1, 3}).status(), Code::kInvalidArgument);
  CHECK_OK(instances.ArrangeBy(Order::kFile, 0));
  CHECK_EQ(instances.size(), 4u);
  CHECK(instances.labels() == (std::vector<float>{0.0f, 0.1f, 0.0f, 0.1f}));
  const uint32_t unknown = 4;
  CHECK_CODE(instances.ArrangePlaces(&unknown, 1), Code::kInvalidArgument);
  CHECK_CODE(instances.Gather(order.data(), 2).status(), Code::kFailedPrecondition);
}
