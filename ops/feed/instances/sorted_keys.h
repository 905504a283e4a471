// Merges the sorted keys of parts of a pass. If the whole pass is in memory, Instances::Index sorts
// all keys at once instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"

namespace pbx::feed {

// Ascending keys, each with the lowest sparse slot in which it occurs.
struct SlottedKeys {
  const uint64_t* keys;   // (size)
  const uint16_t* slots;  // (size)
  size_t size;
};

// The union of both. A key that is in both gets the lower of its two slots.
void MergeSortedKeys(const SlottedKeys& a, const SlottedKeys& b, std::vector<uint64_t>* keys,
                     std::vector<uint16_t>* slots);

// The positions of keys (n) in `among` (size); both ascend. InvalidArgument if a key is not in
// `among`.
Status PositionsOfSorted(const uint64_t* keys, size_t n, const uint64_t* among, size_t size,
                         std::vector<int32_t>* positions);

}  // namespace pbx::feed
