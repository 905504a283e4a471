// Cuts: how a stream of rows in the order of keys is cut into files. A file covers an aligned
// prefix of the key space (a "range"). So of two files written at different times one contains the
// range of the other, or they are disjoint, and merging a range frees all its files.
#pragma once

#include <algorithm>
#include <cstdint>

namespace pbx {

// Below this size, opening and syncing a file costs more than its rows.
constexpr uint64_t kMinRangeBytes = 2ull << 20;
// A tier large enough to be cut has this many ranges, so a merge needs disk space for a 64th of it.
constexpr uint64_t kRanges = 64;

inline int FloorLog2(uint64_t x) { return x == 0 ? 0 : 63 - __builtin_clzll(x); }

// log2 of the number of ranges of a tier of tier_bytes.
inline int RangeBits(uint64_t tier_bytes, uint64_t max_segment_bytes) {
  const uint64_t most =
      std::max(kRanges, 2 * (tier_bytes / std::max<uint64_t>(1, max_segment_bytes)));
  return FloorLog2(std::clamp<uint64_t>(tier_bytes / (2 * kMinRangeBytes), 1, most));
}

// How finely a stream of rows is cut: the keys of a file share this many high bits. The stream has
// `bytes` bytes of rows with keys in [min_key, max_key]. A file covers at least a range of the
// tier, and is not smaller than kMinRangeBytes.
inline int CutBits(uint64_t bytes, uint64_t min_key, uint64_t max_key, int range_bits) {
  // Assumes that the whole key space is as dense as this part.
  const double share = static_cast<double>(max_key - min_key) / 18446744073709551616.0;
  const double whole = static_cast<double>(bytes) / std::max(share, 1e-18);
  const double files = whole / static_cast<double>(kMinRangeBytes);
  return std::min(range_bits,
                  files < 1 ? 0 : FloorLog2(static_cast<uint64_t>(std::min(files, 9e18))));
}

// The range of a key, out of 2^bits.
inline uint64_t RangeOf(uint64_t key, int bits) { return bits == 0 ? 0 : key >> (64 - bits); }

}  // namespace pbx
