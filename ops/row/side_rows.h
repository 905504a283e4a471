// SideRows: rows to be added to a side table (table/side_table.h), from one chunk of a file or one
// array.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pbx {

// n = rows, D = columns of the side table.
struct SideRows {
  std::string origin;              // the file, for messages; empty: an array
  std::vector<uint64_t> lines;     // (n) line of each row in origin, from 1; empty: an array
  std::vector<float> values;       // (n, D)
  std::string key_bytes;           // the keys one after the other
  std::vector<uint64_t> key_ends;  // (n) where each key ends; empty if rows have no keys

  size_t size(size_t dim) const { return dim == 0 ? 0 : values.size() / dim; }

  std::string_view key(size_t row) const {
    const size_t begin = row == 0 ? 0 : key_ends[row - 1];
    return {key_bytes.data() + begin, key_ends[row] - begin};
  }

  // "a.txt:12", or "row 12 of the array".
  std::string Where(size_t row) const {
    if (lines.empty()) return "row " + std::to_string(row) + " of the array";
    return origin + ":" + std::to_string(lines[row]);
  }
};

}  // namespace pbx
