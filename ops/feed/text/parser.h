// Parsing: bytes of text to columns. One function for all formats, no state between calls, so that
// any number of threads can parse different chunks, and a fuzzer can call it with anything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "feed/text/schema.h"

namespace pbx {

struct BadLine {
  uint64_t line = 0;    // 0-based, within the chunk
  std::string reason;   // "slot 'C3': 'xyz' is not a hexadecimal token"
  std::string excerpt;  // first 80 bytes, unprintable ones as \xNN
};

// The dense value of one slot that is farthest from 0, where that is large: see dense_limits.h.
struct LargeValue {
  uint32_t slot = 0;  // among the dense ones
  uint64_t line = 0;  // 0-based, within the chunk
  float value = 0;    // as it is fed, after clip
};

// Columns of the good lines. N = instances, S = sparse slots, W = dense width.
struct ParsedChunk {
  size_t instances = 0;            // N
  std::vector<float> labels;       // (N)
  std::vector<float> dense;        // (N, W)
  std::vector<uint64_t> feasigns;  // (nnz) instance-major, then in slot order, then in line order
  bool nonzero = false;            // 0 is known not to be among the feasigns
  bool single = false;             // each length is known to be 1
  std::vector<uint32_t> lengths;   // (N, S) feasigns of each slot
  TagColumns tags;                 // (N) each that the schema asks for
  uint64_t lines = 0;              // lines seen, empty ones too
  uint64_t bad_lines = 0;
  std::vector<BadLine> first_bad;  // at most 8
  std::vector<LargeValue> large;   // at most one a dense slot
  // (S) Lists that max_length cut, and the feasigns that it left out; empty where it cut none.
  std::vector<uint64_t> cut_lists;
  std::vector<uint64_t> cut_values;
};

// Parses whole lines ('\n'; a '\r' before it is dropped; the last line may lack its '\n'). Empty
// lines are skipped and counted in `lines` only; a UTF-8 byte order mark at the start of a line is
// dropped. A malformed line adds nothing but a count and, among the first 8, a BadLine. Never reads
// outside [data, data + size). The result is the same on every vector path. InvalidArgument only
// for a schema that makes no sense (no label, duplicate name, unknown Criteo column, dim < 1, more
// than 65535 sparse slots).
//
// What schema's transforms say is done with the good lines: see transform.h.
//
// What is malformed, by format:
//   all            a NUL byte; a line longer than max_line_bytes; a label outside [0, 1] or not a
//                  number; a dense value that is not a finite number, or beyond kMostDense of
//                  dense_limits.h after clip and log1p; a feasign that is not a decimal in
//                  [0, 2^64 - 1] (a sign is not a digit)
//   multislot      per slot in order "n v1 .. vn": n missing, not a number or 0; fewer values than
//                  n; n != dim for a dense slot, n != 1 for the label; anything left over
//   feasign_slot   tokens "value:slot" separated by blanks; label and dense slots hold floats as
//                  value; slots that the schema does not name are ignored (that is the format's
//                  custom), but their token must have a ':' and no control byte; label missing or
//                  repeated; number of dense values != dim
//   slot_value     the same with "slot:value"
//   criteo_tsv     40 tab-separated columns: label, I1..I13 (decimal integer or empty), C1..C26
//                  (1 to 16 hexadecimal digits or empty), checked also where no slot uses them.
//                  A dense slot on I<k> is log(1 + max(v, 0)), 0 where empty. A sparse slot on I<k>
//                  is the bucket floor(ln(v)^2) for v > 2, else v, as a feasign of that column;
//                  empty is a bucket of its own. A sparse slot on C<k> is the token's value, tagged
//                  so that 0 is not padding; an empty token is no feasign
//   multislot with tags  see tags.h: a tag missing, a count that is not 1, a text that is no log
//                  key
//   csv            cells cut by csv_delimiter; one may be "quoted", with "" for a quote in it, but
//                  not broken over lines; one that is a text of csv_nulls is empty. Another number
//                  of cells than columns; a quote that does not end; values of a cell, cut by
//                  csv_list_separator: not dim for a dense slot
// A sparse slot with `hash` holds strings instead of decimals: tokens, or in csv the cell's values,
// as they are. An empty one is no feasign. A dense slot with a default takes it where it is absent
// (feasign_slot, slot_value) or its cell is empty (csv).
Status ParseChunk(const FeedSchema& schema, const char* data, size_t size, ParsedChunk* out);

// Takes the first line of a CSV file as the names of its columns. InvalidArgument when it does not
// have each column of the schema once.
Status SetCsvHeader(const char* line, size_t size, FeedSchema* schema);

}  // namespace pbx
