// Columns side by side become rows: what instances of one value a slot take from Arrow columns.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pbx::feed {

// Letters: C = columns, n = rows of each.

// rows[r * C + c] = columns[c][r]. True when no value is 0; all are written anyway.
bool TransposeIds(const uint64_t* const* columns, size_t count, size_t n,
                  uint64_t* rows);  // (n, C)

// The same of the bits of floats. True when all are finite.
bool TransposeFloats(const uint32_t* const* columns, size_t count, size_t n,
                     float* rows);  // (n, C)

}  // namespace pbx::feed
