#include <immintrin.h>

#include "feed/token_paths.h"
#include "feed/tokens.h"

#pragma GCC target("avx2,bmi,bmi2,lzcnt,popcnt")

namespace pbx::feed {
namespace {

using Vector = __m256i;

#include "feed/tokens_256.inl"

inline Vector LoadVector(const void* p) {
  return _mm256_loadu_si256(static_cast<const Vector*>(p));
}

inline Vector Load(const char* end, size_t n) {
  const Vector digits = _mm256_sub_epi8(LoadVector(end - 32), _mm256_set1_epi8('0'));
  return _mm256_and_si256(digits, LoadVector(kKeepLast + n));
}

inline uint32_t NotDigits(Vector v) {
  const Vector capped = _mm256_min_epu8(v, _mm256_set1_epi8(9));
  return ~static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(v, capped)));
}

inline Vector After(int at, Vector a, Vector b) {
  return _mm256_blendv_epi8(b, a, LoadVector(kKeepLast + (31 - at)));
}

inline uint64_t Equal(const char* p, char c) {
  const Vector wanted = _mm256_set1_epi8(c);
  const int low = _mm256_movemask_epi8(_mm256_cmpeq_epi8(LoadVector(p), wanted));
  const int high = _mm256_movemask_epi8(_mm256_cmpeq_epi8(LoadVector(p + 32), wanted));
  return static_cast<uint64_t>(static_cast<uint32_t>(high)) << 32 | static_cast<uint32_t>(low);
}

inline uint64_t Blanks(const char* p) { return Equal(p, ' ') | Equal(p, '\t'); }
inline uint64_t Tabs(const char* p) { return Equal(p, '\t'); }

#include "feed/tokens.inl"

}  // namespace

const TokenKernels kAvx2Tokens = {"avx2", Tokens, Fields};

}  // namespace pbx::feed
