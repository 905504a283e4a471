// FuseFilter: tells which keys a segment may hold. It is a 3-wise binary fuse filter (Graf and
// Lemire, "Binary Fuse Filters", 2022): 9.0 bits per row for 0.39 % false positives or 13.5 bits
// for 0.024 %, and no false negatives. A blocked Bloom filter needs 12.5 and 20 bits for the same
// rates.
//
// A key has three positions, one in each of three neighbouring windows of the table. Here the first
// window follows from the place of the key between min_key and max_key, not from a hash. This works
// as well as a hash, because keys are uniform. A batch in the order of keys then goes through the
// table once, forwards, which suits the cache. The bits are part of the segment format
// (docs/formats/segment.md, "Filter").
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/hash.h"

namespace pbx {

struct FuseShape {
  uint32_t bits = 0;         // bits of a fingerprint, 8 or 12; 0: no filter, every key passes
  uint32_t window_log2 = 0;  // log2 of the number of positions per window
  uint32_t windows = 0;      // windows for the first position of a key; two more follow
  uint32_t seed = 0;
  uint32_t by_hash = 0;  // 1: the first position comes from a hash, because keys are in clusters

  uint64_t positions() const { return bits == 0 ? 0 : (uint64_t{windows} + 2) << window_log2; }
  uint64_t bytes() const { return (positions() * bits + 7) / 8; }
  bool Sane() const;
};

// Finds the positions and the fingerprint of a key.
class FuseHash {
 public:
  FuseHash() = default;
  FuseHash(const FuseShape& shape, uint64_t min_key, uint64_t max_key);

  struct Place {
    uint64_t at[3];
    uint32_t fingerprint;
  };
  Place Of(uint64_t key) const {
    const uint64_t h = Mix(key ^ salt_);
    const uint64_t first =
        by_hash_ ? High(h, positions_) : High((key - min_key_) << shift_, scale_);
    const uint64_t window = mask_ + 1;
    return {{first, (first + window) ^ ((h >> 18) & mask_), (first + 2 * window) ^ (h & mask_)},
            static_cast<uint32_t>((h * 0xd6e8feb86659fd93) >> fingerprint_shift_)};
  }

 private:
  static uint64_t High(uint64_t a, uint64_t b) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<uint64_t>((static_cast<Wide>(a) * b) >> 64);
  }

  uint64_t salt_ = 0, min_key_ = 0, scale_ = 0, positions_ = 0, mask_ = 0;
  int shift_ = 0, fingerprint_shift_ = 63;
  bool by_hash_ = false;
};

// Queries a filter whose table the caller holds.
class FuseFilter {
 public:
  FuseFilter() = default;
  // table: (shape.bytes()), must outlive the filter.
  FuseFilter(const FuseShape& shape, uint64_t min_key, uint64_t max_key, const char* table)
      : bits_(shape.bits), hash_(shape, min_key, max_key), table_(table) {}

  // Splits `ask`, (n) indices into keys. `passed` gets the indices of keys that the segment may
  // hold; their number is returned. `rejected` gets the other indices. The keys of `ask` ascend and
  // lie in [min_key, max_key]. `rejected` may be `ask` itself.
  size_t Select(const uint64_t* keys, const uint32_t* ask, size_t n, uint32_t* passed,
                uint32_t* rejected, size_t* n_rejected) const;

 private:
  template <uint32_t kBits>
  size_t SelectBits(const uint64_t* keys, const uint32_t* ask, size_t n, uint32_t* passed,
                    uint32_t* rejected, size_t* n_rejected) const;

  uint32_t bits_ = 0;
  FuseHash hash_;
  const char* table_ = nullptr;
};

// The shape for n >= 1 keys, without a seed.
FuseShape FuseShapeFor(uint64_t n, uint32_t bits);

// Builds the filter of keys, (n) strictly ascending, n >= 1, with fingerprints of `bits` (8 or 12).
// Returns its shape; *table becomes (shape.bytes()). The same keys give the same bytes. If no seed
// works (never seen) or there is no memory, the shape has bits = 0.
FuseShape BuildFuseFilter(const uint64_t* keys, size_t n, uint32_t bits, std::vector<char>* table);

}  // namespace pbx
