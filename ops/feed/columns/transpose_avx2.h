// The AVX2 build of transpose.h. For transpose.cc only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pbx::feed {

// Columns and rows of a tile.
constexpr size_t kIdsAcross = 4;
constexpr size_t kFloatsAcross = 8;

// n: a multiple of the rows of a tile; count: at least the columns of a tile. Returns a nonzero
// number if a value is 0.
uint64_t Avx2Ids(const uint64_t* const* columns, size_t count, size_t n, uint64_t* rows);
// Returns a nonzero number if a value is not finite.
uint32_t Avx2Floats(const uint32_t* const* columns, size_t count, size_t n, float* rows);

}  // namespace pbx::feed
