// Scanning of single tokens, shared by the formats. No function reads at or past `end`, allocates,
// or depends on the locale. A Scan* function returns the byte after the token, or nullptr if there
// is no valid token.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pbx::feed {

// The number of leading bytes of [p, end) that are whole characters of UTF-8. Surrogates, numbers
// beyond U+10FFFF and encodings that are longer than needed are none.
size_t Utf8Bytes(const char* p, const char* end);

inline bool IsUtf8(const char* p, const char* end) {
  return Utf8Bytes(p, end) == static_cast<size_t>(end - p);
}

inline bool IsBlank(char c) { return c == ' ' || c == '\t'; }

inline const char* SkipBlanks(const char* p, const char* end) {
  while (p < end && IsBlank(*p)) ++p;
  return p;
}

// The end of the token that starts at p.
inline const char* TokenEnd(const char* p, const char* end) {
  while (p < end && !IsBlank(*p)) ++p;
  return p;
}

inline bool AtTokenEnd(const char* p, const char* end) { return p == end || IsBlank(*p); }

// 0..9, or a number above 9 if the byte is not a digit.
inline unsigned DigitOf(char c) {
  return static_cast<unsigned>(static_cast<unsigned char>(c)) - static_cast<unsigned>('0');
}

// The rest of a number with more than 19 digits, which may overflow.
const char* ScanLongUint64(const char* p, const char* end, uint64_t* value);

// A decimal in [0, 2^64 - 1] without a sign. Leading zeros are allowed.
inline const char* ScanUint64(const char* p, const char* end, uint64_t* value) {
  const char* const start = p;
  const char* const unchecked = end - p > 19 ? p + 19 : end;  // 19 digits cannot overflow
  uint64_t v = 0;
  for (unsigned digit; p < unchecked && (digit = DigitOf(*p)) <= 9; ++p) v = v * 10 + digit;
  *value = v;
  if (p == start) return nullptr;
  return p == unchecked && p < end ? ScanLongUint64(p, end, value) : p;
}

// A decimal integer that fits int64, with or without '-'.
const char* ScanInt64(const char* p, const char* end, int64_t* value);

// 1 to 16 hexadecimal digits of either case.
const char* ScanHex64(const char* p, const char* end, uint64_t* value);

// A decimal floating point number such as "-12.5e-3": the nearest double, rounded to float. Returns
// nullptr also if the number is beyond float's range. There is no syntax for infinities and NaN.
const char* ScanFloat(const char* p, const char* end, float* value);

// The number [p, end), which ScanFloat accepts as a whole, before it is rounded to float: exact if
// it is written as an integer below 2^64, otherwise the nearest double.
long double ExactOf(const char* p, const char* end);

// Powers of ten that are exact as double.
inline constexpr double kPowersOfTen[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                          1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                          1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
constexpr unsigned kMaxPowerOfTen = 22;
constexpr uint64_t kExactMantissa = uint64_t{1} << 53;

// The inverses of these powers, rounded.
inline constexpr double kInversesOfTen[] = {1e-0, 1e-1, 1e-2,  1e-3,  1e-4,  1e-5,  1e-6,  1e-7,
                                            1e-8, 1e-9, 1e-10, 1e-11, 1e-12, 1e-13, 1e-14, 1e-15};

}  // namespace pbx::feed
