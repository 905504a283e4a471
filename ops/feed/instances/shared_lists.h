// Shared lists: neighbouring instances often repeat the list of a slot, for example in the session
// of a user, or the list grows by one event. Then the values that both lists have are stored once
// (the idea of RecD, Zhao et al. 2022). The lists of the instances are windows of one array:
//
//   the latest value first           the latest value last, at most 3
//   instance 0   [7 4]               instance 0   [4 7]
//   instance 1   [9 7 4]             instance 1   [4 7 9]
//   instance 2   [9 7 4]             instance 2     [7 9 2]
//   stored        9 7 4              stored        4 7 9 2
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "feed/text/parser.h"

namespace pbx::feed {

// Which slots may share lists.
enum class Sharing {
  kOff,
  kAuto,  // chosen per chunk: slots for which sharing saves more memory than its index takes
  kOn,    // given slots
};

// n = instances of the chunk, D = its slots that share lists.
struct SharedLists {
  std::vector<uint16_t> slots;  // (D) ascending
  // (n, D) where the list of each instance begins among the chunk's feasigns.
  std::vector<uint32_t> begins;
  // (D + 1) the lists of slots[d] are within [bounds[d], bounds[d + 1]) of the chunk's feasigns.
  // They are after the lists of the other slots, which each instance owns.
  std::vector<uint32_t> bounds;
  size_t lists_saved = 0;   // lists that continue the list of the instance before
  size_t values_saved = 0;  // feasigns removed from the chunk
};

// Stores the lists of slots as windows. A list continues the list of the instance before if it is
// equal, or has one more value at its beginning or at its end; then it may lack one value at the
// other end. The lists of an array grow at the same end. Other lists are stored whole. slots: used
// for kOn only, (S), 1 if the slot may share lists. The lengths do not change. REQUIRES: lengths
// are (n, S) and add up to the number of feasigns. A chunk with 2^32 or more feasigns shares
// nothing.
SharedLists ShareLists(Sharing sharing, const std::vector<uint8_t>& slots, size_t sparse_slots,
                       ParsedChunk* chunk);

// Calls visit(slot, begin, end) for each list of an instance: [begin, end) among the chunk's
// feasigns. lengths: (S) of the instance. at: where the lists that the instance owns begin. Returns
// where these lists end.
template <typename Visit>
size_t EachList(const SharedLists& shared, size_t row, const uint32_t* lengths, size_t sparse_slots,
                size_t at, Visit visit) {
  const size_t count = shared.slots.size();
  const uint32_t* const begins = shared.begins.data() + row * count;
  size_t next = 0;
  for (size_t s = 0; s < sparse_slots; ++s) {
    if (next < count && shared.slots[next] == s) {
      const size_t begin = begins[next++];
      visit(s, begin, begin + lengths[s]);
    } else {
      visit(s, at, at + lengths[s]);
      at += lengths[s];
    }
  }
  return at;
}

// The same for the lists that the instance owns.
template <typename Visit>
size_t EachOwnList(const SharedLists& shared, const uint32_t* lengths, size_t sparse_slots,
                   size_t at, Visit visit) {
  size_t next = 0;
  for (size_t s = 0; s < sparse_slots; ++s) {
    if (next < shared.slots.size() && shared.slots[next] == s) {
      ++next;
    } else {
      visit(s, at, at + lengths[s]);
      at += lengths[s];
    }
  }
  return at;
}

}  // namespace pbx::feed
