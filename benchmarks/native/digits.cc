// The bound of a parser of numbers: converts the digits of a text and does nothing else. It has no
// schema, columns, errors or floats. The sum of the numbers shows that the work was done.
//
// `digits` shares no code with the parser, so it does not change when the parser does.
// `first_step` is the first step of the parser and shows what its other steps cost.
#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "feed/text/tokens.h"

#pragma GCC target("avx2,bmi,bmi2,lzcnt")

namespace {

uint64_t Separators(const char* p) {
  uint64_t bits = 0;
  for (int half = 0; half < 2; ++half) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32 * half));
    const __m256i found = _mm256_or_si256(_mm256_cmpeq_epi8(v, _mm256_set1_epi8(' ')),
                                          _mm256_cmpeq_epi8(v, _mm256_set1_epi8('\n')));
    bits |= uint64_t{static_cast<uint32_t>(_mm256_movemask_epi8(found))} << (32 * half);
  }
  return bits;
}

// The number, modulo 2^64, in the last `size` of the 32 bytes before `end`. A point counts as a
// digit.
uint64_t Convert(const char* end, size_t size, const signed char* keep_last) {
  const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(end - 32));
  const __m256i kept =
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(keep_last + (size < 32 ? size : 32)));
  const __m256i values = _mm256_and_si256(_mm256_and_si256(bytes, _mm256_set1_epi8(15)), kept);
  const __m256i twos = _mm256_maddubs_epi16(values, _mm256_set1_epi16(1 << 8 | 10));
  const __m256i fours = _mm256_madd_epi16(twos, _mm256_set1_epi32(1 << 16 | 100));
  const __m256i packed = _mm256_packus_epi32(fours, fours);
  const __m256i eights = _mm256_madd_epi16(packed, _mm256_set1_epi32(1 << 16 | 10000));
  const auto sixteen = [](uint64_t x) { return (x & 0xffffffff) * 100000000 + (x >> 32); };
  return sixteen(static_cast<uint64_t>(_mm256_extract_epi64(eights, 0))) * 10000000000000000 +
         sixteen(static_cast<uint64_t>(_mm256_extract_epi64(eights, 2)));
}

}  // namespace

// 64 bytes before and after `data` must be readable.
extern "C" uint64_t digits(const char* data, size_t size) {
  alignas(64) signed char keep_last[64];
  std::memset(keep_last, 0, 32);
  std::memset(keep_last + 32, -1, 32);
  uint64_t sum = 0;
  const char* begin = data;
  for (size_t at = 0; at < size; at += 64) {
    for (uint64_t bits = Separators(data + at); bits != 0; bits &= bits - 1) {
      const char* const end = data + at + __builtin_ctzll(bits);
      sum += Convert(end, static_cast<size_t>(end - begin), keep_last);
      begin = end + 1;
    }
  }
  return sum;
}

extern "C" uint64_t first_step(const char* data, size_t size) {
  static pbx::feed::TokenBuffer buffer;
  const pbx::feed::TokenColumns tokens = buffer.columns();
  const pbx::feed::TokenKernels* const kernels = pbx::feed::ActiveTokenKernels();
  if (kernels == nullptr) return 0;
  uint64_t sum = 0;
  for (const char *p = data, *const end = data + size; p < end;) {
    const void* const found = std::memchr(p, '\n', static_cast<size_t>(end - p));
    const char* const next = found == nullptr ? end : static_cast<const char*>(found);
    const size_t n = kernels->tokens(p, static_cast<size_t>(next - p), tokens);
    for (size_t i = 0; i < n; ++i) sum += tokens.values[i];
    p = next + 1;
  }
  return sum;
}
