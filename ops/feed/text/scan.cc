#include "feed/text/scan.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

namespace pbx::feed {

size_t Utf8Bytes(const char* const begin, const char* const end) {
  const char* p = begin;
  while (p < end) {
    // Blocks of ASCII.
    for (; end - p >= 32; p += 32) {
      uint64_t words[4];
      std::memcpy(words, p, sizeof(words));
      if (((words[0] | words[1] | words[2] | words[3]) & 0x8080808080808080u) != 0) break;
    }
    const char* const block = end - p > 32 ? p + 32 : end;
    while (p < block) {
      if (end - p >= 4) {  // most characters of three bytes, such as Chinese ones
        uint32_t four;
        std::memcpy(&four, p, sizeof(four));
        if ((four & 0xc0c0f0) == 0x8080e0 && (four & 0xf) != 0 && (four & 0xf) != 0xd) {
          p += 3;
          continue;
        }
      }
      const unsigned first = static_cast<unsigned char>(*p);
      if (first < 0x80) {
        ++p;
        continue;
      }
      // The second byte tells overlong encodings, surrogates and too large numbers.
      const unsigned more = first < 0xc2   ? 0
                            : first < 0xe0 ? 1
                            : first < 0xf0 ? 2
                            : first < 0xf5 ? 3
                                           : 0;
      if (more == 0 || end - p <= static_cast<std::ptrdiff_t>(more))
        return static_cast<size_t>(p - begin);
      const unsigned second = static_cast<unsigned char>(p[1]);
      const unsigned least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
      const unsigned most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
      bool valid = second >= least && second <= most;
      for (unsigned i = 2; i <= more; ++i)
        valid &= (static_cast<unsigned char>(p[i]) & 0xc0) == 0x80;
      if (!valid) return static_cast<size_t>(p - begin);
      p += more + 1;
    }
  }
  return static_cast<size_t>(end - begin);
}
namespace {

// The significant digits of a number: value = mantissa * 10^exponent if exact.
struct Decimal {
  uint64_t mantissa = 0;
  int64_t exponent = 0;
  bool exact = true;  // false: digits beyond the 19th were left out
  bool any = false;   // a digit was seen
};

const char* ScanDigits(const char* p, const char* end, bool fraction, Decimal* d) {
  for (unsigned digit; p < end && (digit = DigitOf(*p)) <= 9; ++p) {
    d->any = true;
    if (d->mantissa < 1000000000000000000ULL) {
      d->mantissa = d->mantissa * 10 + digit;
      d->exponent -= fraction;
    } else {
      d->exact = d->exact && digit == 0;
      d->exponent += !fraction;
    }
  }
  return p;
}

}  // namespace

const char* ScanLongUint64(const char* p, const char* end, uint64_t* value) {
  constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
  uint64_t v = *value;
  for (unsigned digit; p < end && (digit = DigitOf(*p)) <= 9; ++p) {
    if (v > kMax / 10 || v * 10 > kMax - digit) return nullptr;
    v = v * 10 + digit;
  }
  *value = v;
  return p;
}

const char* ScanInt64(const char* p, const char* end, int64_t* value) {
  const bool negative = p < end && *p == '-';
  uint64_t magnitude = 0;
  p = ScanUint64(p + negative, end, &magnitude);
  const uint64_t limit = (uint64_t{1} << 63) - !negative;
  if (p == nullptr || magnitude > limit) return nullptr;
  *value = static_cast<int64_t>(negative ? 0 - magnitude : magnitude);
  return p;
}

const char* ScanHex64(const char* p, const char* end, uint64_t* value) {
  const char* const start = p;
  uint64_t v = 0;
  for (; p < end; ++p) {
    unsigned digit = DigitOf(*p);
    if (digit > 9) {
      const unsigned letter = static_cast<unsigned>(static_cast<unsigned char>(*p) | 0x20) - 'a';
      if (letter > 5) break;
      digit = letter + 10;
    }
    if (p - start == 16) return nullptr;
    v = v << 4 | digit;
  }
  *value = v;
  return p == start ? nullptr : p;
}

const char* ScanFloat(const char* p, const char* end, float* value) {
  const bool negative = p < end && *p == '-';
  if (p < end && (*p == '-' || *p == '+')) ++p;
  const char* const start = p;
  Decimal d;
  p = ScanDigits(p, end, false, &d);
  if (p < end && *p == '.') p = ScanDigits(p + 1, end, true, &d);
  if (!d.any) return nullptr;
  if (p < end && (*p == 'e' || *p == 'E')) {
    ++p;
    const bool down = p < end && *p == '-';
    if (p < end && (*p == '-' || *p == '+')) ++p;
    const char* const digits = p;
    int64_t power = 0;
    for (unsigned digit; p < end && (digit = DigitOf(*p)) <= 9; ++p) {
      power = std::min<int64_t>(power * 10 + digit, int64_t{1} << 40);
    }
    if (p == digits) return nullptr;
    d.exponent += down ? -power : power;
  }

  double magnitude = 0;
  if (d.mantissa == 0 || d.exponent < -100) {
    magnitude = 0;  // at most 19 digits before the exponent: far below the smallest float
  } else if (d.exponent > 100) {
    return nullptr;
  } else if (d.exact && d.mantissa <= kExactMantissa &&
             std::abs(d.exponent) <= int64_t{kMaxPowerOfTen}) {
    // Both operands are exact, so the result is correctly rounded.
    const double m = static_cast<double>(d.mantissa);
    magnitude = d.exponent < 0 ? m / kPowersOfTen[-d.exponent] : m * kPowersOfTen[d.exponent];
  } else if (std::from_chars(start, p, magnitude).ec != std::errc()) {
    return nullptr;
  }
  *value = static_cast<float>(negative ? -magnitude : magnitude);
  return std::isfinite(*value) ? p : nullptr;
}

long double ExactOf(const char* p, const char* end) {
  const bool negative = *p == '-';
  if (*p == '-' || *p == '+') ++p;
  uint64_t integer = 0;
  double number = 0;  // from_chars leaves it if the number is too small for a double
  if (ScanUint64(p, end, &integer) != end) std::from_chars(p, end, number);
  const long double magnitude = number != 0 ? static_cast<long double>(number) : integer;
  return negative ? -magnitude : magnitude;
}

}  // namespace pbx::feed
