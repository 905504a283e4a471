// Converts the tokens of one line to numbers by vector instructions, for the fast paths of the
// formats. tokens.inl is compiled for AVX-512 and for AVX2 (tokens_<path>.cc), and a path is chosen
// at run time; the results are the same. There is no plain build: a processor without AVX2 parses
// with scan.h. scan.h also finds the reason why a line is malformed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "base/status.h"
#include "feed/text/scan.h"

namespace pbx::feed {

// T tokens of a line, as columns.
struct TokenColumns {
  uint64_t* values;  // (T) the token as an integer; a byte that is not a digit counts as 0
  uint32_t* sizes;   // (T) size of the token in bytes, at most 127, repeated in all four bytes
  uint32_t* ends;    // (T) offset of the byte after the token
  // (T) flags of each token. Bit 0 (kZero): the value is 0. Bits 1 to 15: one for each of the
  // token's last 15 bytes, set if that byte is not a digit; bit 15 stands for the last byte, bit 14
  // for the one before it, and so on. kNotANumber, all bits set: the entry of `values` is
  // meaningless, because the number is above 2^64 - 1, the token is longer than 32 bytes, or it has
  // 16 or more bytes and one of them is not a digit.
  uint16_t* marks;

  static constexpr uint16_t kZero = 1;
  static constexpr uint16_t kNotANumber = 0xffff;
  unsigned bytes_odd(size_t i) const { return marks[i] & ~unsigned{kZero}; }
  size_t size(size_t i) const { return sizes[i] & 0xff; }
};

// A number as the quotient of two exact doubles, so that it is rounded correctly.
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

// Sets *out to token i, with the value of ScanFloat. False if the token needs more than a sign, 15
// bytes and one division of exact doubles; then call ScanFloat.
inline bool QuotientOf(const char* line, const TokenColumns& tokens, size_t i, Quotient* out) {
  // Up to this value, `before` (a product with a rounded inverse) has an error of less than 2^-6.
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
  // The remaining byte must be a decimal point, which counts as the digit 0 in `padded`.
  const unsigned fraction = 15u - static_cast<unsigned>(__builtin_ctz(odd));
  if ((odd & (odd - 1)) != 0 || *(end - 1 - fraction) != '.' || size == 1u + negative) return false;
  // The integer before the point. The remainder is less than a tenth, so rounding gives this
  // integer.
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
  // Whole vectors are loaded, so this many bytes before and after a line must be readable.
  static constexpr size_t kReach = 64;
  // Longer lines are parsed with scan.h, so that the tokens fit into the L2 cache.
  static constexpr size_t kMaxLine = size_t{1} << 14;
  static constexpr size_t kMaxTokens = kMaxLine + 1;
  // This many entries after the last token may be read and overwritten.
  static constexpr size_t kSlack = 24;

  const char* name;

  // Converts the tokens of [line, line + size), separated by blanks. size <= kMaxLine; out has room
  // for kMaxTokens and kSlack. Returns the number of tokens.
  size_t (*tokens)(const char* line, size_t size, const TokenColumns& out);

  // Converts the fields of [line, line + size), separated by tabs, including empty fields. The
  // first `decimals` fields are converted as above. The others are hexadecimal digits of either
  // case; their `marks` are 0, or kNotANumber if there is another byte or more than 16 digits.
  // False unless the line has exactly `fields` fields.
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

// The kernels in use: the widest path that the processor supports, unless SelectTokenKernels chose
// another. nullptr: the plain path.
const TokenKernels* ActiveTokenKernels();

// "avx512", "avx2", "plain" or "auto". InvalidArgument for other names, and if this processor does
// not support the path.
Status SelectTokenKernels(const char* name);

}  // namespace pbx::feed
