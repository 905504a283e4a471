// Shared lists: where instances that follow each other repeat a slot's list, as those of one
// session or user do, the list is held once (the idea of RecD, Zhao et al. 2022).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "feed/text/parser.h"

namespace pbx::feed {

// Which slots may share lists.
enum class Sharing {
  kOff,
  kAuto,  // per chunk, slots of which sharing saves more than its index takes
  kOn,    // those that are named
};

// n = instances of the chunk, D = slots of it that share.
struct SharedLists {
  std::vector<uint16_t> slots;  // (D) ascending
  // (n, D) where the list of an instance begins among the chunk's feasigns. A list that an instance
  // owns lies between its other lists, as without sharing; one that it shares lies before them.
  std::vector<uint32_t> begins;
  size_t lists_saved = 0;
  size_t values_saved = 0;  // feasigns that the chunk does not hold any more
};

// Takes from the chunk's feasigns the lists that repeat those of the instance before. slots: (S) 1
// for those that may share, with kOn. The chunk's lengths stay as they are. REQUIRES: lengths (n,
// S) that add up to the feasigns. A chunk of 2^32 feasigns and more shares nothing.
SharedLists ShareLists(Sharing sharing, const std::vector<uint8_t>& slots, size_t sparse_slots,
                       ParsedChunk* chunk);

// Calls visit(slot, begin, end) for each list of an instance: [begin, end) among the chunk's
// feasigns. lengths: (S) of the instance; at: where what it owns begins. Returns where that ends.
template <typename Visit>
size_t EachList(const SharedLists& shared, size_t row, const uint32_t* lengths, size_t sparse_slots,
                size_t at, Visit visit) {
  const size_t count = shared.slots.size();
  const uint32_t* const begins = shared.begins.data() + row * count;
  size_t next = 0;
  for (size_t s = 0; s < sparse_slots; ++s) {
    size_t begin = at;
    if (next < count && shared.slots[next] == s) begin = begins[next++];
    if (begin == at) at += lengths[s];
    visit(s, begin, begin + lengths[s]);
  }
  return at;
}

}  // namespace pbx::feed
