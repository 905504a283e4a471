// Filter: which keys a segment may hold. A blocked Bloom filter of about 10 bits a row: one cache
// line a question, about 1.2 % false positives, no false negatives. The bits are part of the
// segment format (docs/formats/segment.md, "Filter") and may not change within a version.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/hash.h"

namespace pbx {

class Filter {
 public:
  // Lines of 64 bytes that a filter of `rows` keys gets.
  static uint32_t LinesFor(uint64_t rows) {
    return static_cast<uint32_t>((rows * kBitsPerRow + kLineBits - 1) / kLineBits);
  }

  Filter() = default;
  explicit Filter(uint32_t lines) : lines_(lines) {}  // empty; lines >= 1

  void Add(uint64_t key) {
    uint64_t* words = lines_[LineOf(Mix(key ^ kSalt))].words;
    ForEachBit(key, [&](uint64_t bit) { words[bit / 64] |= 1ull << (bit % 64); });
  }
  bool MayContain(uint64_t key) const {
    const uint64_t* words = lines_[LineOf(Mix(key ^ kSalt))].words;
    uint64_t all = 1;
    ForEachBit(key, [&](uint64_t bit) { all &= words[bit / 64] >> (bit % 64); });
    return all != 0;
  }
  // Starts fetching the line that MayContain(key) will look at.
  void Prefetch(uint64_t key) const { __builtin_prefetch(&lines_[LineOf(Mix(key ^ kSalt))]); }

  char* data() { return reinterpret_cast<char*>(lines_.data()); }
  const char* data() const { return reinterpret_cast<const char*>(lines_.data()); }
  size_t bytes() const { return lines_.size() * sizeof(Line); }

 private:
  static constexpr uint64_t kBitsPerRow = 10;
  static constexpr uint64_t kLineBits = 512;
  static constexpr int kProbes = 6;
  static constexpr uint64_t kSalt = 0x9e3779b97f4a7c15;
  static constexpr uint64_t kSpread = 0xd6e8feb86659fd93;

  struct alignas(64) Line {
    uint64_t words[8] = {};
  };

  size_t LineOf(uint64_t hash) const { return ((hash >> 32) * lines_.size()) >> 32; }

  template <typename Visit>
  static void ForEachBit(uint64_t key, const Visit& visit) {
    const uint64_t bits = Mix(key ^ kSalt) * kSpread;
    for (int i = 0; i < kProbes; ++i) visit((bits >> (10 + 9 * i)) & (kLineBits - 1));
  }

  std::vector<Line> lines_;
};

}  // namespace pbx
