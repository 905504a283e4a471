#include <immintrin.h>

#include "feed/text/token_paths.h"
#include "feed/text/tokens.h"

#pragma GCC target("avx2,bmi,bmi2,lzcnt,popcnt")

namespace pbx::feed {
namespace {

using Vector = __m256i;
using Sizes = __m128i;  // of kWidth tokens
constexpr size_t kWidth = 4;

inline Vector Repeat8(int x) { return _mm256_set1_epi8(static_cast<char>(x)); }
inline Vector Repeat16(int x) { return _mm256_set1_epi16(static_cast<short>(x)); }
inline Vector Repeat32(int x) { return _mm256_set1_epi32(x); }
inline Vector Repeat64(int64_t x) { return _mm256_set1_epi64x(x); }
inline Vector MulAdd8(Vector a, Vector b) { return _mm256_maddubs_epi16(a, b); }
inline Vector MulAdd16(Vector a, Vector b) { return _mm256_madd_epi16(a, b); }
inline Vector Pack16(Vector a, Vector b) { return _mm256_packus_epi16(a, b); }
inline Vector Pack32(Vector a, Vector b) { return _mm256_packus_epi32(a, b); }
inline Vector Mul32(Vector a, Vector b) { return _mm256_mul_epu32(a, b); }
inline Vector Add64(Vector a, Vector b) { return _mm256_add_epi64(a, b); }
inline Vector High32(Vector a) { return _mm256_srli_epi64(a, 32); }  // per 64 bits
inline Vector Low32ToHigh(Vector a) { return _mm256_slli_epi64(a, 32); }
// One bit for each 64-bit element: whether the element of a is above (below) that of b.
inline uint32_t Above(Vector a, Vector b) {
  const Vector sign = Repeat64(INT64_MIN);
  const Vector above = _mm256_cmpgt_epi64(_mm256_xor_si256(a, sign), _mm256_xor_si256(b, sign));
  return static_cast<uint32_t>(_mm256_movemask_pd(_mm256_castsi256_pd(above)));
}
inline uint32_t Below(Vector a, Vector b) { return Above(b, a); }
inline void Store(uint64_t* to, Vector v) { _mm256_storeu_si256(reinterpret_cast<Vector*>(to), v); }

inline Vector Swap64(Vector v) {
  return _mm256_shuffle_epi8(
      v, _mm256_broadcastsi128_si256(_mm_set_epi64x(0x08090a0b0c0d0e0f, 0x0001020304050607)));
}

inline Sizes LoadSizes(const uint32_t* sizes) {
  return _mm_loadu_si128(reinterpret_cast<const Sizes*>(sizes));
}
inline bool AnyAbove(Sizes sizes, int bytes) {
  return _mm_movemask_epi8(_mm_cmpgt_epi8(sizes, _mm_set1_epi8(static_cast<char>(bytes)))) != 0;
}
inline Vector EvenSizes(Sizes sizes) {
  return _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(sizes),
                                     _mm256_set_epi32(2, 2, 2, 2, 0, 0, 0, 0));
}
inline Vector OddSizes(Sizes sizes) {
  return _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(sizes),
                                     _mm256_set_epi32(3, 3, 3, 3, 1, 1, 1, 1));
}
inline Vector Less16(Vector sizes) { return _mm256_subs_epu8(sizes, Repeat8(16)); }

inline __m128i Lane(const char* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }

// The 16 bytes at line + ends[first], + ends[first + 2].
template <int first>
inline Vector Lanes(const char* line, const uint32_t* ends) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(Lane(line + ends[first])),
                                 Lane(line + ends[first + 2]), 1);
}

// All ones in each byte that belongs to the token of its lane.
inline Vector Inside(Vector sizes) {
  const Vector after = _mm256_broadcastsi128_si256(
      _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  return _mm256_cmpgt_epi8(sizes, after);
}
inline Vector AtMost(Vector v, int most) {
  return _mm256_cmpeq_epi8(_mm256_min_epu8(v, Repeat8(most)), v);
}
inline uint64_t Bits(Vector v) { return static_cast<uint32_t>(_mm256_movemask_epi8(v)); }

// The bytes minus '0', and 0 for bytes that are not digits. *odd: one bit for each byte of a token
// that is not a digit.
inline Vector Digits(Vector bytes, Vector sizes, uint64_t* odd) {
  const Vector inside = Inside(sizes);
  const Vector digits = _mm256_sub_epi8(bytes, Repeat8('0'));
  const Vector fits = _mm256_and_si256(inside, AtMost(digits, 9));
  *odd = Bits(_mm256_xor_si256(inside, fits));
  return _mm256_and_si256(fits, digits);
}

inline Vector Nibbles(Vector bytes, Vector sizes, uint64_t* odd) {
  const Vector inside = Inside(sizes);
  const Vector digits = _mm256_sub_epi8(bytes, Repeat8('0'));
  const Vector letters = _mm256_sub_epi8(_mm256_or_si256(bytes, Repeat8(0x20)), Repeat8('a'));
  const Vector is_digit = AtMost(digits, 9);
  const Vector fits = _mm256_and_si256(inside, _mm256_or_si256(is_digit, AtMost(letters, 5)));
  *odd = Bits(_mm256_xor_si256(inside, fits));
  const Vector values = _mm256_blendv_epi8(_mm256_add_epi8(letters, Repeat8(10)), digits, is_digit);
  return _mm256_and_si256(fits, values);
}

inline __m128i Joined(uint64_t even, uint64_t odd) {
  return _mm_unpacklo_epi16(_mm_cvtsi64_si128(static_cast<int64_t>(even)),
                            _mm_cvtsi64_si128(static_cast<int64_t>(odd)));
}
inline void StoreOdd(uint16_t* to, uint64_t even, uint64_t odd) {
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), Joined(even, odd));
}
inline void StoreMarks(uint16_t* to, uint64_t even, uint64_t odd, Vector values) {
  const Vector equal = _mm256_cmpeq_epi64(values, _mm256_setzero_si256());
  const __m128i pairs =
      _mm_packs_epi32(_mm256_castsi256_si128(equal), _mm256_extracti128_si256(equal, 1));
  // Each element of 64 bits has four words, of which one is kept.
  const __m128i zero = _mm_and_si128(_mm_packs_epi32(pairs, pairs), _mm_set1_epi16(1));
  const __m128i marks = _mm_or_si128(Joined(even, odd), zero);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), marks);
}

inline Vector Load(const char* p) { return _mm256_loadu_si256(reinterpret_cast<const Vector*>(p)); }
inline uint64_t Equal(Vector v, char c) { return Bits(_mm256_cmpeq_epi8(v, Repeat8(c))); }
inline uint64_t Blanks32(const char* p) { return Equal(Load(p), ' ') | Equal(Load(p), '\t'); }
inline uint64_t Blanks(const char* p) { return Blanks32(p) | Blanks32(p + 32) << 32; }
inline uint64_t Tabs(const char* p) {
  return Equal(Load(p), '\t') | Equal(Load(p + 32), '\t') << 32;
}

// Writes the offsets of the set bits of a block. Eight are written at a time, even if there are
// fewer, so that no branch depends on their number.
inline uint32_t* PutBits(uint64_t bits, uint32_t base, uint32_t* out) {
  uint32_t* const end = out + __builtin_popcountll(bits);
  do {
    for (int i = 0; i < 8; ++i) {
      out[i] = base + static_cast<uint32_t>(_tzcnt_u64(bits));
      bits &= bits - 1;
    }
    out += 8;
  } while (out < end);
  return end;
}

#include "feed/text/tokens.inl"

}  // namespace

const TokenKernels kAvx2Tokens = {"avx2", Tokens, Fields};

}  // namespace pbx::feed
