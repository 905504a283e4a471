// An index in memory that tells the place of a key in a block of an export file: 2 bytes per row.
//
// Cache misses, mostly of the TLB, decide how long a lookup takes. A search by interpolation in a
// column of keys has two misses, one after the other, before the miss of the row. The index gives
// the place of the row at once. The key is stored before the row, so comparing it needs no further
// miss.
#pragma once

#include <emmintrin.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/buffer.h"
#include "base/status.h"
#include "serve/block.h"

namespace pbx {

// The tags of about 16 neighbouring rows, in half a cache line.
struct alignas(32) TagBucket {
  static constexpr uint32_t kRows = 16;  // on average
  static constexpr uint32_t kRoom = 27;  // one bucket in 250 needs more, if keys are uniform
  static constexpr uint8_t kCrowded = 255;

  uint32_t first = 0;  // the index of its first row in the block
  uint8_t count = 0;   // rows, or kCrowded
  uint8_t tags[kRoom] = {};

  // Bits that do not choose the bucket, as long as a layer has fewer than 2^52 rows.
  static uint8_t TagOf(uint64_t key) { return static_cast<uint8_t>(key); }

  // A bit for each row with the tag of key. REQUIRES: not crowded.
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

// The number of buckets of a block with so many rows, without the one that marks the end.
inline uint64_t BucketsFor(uint32_t rows) {
  return (uint64_t{rows} + TagBucket::kRows - 1) / TagBucket::kRows;
}

// The bucket of a key in its block. bits: of the layer. REQUIRES: rows > 0.
inline uint64_t BucketOf(uint64_t key, int bits, uint32_t rows) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>((static_cast<Wide>(key << bits) * BucketsFor(rows)) >> 64);
}

// (BucketsFor(rows) + 1). Empty if keys do not ascend or are outside of the block's range, which no
// writer produces.
std::vector<TagBucket> BuildIndex(const BlockView& block, uint64_t number, int bits);

// Allocates many small arrays in common chunks, which are huge pages if they are large. With
// separate pages each access costs a TLB miss when the dense part of a model runs in between.
class Room {
 public:
  // layer_bytes: size of all blocks of the layer.
  explicit Room(size_t layer_bytes)
      : chunk_bytes_(layer_bytes < 16 * Buffer::kHugePage ? kSmallChunk : Buffer::kHugePage) {}
  // Makes a copy that starts on a cache line and lives as long as the Room. OutOfSpace.
  Result<const char*> Keep(const void* from, size_t bytes);

 private:
  static constexpr size_t kSmallChunk = 64 << 10;
  const size_t chunk_bytes_;  // or the size of the array, if that is larger
  std::vector<Buffer> chunks_;
  size_t used_ = 0;  // in the last chunk
};

// The index of the first row that may have the key, for prefetching. If no row may have it: `rows`,
// the number of rows of the block. others: a bit for each further row of the bucket that may have
// the key.
inline uint32_t GuessIn(const TagBucket& bucket, uint32_t rows, uint64_t key, uint32_t* others) {
  *others = 0;
  if (__builtin_expect(bucket.count == TagBucket::kCrowded, 0)) return bucket.first;
  const uint32_t matches = bucket.Matches(key);
  if (matches == 0) return rows;
  *others = matches & (matches - 1);
  return bucket.first + static_cast<uint32_t>(__builtin_ctz(matches));
}

// The index of the row that has the key; block.rows() if no row has it.
uint32_t FindIn(const TagBucket* bucket, const BlockView& block, uint64_t key);

}  // namespace pbx
