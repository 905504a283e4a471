// Cuts: where a stream of rows in key order is cut into files. Files cover aligned prefixes of the
// key space ("ranges"), so that files written at different times nest instead of crossing, and
// merging one range frees its files.
#pragma once

#include <algorithm>
#include <cstdint>

namespace pbx {

// A file below this costs more in opening and syncing than its rows do.
constexpr uint64_t kMinRangeBytes = 2ull << 20;
// A tier that can be cut at all is cut this finely: a merge then needs room for a 64th of it.
constexpr uint64_t kRanges = 64;

inline int FloorLog2(uint64_t x) { return x == 0 ? 0 : 63 - __builtin_clzll(x); }

// Ranges of a tier of tier_bytes: powers of two; log2 of their number.
inline int RangeBits(uint64_t tier_bytes, uint64_t max_segment_bytes) {
  const uint64_t most =
      std::max(kRanges, 2 * (tier_bytes / std::max<uint64_t>(1, max_segment_bytes)));
  return FloorLog2(std::clamp<uint64_t>(tier_bytes / (2 * kMinRangeBytes), 1, most));
}

// How finely `bytes` of rows over the keys [min_key, max_key] are cut: the bits of the key that
// tell the files apart. Never finer than the tier's ranges, nor into files below kMinRangeBytes.
inline int CutBits(uint64_t bytes, uint64_t min_key, uint64_t max_key, int range_bits) {
  // As if the whole key space were filled as densely as this part of it.
  const double share = static_cast<double>(max_key - min_key) / 18446744073709551616.0;
  const double whole = static_cast<double>(bytes) / std::max(share, 1e-18);
  const double files = whole / static_cast<double>(kMinRangeBytes);
  return std::min(range_bits,
                  files < 1 ? 0 : FloorLog2(static_cast<uint64_t>(std::min(files, 9e18))));
}

// The range that a key belongs to, of 2^bits.
inline uint64_t RangeOf(uint64_t key, int bits) { return bits == 0 ? 0 : key >> (64 - bits); }

}  // namespace pbx
