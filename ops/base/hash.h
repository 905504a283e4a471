// The two hash functions of the project. Neither may ever change: stored files depend on them, and
// tests hold golden values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/host_device.h"

namespace pbx {

// Mix: a bijection of 64-bit words (the finaliser of splitmix64). Mix(feasign) is the internal key,
// so keys are uniform, and the order of hashes is the order of integers. Mix(0) == 0.
PBX_HOST_DEVICE inline uint64_t Mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ULL;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebULL;
  x ^= x >> 31;
  return x;
}

// Unmix(Mix(x)) == x for every x.
PBX_HOST_DEVICE inline uint64_t Unmix(uint64_t x) {
  x ^= (x >> 31) ^ (x >> 62);
  x *= 0x319642b2d24d8ec3ULL;
  x ^= (x >> 27) ^ (x >> 54);
  x *= 0x96de1b173f119089ULL;
  x ^= (x >> 30) ^ (x >> 60);
  return x;
}

// HashBytes: a seeded 64-bit hash of a byte string, for tokens and digests (not for keys).
inline uint64_t HashBytes(const void* data, size_t size, uint64_t seed) {
  const char* p = static_cast<const char*>(data);
  // The start is mixed; otherwise (seed ^ a, first word) would hash like (seed, first word ^ a).
  uint64_t h = Mix(seed ^ (size * 0x9e3779b97f4a7c15ULL));
  while (size >= 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    h = Mix(h ^ word) * 0x9fb21c651e98df25ULL;
    p += 8;
    size -= 8;
  }
  uint64_t tail = 0;
  if (size != 0) std::memcpy(&tail, p, size);  // p may be null when there is nothing to hash
  return Mix(h ^ Mix(tail + 0x9e3779b97f4a7c15ULL));
}

}  // namespace pbx
