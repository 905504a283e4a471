// g++ 12 warns about the undefined vectors in its own header (its bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include "feed/text/token_paths.h"
#include "feed/text/tokens.h"

#pragma GCC target("avx2,bmi,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512dq,avx512vl")

namespace pbx::feed {
namespace {

using Vector = __m512i;
using Sizes = __m256i;  // of kWidth tokens
constexpr size_t kWidth = 8;

inline Vector Repeat8(int x) { return _mm512_set1_epi8(static_cast<char>(x)); }
inline Vector Repeat16(int x) { return _mm512_set1_epi16(static_cast<short>(x)); }
inline Vector Repeat32(int x) { return _mm512_set1_epi32(x); }
inline Vector Repeat64(int64_t x) { return _mm512_set1_epi64(x); }
inline Vector MulAdd8(Vector a, Vector b) { return _mm512_maddubs_epi16(a, b); }
inline Vector MulAdd16(Vector a, Vector b) { return _mm512_madd_epi16(a, b); }
inline Vector Pack16(Vector a, Vector b) { return _mm512_packus_epi16(a, b); }
inline Vector Pack32(Vector a, Vector b) { return _mm512_packus_epi32(a, b); }
inline Vector Mul32(Vector a, Vector b) { return _mm512_mul_epu32(a, b); }
inline Vector Add64(Vector a, Vector b) { return _mm512_add_epi64(a, b); }
inline Vector High32(Vector a) { return _mm512_srli_epi64(a, 32); }  // per 64 bits
inline Vector Low32ToHigh(Vector a) { return _mm512_slli_epi64(a, 32); }
// One bit for each 64-bit element: whether the element of a is above (below) that of b.
inline uint32_t Above(Vector a, Vector b) { return _mm512_cmpgt_epu64_mask(a, b); }
inline uint32_t Below(Vector a, Vector b) { return _mm512_cmplt_epu64_mask(a, b); }
inline void Store(uint64_t* to, Vector v) { _mm512_storeu_si512(to, v); }

inline Vector Swap64(Vector v) {
  return _mm512_shuffle_epi8(
      v, _mm512_broadcast_i32x4(_mm_set_epi64x(0x08090a0b0c0d0e0f, 0x0001020304050607)));
}

inline Sizes LoadSizes(const uint32_t* sizes) {
  return _mm256_loadu_si256(reinterpret_cast<const Sizes*>(sizes));
}
inline bool AnyAbove(Sizes sizes, int bytes) {
  return _mm256_cmpgt_epu8_mask(sizes, _mm256_set1_epi8(static_cast<char>(bytes))) != 0;
}
inline Vector EvenSizes(Sizes sizes) {
  return _mm512_permutexvar_epi32(_mm512_set_epi32(6, 6, 6, 6, 4, 4, 4, 4, 2, 2, 2, 2, 0, 0, 0, 0),
                                  _mm512_castsi256_si512(sizes));
}
inline Vector OddSizes(Sizes sizes) {
  return _mm512_permutexvar_epi32(_mm512_set_epi32(7, 7, 7, 7, 5, 5, 5, 5, 3, 3, 3, 3, 1, 1, 1, 1),
                                  _mm512_castsi256_si512(sizes));
}
inline Vector Less16(Vector sizes) { return _mm512_subs_epu8(sizes, Repeat8(16)); }

inline __m128i Lane(const char* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }

// The 16 bytes at line + ends[first], + ends[first + 2] ..
template <int first>
inline Vector Lanes(const char* line, const uint32_t* ends) {
  const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(Lane(line + ends[first])),
                                              Lane(line + ends[first + 2]), 1);
  const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(Lane(line + ends[first + 4])),
                                               Lane(line + ends[first + 6]), 1);
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

// A bit for each byte that belongs to the token of its lane.
inline __mmask64 Inside(Vector sizes) {
  const Vector after =
      _mm512_broadcast_i32x4(_mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  return _mm512_cmpgt_epu8_mask(sizes, after);
}

// The bytes minus '0', and 0 for bytes that are not digits. *odd: one bit for each byte of a token
// that is not a digit.
inline Vector Digits(Vector bytes, Vector sizes, uint64_t* odd) {
  const __mmask64 inside = Inside(sizes);
  const Vector digits = _mm512_sub_epi8(bytes, Repeat8('0'));
  const __mmask64 fits = _mm512_mask_cmple_epu8_mask(inside, digits, Repeat8(9));
  *odd = inside ^ fits;
  return _mm512_maskz_mov_epi8(fits, digits);
}

inline Vector Nibbles(Vector bytes, Vector sizes, uint64_t* odd) {
  const __mmask64 inside = Inside(sizes);
  const Vector digits = _mm512_sub_epi8(bytes, Repeat8('0'));
  const Vector letters = _mm512_sub_epi8(_mm512_or_si512(bytes, Repeat8(0x20)), Repeat8('a'));
  const __mmask64 is_digit = _mm512_mask_cmple_epu8_mask(inside, digits, Repeat8(9));
  const __mmask64 is_letter = _mm512_mask_cmple_epu8_mask(inside, letters, Repeat8(5));
  *odd = inside ^ (is_digit | is_letter);
  const Vector values = _mm512_maskz_add_epi8(is_letter, letters, Repeat8(10));
  return _mm512_mask_mov_epi8(values, is_digit, digits);
}

inline __m128i Joined(uint64_t even, uint64_t odd) {
  return _mm_unpacklo_epi16(_mm_cvtsi64_si128(static_cast<int64_t>(even)),
                            _mm_cvtsi64_si128(static_cast<int64_t>(odd)));
}
inline void StoreOdd(uint16_t* to, uint64_t even, uint64_t odd) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), Joined(even, odd));
}
inline void StoreMarks(uint16_t* to, uint64_t even, uint64_t odd, Vector values) {
  const __m128i zero =
      _mm_maskz_set1_epi16(_mm512_testn_epi64_mask(values, values), TokenColumns::kZero);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_or_si128(Joined(even, odd), zero));
}

inline uint64_t Blanks(const char* p) {
  const Vector v = _mm512_loadu_si512(p);
  return _mm512_cmpeq_epi8_mask(v, Repeat8(' ')) | _mm512_cmpeq_epi8_mask(v, Repeat8('\t'));
}
inline uint64_t Tabs(const char* p) {
  return _mm512_cmpeq_epi8_mask(_mm512_loadu_si512(p), Repeat8('\t'));
}

// Writes the offsets of the set bits of a block. Sixteen are written at a time, even if there are
// fewer.
inline uint32_t* PutBits(uint64_t bits, uint32_t base, uint32_t* out) {
  Vector places =
      _mm512_add_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                       _mm512_set1_epi32(static_cast<int>(base)));
  for (int i = 0; i < 4; ++i) {
    const __mmask16 here = static_cast<__mmask16>(bits >> (16 * i));
    _mm512_storeu_si512(out, _mm512_maskz_compress_epi32(here, places));
    out += __builtin_popcount(here);
    places = _mm512_add_epi32(places, Repeat32(16));
  }
  return out;
}

#include "feed/text/tokens.inl"

}  // namespace

const TokenKernels kAvx512Tokens = {"avx512", Tokens, Fields};

}  // namespace pbx::feed
