// Text of a side table: one row per line, "key v1 .. vD", separated by blanks or tabs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "row/side_rows.h"

namespace pbx {

struct SideTextLayout {
  size_t dim = 1;                   // D
  bool numbered = false;            // the key is the row's number: 0, 1, 2, ... without a gap
  size_t max_line_bytes = 1 << 20;  // a longer line is an error
};

// Appends the rows of whole lines to `out`. Lines end with '\n', which the last line may lack; a
// '\r' before it is dropped, and empty lines are skipped. *line: the number of lines of the file
// before this chunk; the call adds those of the chunk. first_row: the number of the first row, if
// rows are numbered. Never reads outside [data, data + size).
//
// One bad line is an error of the whole call, because without it every later row would get another
// number. InvalidArgument "file:line: what: the line's beginning" for a key that is missing, out of
// order or too large; fewer or more than D values; a value that is not a finite number; a NUL byte;
// a line that is too long.
Status ParseSideText(const SideTextLayout& layout, const char* data, size_t size,
                     uint64_t first_row, uint64_t* line, SideRows* out);

}  // namespace pbx
