// The tokens of one line as numbers, by vector instructions: what the formats' fast ways are made
// of. Compiled for AVX-512 and for AVX2 (tokens_<path>.cc over tokens.inl) and chosen at run time,
// with the same results. There is no third copy: a processor without either parses with scan.h,
// which is also what tells why a line is malformed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "base/status.h"
#include "feed/text/scan.h"

namespace pbx::feed {

// T tokens of a line, by columns.
struct TokenColumns {
  uint64_t* values;  // (T) the token as an integer, odd bytes as digit 0
  uint32_t* sizes;   // (T) its bytes, at most 127, four times over
  uint32_t* ends;    // (T) offset of the byte after it
  // (T) kZero if the value is 0, and a bit for each of its last 15 bytes that is no digit, the last
  // byte's highest. kNotANumber says that `values` says nothing: above 2^64 - 1, over 32 bytes, or
  // 16 and more of which one is odd.
  uint16_t* marks;

  static constexpr uint16_t kZero = 1;
  static constexpr uint16_t kNotANumber = 0xffff;
  unsigned bytes_odd(size_t i) const { return marks[i] & ~unsigned{kZero}; }
  size_t size(size_t i) const { return sizes[i] & 0xff; }
};

// A number as the quotient of two doubles, both exact, so that its one rounding is the right one.
struct Quotient {
  double digits;
  double power;   // of ten
  uint32_t sign;  // the sign bit of the float

  float value() const {
    const float magnitude = static_cast<float>(digits / power);
    uint32_t bits;
    std::memcpy(&bits, &magnitude, sizeof(bits));
    bits |= sign;
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
};

// Token i as ScanFloat reads it. False where that takes more than a sign, 15 bytes and one division
// of exact doubles: no verdict, ask ScanFloat.
inline bool QuotientOf(const char* line, const TokenColumns& tokens, size_t i, Quotient* out) {
  // Below this the product with an inverse, see there, is off by less than 2^-6.
  constexpr uint64_t kMost = uint64_t{1} << 46;
  const uint64_t padded = tokens.values[i];
  const size_t size = tokens.size(i);
  unsigned odd = tokens.bytes_odd(i);
  if (odd == TokenColumns::kNotANumber - TokenColumns::kZero || padded > kMost) return false;
  *out = {static_cast<double>(static_cast<int64_t>(padded)), 1, 0};
  if (odd == 0) return true;
  const char* const end = line + tokens.ends[i];
  const unsigned negative = *(end - size) == '-';
  odd ^= negative << (16 - size);
  out->sign = negative << 31;
  if (odd == 0) return size > 1;
  // A point, which stands in `padded` as the digit 0.
  const unsigned fraction = 15u - static_cast<unsigned>(__builtin_ctz(odd));
  if ((odd & (odd - 1)) != 0 || *(end - 1 - fraction) != '.' || size == 1u + negative) return false;
  // What stands before it. After it is less than a tenth: rounding reaches no other integer.
  const double before = out->digits * kInversesOfTen[fraction + 1] + 0.05;
  const double power = kPowersOfTen[fraction];
  out->digits -= static_cast<double>(static_cast<int64_t>(before)) * (9 * power);
  out->power = power;
  return true;
}

inline bool FloatOf(const char* line, const TokenColumns& tokens, size_t i, float* value) {
  Quotient quotient;
  if (!QuotientOf(line, tokens, i, &quotient)) return false;
  *value = quotient.value();
  return true;
}

struct TokenKernels {
  // Loads are of whole vectors, so this many bytes on both sides of a line must be readable.
  static constexpr size_t kReach = 64;
  // A longer line is left to scan.h: the tokens of these stay within the second-level cache.
  static constexpr size_t kMaxLine = size_t{1} << 14;
  static constexpr size_t kMaxTokens = kMaxLine + 1;
  // Entries beyond the last token that may be read and overwritten.
  static constexpr size_t kSlack = 24;

  const char* name;

  // The tokens of [line, line + size), separated by blanks. size <= kMaxLine; out has room for
  // kMaxTokens and kSlack. Returns their number.
  size_t (*tokens)(const char* line, size_t size, const TokenColumns& out);

  // The fields of [line, line + size), separated by tabs, empty ones too. The first `decimals` are
  // converted as above; the others as hexadecimal digits of either case, where `marks` is 0 or, for
  // another byte or over 16 of them, kNotANumber. False unless there are exactly `fields`.
  bool (*fields)(const char* line, size_t size, size_t fields, size_t decimals,
                 const TokenColumns& out);
};

// Room for kMaxTokens tokens.
class TokenBuffer {
 public:
  TokenColumns columns() { return {values_.get(), sizes_.get(), ends_.get(), marks_.get()}; }

 private:
  static constexpr size_t kRoom = TokenKernels::kMaxTokens + TokenKernels::kSlack;
  const std::unique_ptr<uint64_t[]> values_{new uint64_t[kRoom]};
  const std::unique_ptr<uint32_t[]> sizes_{new uint32_t[kRoom]};
  const std::unique_ptr<uint32_t[]> ends_{new uint32_t[kRoom]};
  const std::unique_ptr<uint16_t[]> marks_{new uint16_t[kRoom]};
};

// The kernels in use: the widest path the processor has, unless SelectTokenKernels chose another;
// nullptr for the plain one.
const TokenKernels* ActiveTokenKernels();

// "avx512", "avx2", "plain" or "auto". InvalidArgument for another name or a path that this
// processor lacks.
Status SelectTokenKernels(const char* name);

}  // namespace pbx::feed
