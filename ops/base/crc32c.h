// CRC32C (Castagnoli), by the processor's instruction if it has one (SSE 4.2), otherwise by table.
// Crc32c("123456789", 9) == 0xe3069283.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pbx {

// CRC of data continuing from `crc` (0 to start).
uint32_t Crc32c(const void* data, size_t size, uint32_t crc = 0);

// The same by table, on any processor.
uint32_t Crc32cByTable(const void* data, size_t size, uint32_t crc = 0);

}  // namespace pbx
