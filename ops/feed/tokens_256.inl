// What both vector paths do with 256 bits and 128. Included as tokens.inl is, before it.

// 32 bytes from entry n on keep the last n of 32 bytes; 16 from entry 16 + n on the last n of 16.
alignas(64) constexpr signed char kKeepLast[64] = {
    0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,
    0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
    -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};

// Digits 0..15 and 16..31 as one number each: neighbours are joined to pairs, fours and eights.
inline void Groups(Vector digits, uint64_t* high, uint64_t* low) {
  const Vector pairs = _mm256_maddubs_epi16(digits, _mm256_set1_epi16(1 << 8 | 10));
  const Vector fours = _mm256_madd_epi16(pairs, _mm256_set1_epi32(1 << 16 | 100));
  const Vector packed = _mm256_packus_epi32(fours, fours);
  const Vector eights = _mm256_madd_epi16(packed, _mm256_set1_epi32(1 << 16 | 10000));
  const auto sixteen = [](uint64_t two) { return (two & 0xffffffff) * 100000000 + (two >> 32); };
  *high = sixteen(static_cast<uint64_t>(_mm256_extract_epi64(eights, 0)));
  *low = sixteen(static_cast<uint64_t>(_mm256_extract_epi64(eights, 2)));
}

// 0 to 16 hexadecimal digits of either case; false if another byte is among them.
inline bool ConvertHex(const char* end, size_t n, uint64_t* value) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(end - 16));
  const __m128i kept = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kKeepLast + 16 + n));
  const __m128i digit = _mm_sub_epi8(bytes, _mm_set1_epi8('0'));
  const __m128i letter = _mm_sub_epi8(_mm_or_si128(bytes, _mm_set1_epi8(0x20)), _mm_set1_epi8('a'));
  const __m128i is_digit = _mm_cmpeq_epi8(_mm_min_epu8(digit, _mm_set1_epi8(9)), digit);
  const __m128i is_letter = _mm_cmpeq_epi8(_mm_min_epu8(letter, _mm_set1_epi8(5)), letter);
  const __m128i any = _mm_or_si128(is_digit, is_letter);
  if (_mm_testc_si128(any, kept) == 0) return false;
  const __m128i nibbles = _mm_and_si128(
      _mm_blendv_epi8(_mm_add_epi8(letter, _mm_set1_epi8(10)), digit, is_digit), kept);
  const __m128i joined = _mm_maddubs_epi16(nibbles, _mm_set1_epi16(1 << 8 | 16));
  const __m128i packed = _mm_packus_epi16(joined, joined);
  *value = __builtin_bswap64(static_cast<uint64_t>(_mm_cvtsi128_si64(packed)));
  return true;
}
