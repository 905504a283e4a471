#include "feed/columns/transpose.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "feed/columns/transpose_avx2.h"
#include "feed/text/token_paths.h"
#include "feed/text/tokens.h"

namespace pbx::feed {
namespace {

// The top bit is set if the value is 0. SSE2 cannot compare 64 bits.
uint64_t Zero(uint64_t value) { return (value - 1) & ~value; }

// The top bit is set if the exponent is that of infinity or NaN.
uint32_t Odd(uint32_t bits) { return (bits & 0x7fffffffu) + 0x00800000u; }

// Rows [begin, n), two columns of two rows at a time.
uint64_t PlainIds(const uint64_t* const* columns, size_t count, size_t begin, size_t n,
                  uint64_t* rows) {
  const __m128i one = _mm_set1_epi64x(1);
  __m128i zeros = _mm_setzero_si128();
  uint64_t zero = 0;
  const auto load = [](const uint64_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  };
  const auto store = [](uint64_t* p, __m128i pair) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), pair);
  };
  size_t c = 0;
  for (; c + 1 < count; c += 2) {
    const uint64_t* const a = columns[c];
    const uint64_t* const b = columns[c + 1];
    uint64_t* to = rows + begin * count + c;
    size_t row = begin;
    for (; row + 1 < n; row += 2, to += 2 * count) {
      const __m128i of_a = load(a + row), of_b = load(b + row);
      zeros = _mm_or_si128(zeros, _mm_andnot_si128(of_a, _mm_sub_epi64(of_a, one)));
      zeros = _mm_or_si128(zeros, _mm_andnot_si128(of_b, _mm_sub_epi64(of_b, one)));
      store(to, _mm_unpacklo_epi64(of_a, of_b));
      store(to + count, _mm_unpackhi_epi64(of_a, of_b));
    }
    if (row < n) {
      zero |= Zero(a[row]) | Zero(b[row]);
      to[0] = a[row];
      to[1] = b[row];
    }
  }
  if (c < count) {
    const uint64_t* const a = columns[c];
    for (size_t row = begin; row < n; ++row) {
      zero |= Zero(a[row]);
      rows[row * count + c] = a[row];
    }
  }
  uint64_t pair[2];
  store(pair, zeros);
  return (zero | pair[0] | pair[1]) >> 63;
}

uint32_t PlainFloats(const uint32_t* const* columns, size_t count, size_t begin, size_t n,
                     float* rows) {
  uint32_t odd = 0;
  for (size_t c = 0; c < count; ++c) {
    const uint32_t* const from = columns[c];
    for (size_t row = begin; row < n; ++row) odd |= Odd(from[row]);
    float* to = rows + begin * count + c;
    for (size_t row = begin; row < n; ++row, to += count) {
      std::memcpy(to, from + row, sizeof(float));
    }
  }
  return odd >> 31;
}

// Takes as many eights of the ids as there are. Returns the number of ids that are not 0.
__attribute__((target("avx512f,avx512vl"))) size_t Avx512Drop(uint64_t* ids, size_t n,
                                                              uint32_t* lengths) {
  uint64_t* to = ids;
  for (size_t i = 0; i + 8 <= n; i += 8) {
    const __m512i eight = _mm512_loadu_si512(ids + i);
    const __mmask8 some = _mm512_test_epi64_mask(eight, eight);
    _mm512_storeu_si512(to, _mm512_maskz_compress_epi64(some, eight));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(lengths + i), _mm256_maskz_set1_epi32(some, 1));
    to += __builtin_popcount(some);
  }
  return static_cast<size_t>(to - ids);
}

}  // namespace

size_t DropZeros(uint64_t* ids, size_t n, uint32_t* lengths) {
  size_t done = 0;
  uint64_t* to = ids;
  if (ActiveTokenKernels() == &kAvx512Tokens) {
    done = n / 8 * 8;
    to += Avx512Drop(ids, done, lengths);
  }
  for (size_t i = done; i < n; ++i) {
    *to = ids[i];
    lengths[i] = *to != 0;
    to += lengths[i];
  }
  return static_cast<size_t>(to - ids);
}

bool TransposeIds(const uint64_t* const* columns, size_t count, size_t n, uint64_t* rows) {
  uint64_t zero = 0;
  size_t done = 0;
  if (count >= kIdsAcross && ActiveTokenKernels() != nullptr) {  // not null: the processor has AVX2
    done = n / kIdsAcross * kIdsAcross;
    zero = Avx2Ids(columns, count, done, rows);
  }
  return (zero | PlainIds(columns, count, done, n, rows)) == 0;
}

bool TransposeFloats(const uint32_t* const* columns, size_t count, size_t n, float* rows) {
  uint32_t odd = 0;
  size_t done = 0;
  if (count >= kFloatsAcross && ActiveTokenKernels() != nullptr) {
    done = n / kFloatsAcross * kFloatsAcross;
    odd = Avx2Floats(columns, count, done, rows);
  }
  return (odd | PlainFloats(columns, count, done, n, rows)) == 0;
}

}  // namespace pbx::feed
