#include "base/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace pbx {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected

// tables[k][b]: the CRC of byte b followed by k zero bytes.
using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables MakeTables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 255];
    }
  }
  return tables;
}
constexpr Tables kTables = MakeTables();

uint64_t Load64(const unsigned char* p) {
  uint64_t word;
  std::memcpy(&word, p, 8);
  return word;
}

#if defined(__x86_64__)
constexpr size_t kLane = 1024;  // bytes

// kPastLane[k][b]: the state b << 8 * k after a lane of zero bytes. The map is linear, so the
// states of lanes that each started from 0 can be combined.
using PastLane = std::array<std::array<uint32_t, 256>, 4>;

constexpr PastLane MakePastLane() {
  std::array<uint32_t, 32> of_bit{};
  for (size_t bit = 0; bit < 32; ++bit) {
    uint32_t state = uint32_t{1} << bit;
    for (size_t byte = 0; byte < kLane; ++byte) state = (state >> 8) ^ kTables[0][state & 255];
    of_bit[bit] = state;
  }
  PastLane tables{};
  for (size_t k = 0; k < 4; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      for (size_t bit = 0; bit < 8; ++bit) {
        if ((byte >> bit & 1) != 0) tables[k][byte] ^= of_bit[8 * k + bit];
      }
    }
  }
  return tables;
}
constexpr PastLane kPastLane = MakePastLane();

uint64_t SkipLane(uint64_t state) {
  return kPastLane[0][state & 255] ^ kPastLane[1][state >> 8 & 255] ^
         kPastLane[2][state >> 16 & 255] ^ kPastLane[3][state >> 24 & 255];
}

__attribute__((target("sse4.2"))) uint32_t ByInstruction(const void* data, size_t size,
                                                         uint32_t crc) {
  const unsigned char* p = static_cast<const unsigned char*>(data);
  uint64_t state = ~crc;
  // The instruction takes three cycles, and one can start in each cycle: three lanes run in
  // parallel.
  for (; size >= 3 * kLane; p += 3 * kLane, size -= 3 * kLane) {
    uint64_t second = 0, third = 0;
    for (size_t at = 0; at < kLane; at += 8) {
      state = _mm_crc32_u64(state, Load64(p + at));
      second = _mm_crc32_u64(second, Load64(p + kLane + at));
      third = _mm_crc32_u64(third, Load64(p + 2 * kLane + at));
    }
    state = SkipLane(SkipLane(state) ^ second) ^ third;
  }
  for (; size >= 8; p += 8, size -= 8) state = _mm_crc32_u64(state, Load64(p));
  uint32_t low = static_cast<uint32_t>(state);
  for (; size > 0; ++p, --size) low = _mm_crc32_u8(low, *p);
  return ~low;
}

using Function = uint32_t (*)(const void*, size_t, uint32_t);
Function Choose() { return __builtin_cpu_supports("sse4.2") ? ByInstruction : Crc32cByTable; }
#endif

}  // namespace

uint32_t Crc32cByTable(const void* data, size_t size, uint32_t crc) {
  const unsigned char* p = static_cast<const unsigned char*>(data);
  crc = ~crc;
  for (; size >= 8; p += 8, size -= 8) {
    const uint64_t word = Load64(p) ^ crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) crc ^= kTables[7 - k][(word >> (8 * k)) & 255];
  }
  for (; size > 0; ++p, --size) crc = (crc >> 8) ^ kTables[0][(crc ^ *p) & 255];
  return ~crc;
}

uint32_t Crc32c(const void* data, size_t size, uint32_t crc) {
#if defined(__x86_64__)
  static const Function function = Choose();
  return function(data, size, crc);
#else
  return Crc32cByTable(data, size, crc);
#endif
}

}  // namespace pbx
