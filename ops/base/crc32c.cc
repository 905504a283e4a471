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
__attribute__((target("sse4.2"))) uint32_t ByInstruction(const void* data, size_t size,
                                                         uint32_t crc) {
  const unsigned char* p = static_cast<const unsigned char*>(data);
  uint64_t state = ~crc;
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
