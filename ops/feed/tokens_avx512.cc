#include <immintrin.h>

#include "feed/token_paths.h"
#include "feed/tokens.h"

#pragma GCC target("avx2,bmi,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512vl")

namespace pbx::feed {
namespace {

using Vector = __m256i;

#include "feed/tokens_256.inl"

inline Vector Load(const char* end, size_t n) {
  const __mmask32 kept = static_cast<__mmask32>(~uint64_t{0} << (32 - n));
  const Vector bytes = _mm256_loadu_si256(reinterpret_cast<const Vector*>(end - 32));
  return _mm256_maskz_sub_epi8(kept, bytes, _mm256_set1_epi8('0'));
}

inline uint32_t NotDigits(Vector v) { return _mm256_cmpgt_epu8_mask(v, _mm256_set1_epi8(9)); }

inline Vector After(int at, Vector a, Vector b) {
  return _mm256_mask_mov_epi8(a, static_cast<__mmask32>((uint64_t{2} << at) - 1), b);
}

inline uint64_t Blanks(const char* p) {
  const __m512i v = _mm512_loadu_si512(p);
  return _mm512_cmpeq_epi8_mask(v, _mm512_set1_epi8(' ')) |
         _mm512_cmpeq_epi8_mask(v, _mm512_set1_epi8('\t'));
}

inline uint64_t Tabs(const char* p) {
  return _mm512_cmpeq_epi8_mask(_mm512_loadu_si512(p), _mm512_set1_epi8('\t'));
}

#include "feed/tokens.inl"

}  // namespace

const TokenKernels kAvx512Tokens = {"avx512", Tokens, Fields};

}  // namespace pbx::feed
