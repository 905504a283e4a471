// Columns that stay in memory when instances are on disk: enough to compute the same order as
// Instances does for instances in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "feed/text/parser.h"

namespace pbx::feed {

// Moves the tags out of the chunk. Returns them as instances without slots.
ParsedChunk TakeTags(ParsedChunk* chunk);

// The first feasign of a slot of each instance, as instances with that slot alone. S: sparse slots.
// REQUIRES: lengths are (n, S) and add up to the number of feasigns; slot < S.
ParsedChunk FirstOfSlot(const ParsedChunk& chunk, size_t sparse_slots, size_t slot);

// The donors of replaced slots. N = instances, numbered in file order.
struct Donors {
  std::vector<uint32_t> pool;  // (P) numbers of instances, P <= pool_size
  std::vector<uint32_t> of;    // (N) the index in `pool` of each instance's donor
};

// Draws the pool from all instances by reservoir sampling, and a donor from the pool for each
// instance. The result depends on N, pool_size and seed. REQUIRES: pool_size >= 1, N < 2^32.
Donors DrawDonors(size_t instances, size_t pool_size, uint64_t seed);

}  // namespace pbx::feed
