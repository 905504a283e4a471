#include "feed/instances/sorted_keys.h"

#include <algorithm>

namespace pbx::feed {

void MergeSortedKeys(const SlottedKeys& a, const SlottedKeys& b, std::vector<uint64_t>* keys,
                     std::vector<uint16_t>* slots) {
  keys->resize(a.size + b.size);
  slots->resize(a.size + b.size);
  size_t i = 0, j = 0, n = 0;
  while (i < a.size && j < b.size) {
    const uint64_t left = a.keys[i], right = b.keys[j];
    const uint16_t of_left = a.slots[i], of_right = b.slots[j];
    (*keys)[n] = std::min(left, right);
    (*slots)[n++] = left < right ? of_left : right < left ? of_right : std::min(of_left, of_right);
    i += left <= right;
    j += right <= left;
  }
  for (; i < a.size; ++i, ++n) (*keys)[n] = a.keys[i], (*slots)[n] = a.slots[i];
  for (; j < b.size; ++j, ++n) (*keys)[n] = b.keys[j], (*slots)[n] = b.slots[j];
  keys->resize(n);
  slots->resize(n);
}

Status PositionsOfSorted(const uint64_t* keys, size_t n, const uint64_t* among, size_t size,
                         std::vector<int32_t>* positions) {
  positions->resize(n);
  size_t at = 0;
  for (size_t i = 0; i < n; ++i) {
    while (at < size && among[at] < keys[i]) ++at;
    if (at == size || among[at] != keys[i]) {
      return Error(Code::kInvalidArgument, "key %zu of %zu is not among the %zu keys of the pass",
                   i, n, size);
    }
    (*positions)[i] = static_cast<int32_t>(at);
  }
  return Status::Ok();
}

}  // namespace pbx::feed
