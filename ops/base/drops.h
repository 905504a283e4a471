// Which elements of an array dropout keeps.
#pragma once

#include <cstdint>

#include "base/hash.h"
#include "base/host_device.h"

namespace pbx {

// A bijection of 32 bits without visible patterns, with factors found by a search (Wellons, "hash
// prospector").
PBX_INLINE uint32_t Scramble(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352dU;
  x = (x ^ (x >> 15)) * 0x846ca68bU;
  return x ^ (x >> 16);
}

// An element becomes 0 with probability `rate`, 0 <= rate < 1, and is multiplied by `scale`
// otherwise. A hash of the seed, the layer and the element's index selects the elements.
struct Drops {
  PBX_HOST_DEVICE Drops(float rate, uint64_t seed, uint64_t layer)
      : dropped(static_cast<uint32_t>(static_cast<double>(rate) * 0x1p32)),
        scale(1.0f / (1.0f - rate)) {
    const uint64_t key = Mix(seed ^ ((layer + 1) * 0x9e3779b97f4a7c15ULL));
    first = static_cast<uint32_t>(key);
    second = static_cast<uint32_t>(key >> 32);
  }
  bool any() const { return dropped != 0; }
  PBX_INLINE bool keeps(uint32_t index) const {
    return Scramble(Scramble(index ^ first) + second) >= dropped;
  }

  uint32_t dropped;  // an element whose hash is less becomes 0
  uint32_t first = 0, second = 0;
  float scale;
};

}  // namespace pbx
