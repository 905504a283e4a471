#include "feed/columns/transpose_avx2.h"

#include <immintrin.h>

#pragma GCC target("avx2")

namespace pbx::feed {
namespace {

inline __m256i Load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline void Store(void* p, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }

// Where the next tile after the one at column c begins. The last tile repeats columns, so that none
// remain to be copied one by one.
inline size_t Next(size_t c, size_t across, size_t count) {
  return c + across < count && c + 2 * across > count ? count - across : c + across;
}

// Pairs of floats of 8 rows: rows 0, 1 (and 4, 5) in `low`, rows 2, 3 (and 6, 7) in `high`.
struct Pairs {
  __m256i low;
  __m256i high;
};

inline Pairs Interleave(__m256i a, __m256i b) {
  return {_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b)};
}

}  // namespace

uint64_t Avx2Ids(const uint64_t* const* columns, size_t count, size_t n, uint64_t* rows) {
  const __m256i zero = _mm256_setzero_si256();
  __m256i zeros = zero;
  for (size_t row = 0; row < n; row += kIdsAcross, rows += kIdsAcross * count) {
    for (size_t c = 0; c < count; c = Next(c, kIdsAcross, count)) {
      __m256i column[kIdsAcross];
      for (size_t i = 0; i < kIdsAcross; ++i) {
        column[i] = Load(columns[c + i] + row);
        zeros = _mm256_or_si256(zeros, _mm256_cmpeq_epi64(column[i], zero));
      }
      const __m256i even = _mm256_unpacklo_epi64(column[0], column[1]);  // of rows 0 and 2
      const __m256i odd = _mm256_unpackhi_epi64(column[0], column[1]);
      const __m256i more_even = _mm256_unpacklo_epi64(column[2], column[3]);
      const __m256i more_odd = _mm256_unpackhi_epi64(column[2], column[3]);
      uint64_t* const to = rows + c;
      Store(to, _mm256_permute2x128_si256(even, more_even, 0x20));
      Store(to + count, _mm256_permute2x128_si256(odd, more_odd, 0x20));
      Store(to + 2 * count, _mm256_permute2x128_si256(even, more_even, 0x31));
      Store(to + 3 * count, _mm256_permute2x128_si256(odd, more_odd, 0x31));
    }
  }
  return static_cast<uint32_t>(_mm256_movemask_epi8(zeros));
}

uint32_t Avx2Floats(const uint32_t* const* columns, size_t count, size_t n, float* rows) {
  const __m256i exponent = _mm256_set1_epi32(0x7f800000);
  __m256i odd = _mm256_setzero_si256();
  for (size_t row = 0; row < n; row += kFloatsAcross, rows += kFloatsAcross * count) {
    for (size_t c = 0; c < count; c = Next(c, kFloatsAcross, count)) {
      __m256i column[kFloatsAcross];
      for (size_t i = 0; i < kFloatsAcross; ++i) {
        column[i] = Load(columns[c + i] + row);
        const __m256i of_value = _mm256_and_si256(column[i], exponent);
        odd = _mm256_or_si256(odd, _mm256_cmpeq_epi32(of_value, exponent));
      }
      Pairs pairs[kFloatsAcross / 2];
      for (size_t i = 0; i < kFloatsAcross / 2; ++i) {
        pairs[i] = Interleave(column[2 * i], column[2 * i + 1]);
      }
      float* const to = rows + c;
      const auto four = [to, count](size_t at, __m256i left, __m256i right) {
        Store(to + at * count, _mm256_permute2x128_si256(left, right, 0x20));
        Store(to + (at + 4) * count, _mm256_permute2x128_si256(left, right, 0x31));
      };
      four(0, _mm256_unpacklo_epi64(pairs[0].low, pairs[1].low),
           _mm256_unpacklo_epi64(pairs[2].low, pairs[3].low));
      four(1, _mm256_unpackhi_epi64(pairs[0].low, pairs[1].low),
           _mm256_unpackhi_epi64(pairs[2].low, pairs[3].low));
      four(2, _mm256_unpacklo_epi64(pairs[0].high, pairs[1].high),
           _mm256_unpacklo_epi64(pairs[2].high, pairs[3].high));
      four(3, _mm256_unpackhi_epi64(pairs[0].high, pairs[1].high),
           _mm256_unpackhi_epi64(pairs[2].high, pairs[3].high));
    }
  }
  return static_cast<uint32_t>(_mm256_movemask_epi8(odd));
}

}  // namespace pbx::feed
