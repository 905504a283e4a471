// Where in a block of an export file a key is, from process memory: 2 bytes a row.
//
// Lookups are bound by misses, of the TLB above all. Interpolating in a column of the block's keys
// took two of them, one after the other, before that of the row; the index tells the place of the
// row, with its key before it, at once.
#pragma once

#include <emmintrin.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/buffer.h"
#include "base/status.h"
#include "serve/block.h"

namespace pbx {

// The rows of a stretch of some 16 keys: their tags in half a cache line.
struct alignas(32) TagBucket {
  static constexpr uint32_t kRows = 16;  // on average
  static constexpr uint32_t kRoom = 27;  // one in 250 needs more, if keys are uniform
  static constexpr uint8_t kCrowded = 255;

  uint32_t first = 0;  // the place of its first row
  uint8_t count = 0;   // rows, or kCrowded
  uint8_t tags[kRoom] = {};

  // Not among the bits that choose a bucket, as long as a layer has less than 2^52 rows.
  static uint8_t TagOf(uint64_t key) { return static_cast<uint8_t>(key); }

  // A bit for each of the rows that has the key's tag. REQUIRES: not crowded.
  uint32_t Matches(uint64_t key) const {
    const __m128i tag = _mm_set1_epi8(static_cast<char>(TagOf(key)));
    const auto* const half = reinterpret_cast<const __m128i*>(this);
    const auto low =
        static_cast<uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_load_si128(half), tag)));
    const auto high =
        static_cast<uint32_t>(_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_load_si128(half + 1), tag)));
    return (high << 16 | low) >> (32 - kRoom) & ((uint32_t{1} << count) - 1);
  }
};
static_assert(sizeof(TagBucket) == 32, "two buckets fill a cache line");

// How many buckets a block of these rows has, but for one behind them that ends the last.
inline uint64_t BucketsFor(uint32_t rows) {
  return (uint64_t{rows} + TagBucket::kRows - 1) / TagBucket::kRows;
}

// The bucket of a key in its block, of a layer of `bits`. REQUIRES: rows > 0.
inline uint64_t BucketOf(uint64_t key, int bits, uint32_t rows) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>((static_cast<Wide>(key << bits) * BucketsFor(rows)) >> 64);
}

// (BucketsFor(rows) + 1). Empty where keys do not ascend within the block's range, as they do in
// whatever a writer made: nothing would find them.
std::vector<TagBucket> BuildIndex(const BlockView& block, uint64_t number, int bits);

// Keeps many small arrays together, so that huge pages hold them where there is much: each on pages
// of its own they cost a TLB miss each time, where the dense part of a model runs in between.
class Room {
 public:
  // layer_bytes: of the layer that it is for, all blocks.
  explicit Room(size_t layer_bytes)
      : chunk_bytes_(layer_bytes < 16 * Buffer::kHugePage ? kSmallChunk : Buffer::kHugePage) {}
  // A copy, on a cache line of its own, that lasts as long as this. OutOfSpace.
  Result<const char*> Keep(const void* from, size_t bytes);
  size_t bytes() const { return bytes_; }

 private:
  static constexpr size_t kSmallChunk = 64 << 10;
  const size_t chunk_bytes_;  // or what is to be kept, where that is more
  std::vector<Buffer> chunks_;
  size_t used_ = 0;   // of the last chunk
  size_t bytes_ = 0;  // of all
};

// The place of the first row that may have the key, to ask for it early; `rows`, those of the
// block, if none has. others: a bit for each row of the bucket that may have it too.
inline uint32_t GuessIn(const TagBucket& bucket, uint32_t rows, uint64_t key, uint32_t* others) {
  *others = 0;
  if (__builtin_expect(bucket.count == TagBucket::kCrowded, 0)) return bucket.first;
  const uint32_t matches = bucket.Matches(key);
  if (matches == 0) return rows;
  *others = matches & (matches - 1);
  return bucket.first + static_cast<uint32_t>(__builtin_ctz(matches));
}

// The place of the row that has the key; block.rows() if none has.
uint32_t FindIn(const TagBucket* bucket, const BlockView& block, uint64_t key);

}  // namespace pbx
