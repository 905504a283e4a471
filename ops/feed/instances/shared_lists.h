// Shared lists: neighbouring instances often repeat the list of a slot, for example in the session
// of a user. Then the list is stored once (the idea of RecD, Zhao et al. 2022).
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
  // (n, D) where the list of each instance begins among the chunk's feasigns. A list that the
  // instance owns is between its other lists, as without sharing. A shared list is before the lists
  // that the instance owns.
  std::vector<uint32_t> begins;
  size_t lists_saved = 0;
  size_t values_saved = 0;  // feasigns removed from the chunk
};

// Removes lists that repeat the list of the instance before from the chunk's feasigns. slots: used
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
    size_t begin = at;
    if (next < count && shared.slots[next] == s) begin = begins[next++];
    if (begin == at) at += lengths[s];
    visit(s, begin, begin + lengths[s]);
  }
  return at;
}

}  // namespace pbx::feed
