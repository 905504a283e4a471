// Holdout: the rows of files that training leaves out, and evaluations read. Which rows these are
// depends on the rows and their file alone: not on threads, on chunks, or on the ranks that read
// the file in parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "feed/text/parser.h"
#include "feed/text/schema.h"

namespace pbx {

struct HoldoutRule {
  double share = 0;        // in (0, 1): a hash decides; 0: at_least or equals does
  bool of_values = false;  // share: rows with equal values are on one side
  uint64_t seed = 0;
  std::string at_least;  // a number, or else a text; empty: none
  std::string equals;    // empty: none
};

class Holdout {
 public:
  // InvalidArgument unless exactly one of share, at_least and equals is given.
  static Result<Holdout> From(const HoldoutRule& rule);

  // Whether the rule reads a value of each row.
  bool reads_values() const { return rule_.of_values || rule_.share == 0; }

  // The number of a file for Holds. name: without folders, so that a file may be moved.
  uint64_t FileNumber(std::string_view name) const;

  // Whether a row is held out. value: of its column, if reads_values(). place: anything that tells
  // the rows of a file apart. With a share, the place of a row without a value decides; otherwise
  // such a row is not held out. InvalidArgument if at_least is a number and the value is not.
  Result<bool> Holds(std::string_view value, uint64_t file, uint64_t place) const;

 private:
  HoldoutRule rule_;
  uint64_t bound_ = 0;  // of the hashes of a share
  bool numeric_ = false;
  long double number_ = 0;  // at_least
};

// A chunk of whole lines of a file.
struct HoldoutLines {
  std::string_view file;  // its name, without folders
  // The position in the file at which the chunk ends. The place of a line is where it begins; what
  // is before the first line of a file may have been changed.
  uint64_t end = 0;
  size_t column = 0;  // kCsv, if the rule reads values: the number of the column
};

// Writes the lines that are held out, or the others, to *out. Each line that is left out becomes an
// empty one, so that the others keep their numbers; with drop, it disappears. Empty lines stay.
// schema: of the CSV. A line that is malformed, or longer than max_line_bytes, may have no value.
// Returns the number of lines left out. InvalidArgument as Holds.
Result<uint64_t> KeepLines(const Holdout& holdout, const FeedSchema& schema,
                           const HoldoutLines& lines, bool held_out, bool drop, const char* data,
                           size_t size, std::string* out);

// Successive rows of a file that is not text.
struct HoldoutRows {
  std::string_view file;  // its name, without folders
  uint64_t first = 0;     // the place of the first row; each next one is higher by 1
  size_t count = 0;       // N
  // The values, if the rule reads them: row i has bytes [offsets[i], offsets[i + 1]).
  const int64_t* offsets = nullptr;  // (N + 1) ascending
  const char* bytes = nullptr;
};

// (N) 1 for the rows that are held out, or for the others. InvalidArgument as Holds.
Result<std::vector<uint8_t>> KeepRows(const Holdout& holdout, const HoldoutRows& rows,
                                      bool held_out);

// Corrects a chunk that was parsed from these rows alone, out of so many: numbers and counts of
// lines are then those of all rows. kept: ascending.
void CountAllRows(const std::vector<uint64_t>& kept, uint64_t rows, ParsedChunk* chunk);

}  // namespace pbx
