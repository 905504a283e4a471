// The tokens of one line as numbers, by vector instructions: what the formats' fast ways are made
// of. Compiled for AVX-512 and for AVX2 (tokens_<path>.cc over tokens.inl) and chosen at run time,
// with the same results. There is no third copy: a processor without either parses with scan.h,
// which is also what tells why a line is malformed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace pbx::feed {

struct Token {
  enum Flags : uint8_t {
    kNegative = 1,  // a '-' stands first
    kPoint = 2,     // a '.' stands among the digits
    kOther = 4,     // empty, over 32 bytes, above 2^64 - 1, or of other bytes: ask scan.h
  };
  uint64_t value;    // the digits as one number, point and sign left out; unless kOther
  uint32_t end;      // offset of the byte after the token, from the beginning of the line
  uint8_t fraction;  // digits after the point
  uint8_t flags;     // 0: a plain integer
};

struct TokenKernels {
  // Loads are of whole vectors, so this many bytes on both sides of a line must be readable.
  static constexpr size_t kReach = 64;
  // A longer line is left to scan.h: the tokens of these stay within the second-level cache.
  static constexpr size_t kMaxLine = size_t{1} << 14;
  // Entries beyond the last token that `tokens` and `fields` may overwrite.
  static constexpr size_t kSlack = 8;
  static constexpr size_t kMaxTokens = kMaxLine + 1 + kSlack;

  const char* name;

  // The tokens of [line, line + size), separated by blanks. size <= kMaxLine. ends: scratch; both
  // have kMaxTokens. Returns their number.
  size_t (*tokens)(const char* line, size_t size, uint32_t* ends, Token* out);

  // The fields of [line, line + size), separated by tabs, empty ones too: `decimals` of them as
  // above, the others as 1 to 16 hexadecimal digits. 0 unless there are exactly `fields`.
  bool (*fields)(const char* line, size_t size, size_t fields, size_t decimals, uint32_t* ends,
                 Token* out);
};

// The kernels in use: the widest path the processor has, unless SelectTokenKernels chose another;
// nullptr for the plain one.
const TokenKernels* ActiveTokenKernels();

// "avx512", "avx2", "plain" or "auto". InvalidArgument for another name or a path that this
// processor lacks.
Status SelectTokenKernels(const char* name);

}  // namespace pbx::feed
