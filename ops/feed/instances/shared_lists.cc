#include "feed/instances/shared_lists.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace pbx::feed {
namespace {

constexpr size_t kPositionBytes = 4;  // per value of a list after Index
constexpr size_t kSample = 256;       // instances that kAuto checks before it checks all

// For instances [0, n): adds to (*saved)[s] the number of values in lists of slot s that repeat the
// list of the instance before.
void CountRepeats(const ParsedChunk& chunk, size_t slots, size_t n, std::vector<size_t>* saved) {
  const uint64_t* list = chunk.feasigns.data();
  std::vector<const uint64_t*> before(slots, list);
  for (size_t i = 0; i < n; ++i) {
    const uint32_t* const lengths = chunk.lengths.data() + i * slots;
    for (size_t s = 0; s < slots; ++s) {
      const size_t length = lengths[s];
      if (i > 0 && length == chunk.lengths[(i - 1) * slots + s] &&
          std::equal(list, list + length, before[s])) {
        (*saved)[s] += length;
      }
      before[s] = list;
      list += length;
    }
  }
}

// Slots for which sharing among the first n instances saves more memory than the index of n
// instances takes.
std::vector<uint16_t> Worthwhile(const ParsedChunk& chunk, size_t slots, size_t n) {
  std::vector<size_t> saved(slots);
  CountRepeats(chunk, slots, n, &saved);
  std::vector<uint16_t> chosen;
  for (size_t s = 0; s < slots; ++s) {
    if (saved[s] * kPositionBytes > n * sizeof(uint32_t)) {
      chosen.push_back(static_cast<uint16_t>(s));
    }
  }
  return chosen;
}

}  // namespace

SharedLists ShareLists(Sharing sharing, const std::vector<uint8_t>& slots, size_t sparse_slots,
                       ParsedChunk* chunk) {
  SharedLists shared;
  const size_t n = chunk->instances;
  if (sharing == Sharing::kOff || n == 0 ||
      chunk->feasigns.size() > std::numeric_limits<uint32_t>::max()) {
    return shared;
  }
  if (sharing == Sharing::kOn) {
    for (size_t s = 0; s < sparse_slots; ++s) {
      if (slots[s]) shared.slots.push_back(static_cast<uint16_t>(s));
    }
  } else if (!Worthwhile(*chunk, sparse_slots, std::min(n, kSample)).empty()) {
    shared.slots = Worthwhile(*chunk, sparse_slots, n);
  }
  if (shared.slots.empty()) return shared;

  const size_t count = shared.slots.size();
  shared.begins.resize(n * count);
  uint64_t* const values = chunk->feasigns.data();
  size_t from = 0, to = 0;  // values are moved over the removed values
  for (size_t i = 0; i < n; ++i) {
    const uint32_t* const lengths = chunk->lengths.data() + i * sparse_slots;
    size_t next = 0;
    for (size_t s = 0; s < sparse_slots; ++s) {
      const size_t length = lengths[s];
      const bool may_share = next < count && shared.slots[next] == s;
      uint32_t* const begin = may_share ? &shared.begins[i * count + next] : nullptr;
      next += may_share;
      const bool repeats =
          may_share && i > 0 && length > 0 &&
          length == chunk->lengths[(i - 1) * sparse_slots + s] &&
          std::equal(values + from, values + from + length, values + *(begin - count));
      if (repeats) {
        *begin = *(begin - count);
        ++shared.lists_saved;
        shared.values_saved += length;
      } else {
        if (may_share) *begin = static_cast<uint32_t>(to);
        if (to != from && length > 0) std::memmove(values + to, values + from, length * 8);
        to += length;
      }
      from += length;
    }
  }
  chunk->feasigns.resize(to);
  chunk->feasigns.shrink_to_fit();
  return shared;
}

}  // namespace pbx::feed
