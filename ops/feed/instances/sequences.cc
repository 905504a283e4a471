#include "feed/instances/sequences.h"

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <utility>

#include "feed/instances/instances_impl.h"

namespace pbx::feed {
namespace {

constexpr size_t kMost = std::numeric_limits<uint32_t>::max();
constexpr uint32_t kNoGroup = std::numeric_limits<uint32_t>::max();

// The instances of each user. Group g has items [starts[g], starts[g + 1]) of `numbers`.
struct Groups {
  std::vector<uint32_t> numbers;  // by group, in the order of time
  std::vector<size_t> starts;
};

Status Check(const SequenceInstances& instances, const SequenceOptions& options) {
  if (instances.size >= kMost) {
    return Error(Code::kInvalidArgument, "%zu instances in sequences, expected fewer than 2^32 - 1",
                 instances.size);
  }
  if (instances.carried > instances.size) {
    return Error(Code::kInvalidArgument, "%zu carried instances, but there are %zu",
                 instances.carried, instances.size);
  }
  const bool unlimited = options.split != SequenceSplit::kNone && options.max_length == 0;
  const bool wide = options.split == SequenceSplit::kMask && options.overlap >= options.max_length;
  if (unlimited || wide) {
    return Error(Code::kInvalidArgument,
                 "max_length %zu and overlap %zu: expected overlap < max_length",
                 options.max_length, options.overlap);
  }
  return Status::Ok();
}

// (N) the group of each instance; kNoGroup: of a user without a trained instance. Sets *count.
std::vector<uint32_t> GroupOfEach(const SequenceInstances& in, uint32_t* count) {
  std::vector<uint32_t> group_of(in.size, kNoGroup);
  std::unordered_map<uint64_t, uint32_t> groups;
  *count = 0;
  for (size_t i = 0; i < in.size; ++i) {
    if (in.trained[i] == 0) continue;
    if (in.users[i] == 0) {
      group_of[i] = (*count)++;
      continue;
    }
    const auto [found, added] = groups.try_emplace(in.users[i], *count);
    *count += added ? 1 : 0;
    group_of[i] = found->second;
  }
  for (size_t i = 0; i < in.size; ++i) {
    if (in.trained[i] != 0 || in.users[i] == 0) continue;
    const auto found = groups.find(in.users[i]);
    if (found != groups.end()) group_of[i] = found->second;
  }
  return group_of;
}

Groups GroupByUser(const SequenceInstances& in) {
  uint32_t count = 0;
  const std::vector<uint32_t> group_of = GroupOfEach(in, &count);
  Groups groups;
  groups.starts.assign(size_t{count} + 1, 0);
  for (const uint32_t group : group_of) {
    if (group != kNoGroup) ++groups.starts[group + 1];
  }
  for (size_t g = 0; g < count; ++g) groups.starts[g + 1] += groups.starts[g];
  groups.numbers.resize(groups.starts[count]);
  std::vector<size_t> next(groups.starts.begin(), groups.starts.end() - 1);
  for (size_t k = 0, first = in.size - in.carried; k < in.size; ++k) {
    const size_t i = first + k < in.size ? first + k : first + k - in.size;
    if (group_of[i] != kNoGroup) groups.numbers[next[group_of[i]]++] = static_cast<uint32_t>(i);
  }
  const auto earlier = [&in](uint32_t a, uint32_t b) { return in.times[a] < in.times[b]; };
  for (size_t g = 0; g < count; ++g) {
    const auto begin = groups.numbers.begin() + static_cast<std::ptrdiff_t>(groups.starts[g]);
    const auto end = groups.numbers.begin() + static_cast<std::ptrdiff_t>(groups.starts[g + 1]);
    if (!std::is_sorted(begin, end, earlier)) std::stable_sort(begin, end, earlier);
  }
  return groups;
}

// Appends the sequences of one list.
void AddList(const SequenceInstances& in, const uint32_t* numbers, size_t n,
             const SequenceOptions& options, Sequences* out) {
  for (const SequencePiece& piece : CutList(n, options)) {
    const size_t first = out->order.size();
    bool any = false;
    for (size_t i = piece.begin; i < piece.end; ++i) {
      const bool trains = i - piece.begin >= piece.context && in.trained[numbers[i]] != 0;
      any = any || trains;
      out->order.push_back(numbers[i]);
      out->trained.push_back(trains ? 1 : 0);
      out->positions.push_back(static_cast<int32_t>(i));
    }
    if (any) {
      out->starts.push_back(static_cast<int64_t>(out->order.size()));
    } else {
      out->order.resize(first);
      out->trained.resize(first);
      out->positions.resize(first);
    }
  }
}

}  // namespace

std::vector<SequencePiece> CutList(size_t n, const SequenceOptions& options) {
  std::vector<SequencePiece> pieces;
  const size_t most = options.max_length;
  if (options.split == SequenceSplit::kNone || n <= most) {
    if (n > 0) pieces.push_back({0, n, 0});
    return pieces;
  }
  const size_t context = options.split == SequenceSplit::kMask ? options.overlap : 0;
  const size_t step = most - context;
  const size_t first = context + (n - most) % step;
  if (first > 0) pieces.push_back({0, first, 0});
  for (size_t end = first + step; end <= n; end += step) {
    pieces.push_back({end - most, end, context});
  }
  return pieces;
}

Result<Sequences> CutSequences(const SequenceInstances& instances, const SequenceOptions& options) {
  PBX_RETURN_IF_ERROR(Check(instances, options));
  const Groups groups = GroupByUser(instances);
  Sequences out;
  out.users = groups.starts.size() - 1;
  out.starts.push_back(0);
  out.order.reserve(groups.numbers.size());
  std::vector<uint32_t> shuffled;
  if (options.shuffle) shuffled = ShuffledOrder(out.users, options.seed);
  for (size_t g = 0; g < out.users; ++g) {
    const size_t chosen = options.shuffle ? shuffled[g] : g;
    const size_t begin = groups.starts[chosen], n = groups.starts[chosen + 1] - begin;
    const uint32_t* const numbers = groups.numbers.data() + begin;
    if (n > out.longest) {
      out.longest = n;
      out.longest_first = numbers[0];
    }
    AddList(instances, numbers, n, options, &out);
    if (out.order.size() >= kMost) {
      return Error(Code::kInvalidArgument,
                   "the sequences have more than 2^32 - 2 places: use fewer files a pass, or a "
                   "smaller overlap");
    }
  }
  return out;
}

Result<UserTimes> TakeUserTimes(size_t sparse_slots, size_t slot, ParsedChunk* chunk) {
  if (chunk->tags.times.size() != chunk->instances) {
    return Error(Code::kInvalidArgument, "a chunk of %zu instances has %zu times", chunk->instances,
                 chunk->tags.times.size());
  }
  UserTimes taken;
  taken.times = std::move(chunk->tags.times);
  chunk->tags.times.clear();
  taken.users.reserve(chunk->instances);
  const uint32_t* lengths = chunk->lengths.data();
  const uint64_t* values = chunk->feasigns.data();
  for (size_t i = 0; i < chunk->instances; ++i, lengths += sparse_slots) {
    uint64_t user = 0;
    for (size_t s = 0; s < sparse_slots; values += lengths[s++]) {
      if (s == slot && lengths[s] != 0) user = *values;
    }
    taken.users.push_back(user);
  }
  return taken;
}

}  // namespace pbx::feed
