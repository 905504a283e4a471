// Transposes columns to rows, for instances with one value per slot from Arrow columns.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pbx::feed {

// Letters: C = columns, n = rows of each column.

// rows[r * C + c] = columns[c][r]. True if no value is 0. All values are written in both cases.
bool TransposeIds(const uint64_t* const* columns, size_t count, size_t n,
                  uint64_t* rows);  // (n, C)

// Moves the ids that are not 0 to the front and returns their number. lengths[i]: 1, or 0 for a 0.
size_t DropZeros(uint64_t* ids, size_t n, uint32_t* lengths);

// The same as TransposeIds for the bits of floats. True if all are finite.
bool TransposeFloats(const uint32_t* const* columns, size_t count, size_t n,
                     float* rows);  // (n, C)

}  // namespace pbx::feed
