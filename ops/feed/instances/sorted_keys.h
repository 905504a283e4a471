// Sorted keys of parts of a pass put together: what Index does at once for a pass in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"

namespace pbx::feed {

// Keys, ascending, each with the lowest sparse slot it occurs in.
struct SlottedKeys {
  const uint64_t* keys;   // (size)
  const uint16_t* slots;  // (size)
  size_t size;
};

// The union, with the lower slot of keys that both have.
void MergeSortedKeys(const SlottedKeys& a, const SlottedKeys& b, std::vector<uint64_t>* keys,
                     std::vector<uint16_t>* slots);

// Where each of keys (n) stands among `among` (size); both ascend. InvalidArgument for one that is
// not there.
Status PositionsOfSorted(const uint64_t* keys, size_t n, const uint64_t* among, size_t size,
                         std::vector<int32_t>* positions);

}  // namespace pbx::feed
