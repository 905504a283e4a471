// The values of a column or of an intermediate result, of one block of rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace pbx::expr {

constexpr size_t kRows = 1024;  // of a block, at most: its values fit into the cache

constexpr double kMostNumber = std::numeric_limits<double>::max();

enum class Kind : uint8_t {
  kUnknown,  // of a column or a null whose use does not say its type
  kBool,
  kInt,    // int64; the bits of a feasign
  kFloat,  // float64, always finite
  kText,   // UTF-8, never empty: an empty text is null
  kTime,   // microseconds since 1970 in the local time of a zone
  kId,     // a feasign, in `ints`. 0: none; `valid` is not set
};

struct Type {
  Kind kind = Kind::kUnknown;
  bool list = false;  // a list is never null and has no null items
  int zone = -1;      // kTime: an index in Program::zones

  bool operator==(const Type& o) const {
    return kind == o.kind && list == o.list && zone == o.zone;
  }
};

// A text is never empty, so a view without bytes stands for null in `texts` too.
struct Vector {
  std::vector<uint8_t> valid;           // (n) 1 or 0: null. Values of nulls are unspecified
  std::vector<uint8_t> bools;           // (n) 0 or 1
  std::vector<int64_t> ints;            // (n), or the items: kInt, kTime
  std::vector<double> floats;           // (n)
  std::vector<std::string_view> texts;  // (n), or the items; of bytes that outlive the block
  std::vector<uint32_t> ends;           // (n) list: where the items of each row end
  std::string bytes;                    // of texts that were made here
  std::string_view around;              // of a column: bytes that can be read around its texts

  // Makes room for n rows of a type. A list gets no rows: AddItem and EndRow add them.
  void Reset(Type type, size_t n) {
    bytes.clear();
    around = {};
    ends.clear();
    if (type.list) {
      ints.clear();
      texts.clear();
      ends.reserve(n);
      return;
    }
    if (type.kind != Kind::kId) valid.resize(n);
    if (type.kind == Kind::kBool) bools.resize(n);
    if (type.kind == Kind::kInt || type.kind == Kind::kTime || type.kind == Kind::kId) {
      ints.resize(n);
    }
    if (type.kind == Kind::kFloat) floats.resize(n);
    if (type.kind == Kind::kText) texts.resize(n);
  }
  void EndRow(size_t items) { ends.push_back(static_cast<uint32_t>(items)); }
  size_t begin(size_t row) const { return row == 0 ? 0 : ends[row - 1]; }
  size_t end(size_t row) const { return ends[row]; }
};

}  // namespace pbx::expr
