// Body of tokens_<path>.cc: included once per vector path, inside an anonymous namespace, after the
// path's own parts:
//   Vector                    32 bytes, of which the last stands right before a token's end
//   Load(end, n)              the n <= 32 bytes before `end` less '0'; zeros before them
//   NotDigits(v)              a bit for each byte above 9
//   After(at, a, b)           bytes of a after place `at`, of b up to it
//   Groups(v, tens)           the numbers of bytes 0..15 and 16..31, see there
//   ConvertHex(end, n, &x)    see there
//   Blanks(p), Tabs(p)        a bit for each of 64 bytes

// Offsets of the set bits of a block. Eight are written at a time, whether or not they are there,
// so that no branch depends on how many.
inline uint32_t* PutBits(uint64_t bits, uint32_t base, uint32_t* out) {
  uint32_t* const end = out + __builtin_popcountll(bits);
  do {
    for (int i = 0; i < 8; ++i) {
      out[i] = base + static_cast<uint32_t>(__builtin_ctzll(bits | uint64_t{1} << 63));
      bits &= bits - 1;
    }
    out += 8;
  } while (out < end);
  return end;
}

// Ends of what the separators part, the end of the line last.
template <bool blanks>
inline size_t FindEnds(const char* line, size_t size, uint32_t* ends) {
  uint32_t* out = ends;
  for (size_t at = 0; at < size; at += 64) {
    uint64_t bits = blanks ? Blanks(line + at) : Tabs(line + at);
    if (size - at < 64) bits &= ~(~uint64_t{0} << (size - at));
    out = PutBits(bits, static_cast<uint32_t>(at), out);
  }
  *out++ = static_cast<uint32_t>(size);
  return static_cast<size_t>(out - ends);
}

inline void Sum(Vector digits, Token* token) {
  uint64_t high, low;
  Groups(digits, &high, &low);
  token->value = high * 10000000000000000u + low;
  // 1844 * 10^16 is the last multiple below 2^64; the sum may still wrap around.
  token->flags |= high > 1844 || token->value < low ? Token::kOther : 0;
}

// A number with a sign or a point: the digits before the point move up to those behind it.
inline void ConvertDecimal(const char* end, size_t size, uint32_t not_digits, Token* token) {
  const bool negative = end[-static_cast<std::ptrdiff_t>(size)] == '-';
  if (negative) not_digits &= not_digits - 1;  // the sign is the first of them
  size -= negative;
  token->flags = negative ? Token::kNegative : 0;
  const uint32_t last = static_cast<uint32_t>(__builtin_clz(not_digits | 1));  // bytes after it
  if (not_digits == 0) {
    if (size == 0) token->flags |= Token::kOther;
    Sum(Load(end, size), token);
    return;
  }
  if ((not_digits & (not_digits - 1)) != 0 || end[-1 - static_cast<std::ptrdiff_t>(last)] != '.' ||
      size == 1) {
    token->flags |= Token::kOther;
    return;
  }
  token->flags |= Token::kPoint;
  token->fraction = static_cast<uint8_t>(last);
  Sum(After(31 - static_cast<int>(last), Load(end, size), Load(end - 1, size - 1)), token);
}

inline void Convert(const char* line, size_t begin, size_t end, Token* token) {
  const size_t size = end - begin;
  token->value = 0;
  token->end = static_cast<uint32_t>(end);
  token->fraction = 0;
  token->flags = 0;
  const Vector digits = Load(line + end, size < 32 ? size : 32);
  const uint32_t not_digits = NotDigits(digits);
  if (size - 1 >= 32) {
    token->flags = Token::kOther;
  } else if (not_digits != 0) {
    ConvertDecimal(line + end, size, not_digits, token);
  } else {
    Sum(digits, token);
  }
}

size_t Tokens(const char* line, size_t size, uint32_t* ends, Token* out) {
  const size_t n = FindEnds<true>(line, size, ends);
  Token* next = out;
  size_t begin = 0;
  for (size_t i = 0; i < n; ++i) {
    const size_t end = ends[i];
    Convert(line, begin, end, next);
    next += end != begin;  // between two blanks there is none
    begin = end + 1;
  }
  return static_cast<size_t>(next - out);
}

bool Fields(const char* line, size_t size, size_t fields, size_t decimals, uint32_t* ends,
            Token* out) {
  if (FindEnds<false>(line, size, ends) != fields) return false;
  size_t begin = 0;
  for (size_t i = 0; i < fields; ++i) {
    const size_t end = ends[i];
    if (i < decimals) {
      Convert(line, begin, end, &out[i]);
    } else {
      const bool hex = end - begin <= 16 && ConvertHex(line + end, end - begin, &out[i].value);
      out[i].end = static_cast<uint32_t>(end);
      out[i].flags = hex && end != begin ? 0 : Token::kOther;
    }
    begin = end + 1;
  }
  return true;
}
