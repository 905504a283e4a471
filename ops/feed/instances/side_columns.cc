#include "feed/instances/side_columns.h"

#include <utility>

#include "feed/instances/instances_impl.h"

namespace pbx::feed {

ParsedChunk TakeTags(ParsedChunk* chunk) {
  ParsedChunk taken;
  taken.instances = chunk->instances;
  taken.labels = chunk->labels;
  taken.tags = std::move(chunk->tags);
  chunk->tags = TagColumns();
  return taken;
}

ParsedChunk FirstOfSlot(const ParsedChunk& chunk, size_t sparse_slots, size_t slot) {
  ParsedChunk first;
  first.instances = chunk.instances;
  first.labels = chunk.labels;
  const uint32_t* length = chunk.lengths.data();
  const uint64_t* values = chunk.feasigns.data();
  for (size_t i = 0; i < chunk.instances; ++i) {
    for (size_t s = 0; s < sparse_slots; ++s, values += *length++) {
      if (s != slot) continue;
      first.lengths.push_back(*length != 0);
      if (*length != 0) first.feasigns.push_back(*values);
    }
  }
  return first;
}

Donors DrawDonors(size_t instances, size_t pool_size, uint64_t seed) {
  Random random(seed);
  Donors donors;
  for (size_t i = 0; i < instances; ++i) {
    if (donors.pool.size() < pool_size) {
      donors.pool.push_back(static_cast<uint32_t>(i));
    } else if (const uint64_t at = random.Below(i + 1); at < pool_size) {
      donors.pool[at] = static_cast<uint32_t>(i);
    }
  }
  donors.of.resize(instances);
  for (uint32_t& of : donors.of) of = static_cast<uint32_t>(random.Below(donors.pool.size()));
  return donors;
}

}  // namespace pbx::feed
