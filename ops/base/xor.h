// XorInto: into ^= from. The loop vectorises and runs at the speed of memory.
#pragma once

#include <cstddef>

namespace pbx {

// into, from: (n), not overlapping.
inline void XorInto(char* __restrict into, const char* __restrict from, size_t n) {
  for (size_t i = 0; i < n; ++i) into[i] = static_cast<char>(into[i] ^ from[i]);
}

}  // namespace pbx
