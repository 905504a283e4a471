// What stays in memory of instances that lie on disk: enough to put them into any order, in the
// same way as Instances does that holds all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "feed/text/parser.h"

namespace pbx::feed {

// The chunk's tags, as instances without slots. The chunk has none afterwards.
ParsedChunk TakeTags(ParsedChunk* chunk);

// The first feasign of a slot of each instance, as instances of that slot alone. S: sparse slots.
// REQUIRES: lengths (n, S) that add up to the feasigns, slot < S.
ParsedChunk FirstOfSlot(const ParsedChunk& chunk, size_t sparse_slots, size_t slot);

// Who feeds whom the slots that are replaced. N = instances, numbered in file order.
struct Donors {
  std::vector<uint32_t> pool;  // (P) at most as many as asked for: numbers of instances
  std::vector<uint32_t> of;    // (N) each one's place in the pool
};

// The pool is a reservoir of all instances, each of them gets one of it. Depends on N, the size and
// the seed. REQUIRES: pool_size >= 1, N < 2^32.
Donors DrawDonors(size_t instances, size_t pool_size, uint64_t seed);

}  // namespace pbx::feed
