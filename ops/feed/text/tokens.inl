// Body of tokens_<path>.cc: included once per vector path, inside an anonymous namespace, after the
// definitions of the path. A Vector has kWidth / 2 lanes of 16 bytes, and a lane holds the last 16
// bytes of a token. Two vectors, of the even and the odd tokens, are converted together.

inline uint32_t SizeOf(uint32_t bytes) { return (bytes < 127 ? bytes : 127) * 0x01010101; }

// Finds the ends and sizes of the tokens between separators; the last one ends with the line.
// Returns their number.
template <bool blanks>
inline size_t Cut(const char* line, size_t size, const TokenColumns& out) {
  uint32_t* const ends = out.ends;
  uint32_t* const sizes = out.sizes;
  uint32_t* next = ends;
  uint64_t before = 1;  // whether a separator is before the block; as at the start of a line
  uint64_t empty = 0;
  for (size_t at = 0; at < size; at += 64) {
    uint64_t bits = blanks ? Blanks(line + at) : Tabs(line + at);
    if (size - at < 64) bits &= ~(~uint64_t{0} << (size - at));
    empty |= bits & (bits << 1 | before);
    before = bits >> 63;
    next = PutBits(bits, static_cast<uint32_t>(at), next);
  }
  *next++ = static_cast<uint32_t>(size);
  size_t n = static_cast<size_t>(next - ends);
  if (blanks && (empty != 0 || (n > 1 && ends[n - 2] + 1 == size))) {  // none between blanks
    size_t kept = 0;
    for (size_t i = 0, begin = 0; i < n; ++i) {
      const uint32_t end = ends[i];
      sizes[kept] = SizeOf(end - static_cast<uint32_t>(begin));
      ends[kept] = end;
      kept += end != begin;
      begin = end + 1;
    }
    n = kept;
  } else {
    sizes[0] = SizeOf(ends[0]);
    for (size_t i = 1; i < n; ++i) sizes[i] = SizeOf(ends[i] - ends[i - 1] - 1);
  }
  for (size_t i = n; i < n + kWidth; ++i) {
    ends[i] = static_cast<uint32_t>(size);
    sizes[i] = 0;
  }
  return n;
}

// The numbers of kWidth tokens of up to 16 digits.
inline Vector Sixteen(Vector even, Vector odd) {
  const Vector pairs_even = MulAdd8(even, Repeat16(1 << 8 | 10));
  const Vector pairs_odd = MulAdd8(odd, Repeat16(1 << 8 | 10));
  const Vector fours_even = MulAdd16(pairs_even, Repeat32(1 << 16 | 100));
  const Vector fours_odd = MulAdd16(pairs_odd, Repeat32(1 << 16 | 100));
  const Vector eights = MulAdd16(Pack32(fours_even, fours_odd), Repeat32(1 << 16 | 10000));
  return Add64(Mul32(eights, Repeat64(100000000)), High32(eights));
}

// Converts tokens [at, at + kWidth).
inline void Convert(const char* line, size_t at, const TokenColumns& out) {
  const uint32_t* const ends = out.ends + at;
  const Sizes sizes = LoadSizes(out.sizes + at);
  uint64_t even_odd, odd_odd;
  const Vector even = Digits(Lanes<0>(line - 16, ends), EvenSizes(sizes), &even_odd);
  const Vector odd = Digits(Lanes<1>(line - 16, ends), OddSizes(sizes), &odd_odd);
  const Vector low = Sixteen(even, odd);
  uint64_t* const values = out.values + at;
  uint16_t* const marks = out.marks + at;
  if (!AnyAbove(sizes, 15)) {
    Store(values, low);
    StoreMarks(marks, even_odd, odd_odd, low);
    return;
  }

  // 16 to 20 digits, or more with leading zeros.
  uint64_t even_high_odd, odd_high_odd;
  const Vector high =
      Sixteen(Digits(Lanes<0>(line - 32, ends), Less16(EvenSizes(sizes)), &even_high_odd),
              Digits(Lanes<1>(line - 32, ends), Less16(OddSizes(sizes)), &odd_high_odd));
  constexpr int64_t k1e16 = 10000000000000000;
  const Vector sum = Add64(Add64(Mul32(high, Repeat64(k1e16 & 0xffffffff)), low),
                           Low32ToHigh(Mul32(high, Repeat64(k1e16 >> 32))));
  Store(values, sum);
  StoreMarks(marks, even_odd, odd_odd, sum);
  // 1844 * 10^16 is the last multiple of 10^16 below 2^64; the sum may still wrap around.
  const uint32_t wrapped = Above(high, Repeat64(1844)) | Below(sum, low);
  if ((wrapped | even_high_odd | odd_high_odd | even_odd | odd_odd) == 0 && !AnyAbove(sizes, 32)) {
    return;
  }
  uint16_t low_odd[kWidth], high_odd[kWidth];
  StoreOdd(low_odd, even_odd, odd_odd);
  StoreOdd(high_odd, even_high_odd, odd_high_odd);
  for (size_t i = 0; i < kWidth; ++i) {
    const size_t size = out.size(at + i);
    const bool odd_and_long = (low_odd[i] | high_odd[i]) != 0 && size > 15;
    if ((wrapped >> i & 1) != 0 || odd_and_long || size > 32) marks[i] = TokenColumns::kNotANumber;
  }
}

size_t Tokens(const char* line, size_t size, const TokenColumns& out) {
  const size_t n = Cut<true>(line, size, out);
  for (size_t i = 0; i < n; i += kWidth) Convert(line, i, out);
  return n;
}

bool Fields(const char* line, size_t size, size_t fields, size_t decimals,
            const TokenColumns& out) {
  if (Cut<false>(line, size, out) != fields) return false;
  for (size_t i = 0; i < decimals; i += kWidth) Convert(line, i, out);
  for (size_t i = decimals; i < fields; i += kWidth) {
    const Sizes sizes = LoadSizes(out.sizes + i);
    uint64_t even_odd, odd_odd;
    const uint32_t* const ends = out.ends + i;
    const Vector even = Nibbles(Lanes<0>(line - 16, ends), EvenSizes(sizes), &even_odd);
    const Vector odd = Nibbles(Lanes<1>(line - 16, ends), OddSizes(sizes), &odd_odd);
    const Vector bytes =
        Pack16(MulAdd8(even, Repeat16(1 << 8 | 16)), MulAdd8(odd, Repeat16(1 << 8 | 16)));
    Store(out.values + i, Swap64(bytes));
    StoreOdd(out.marks + i, even_odd, odd_odd);
  }
  for (size_t i = decimals; i < fields; ++i) {
    if (out.marks[i] != 0 || out.size(i) > 16) out.marks[i] = TokenColumns::kNotANumber;
  }
  return true;
}
