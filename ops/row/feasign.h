// Feasign and key. A feasign is the 64-bit feature value a user writes; a key is Mix(feasign), the
// order in which everything is stored. Feasign 0 is padding: it has no row in any tier.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/hash.h"

namespace pbx {

inline uint64_t KeyOf(uint64_t feasign) { return Mix(feasign); }
inline uint64_t FeasignOf(uint64_t key) { return Unmix(key); }

// The feasign of a string: HashBytes with seed 0, or 1 if that is 0. An empty string gives 0, no
// feasign.
inline uint64_t FeasignOfString(const char* text, size_t size) {
  if (size == 0) return 0;
  const uint64_t hash = HashBytes(text, size, 0);
  return hash == 0 ? 1 : hash;
}

// key_space: per_slot. The same token in two slots becomes two feasigns. For one slot the map is a
// bijection, except for the one value that would become 0, the padding. 0 stays 0.
inline uint64_t FeasignInSlot(uint64_t feasign, uint32_t slot) {
  if (feasign == 0) return 0;
  const uint64_t mixed = Mix(feasign) ^ Mix(0x5107000000000000ULL + slot);
  return mixed == 0 ? 1 : mixed;
}

// feasign: FeasignInSlot(x, from). Returns FeasignInSlot(x, to), without knowing x.
inline uint64_t FeasignMoved(uint64_t feasign, uint32_t from, uint32_t to) {
  if (feasign == 0) return 0;
  const uint64_t mixed =
      feasign ^ Mix(0x5107000000000000ULL + from) ^ Mix(0x5107000000000000ULL + to);
  return mixed == 0 ? 1 : mixed;
}

}  // namespace pbx
