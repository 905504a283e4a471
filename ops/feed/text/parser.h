// Parsing: bytes of text to columns. One function for all formats, without state between calls, so
// that any number of threads can parse different chunks, and a fuzzer can call it with any bytes.
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
  std::string excerpt;  // first 80 bytes, unprintable bytes as \xNN
};

// The dense value of a slot that is farthest from 0, if it is large: see dense_limits.h.
struct LargeValue {
  uint32_t slot = 0;  // number among the dense slots
  uint64_t line = 0;  // 0-based, within the chunk
  float value = 0;    // as it is fed, after clip
};

// The first integer of a dense slot that a float cannot hold.
struct RoundedValue {
  uint32_t slot = 0;  // as above
  uint64_t line = 0;
  double value = 0;
};

// Columns of the good lines. N = instances, S = sparse slots, W = dense width.
struct ParsedChunk {
  size_t instances = 0;            // N
  std::vector<float> labels;       // (N)
  std::vector<float> dense;        // (N, W)
  std::vector<long double> exact;  // (N, W) for Transform only, which empties it; see LineValues
  std::vector<uint64_t> feasigns;  // (nnz) instance-major, then in slot order, then in line order
  std::vector<float> weights;      // (nnz) of the feasigns; empty: each weight is 1
  bool nonzero = false;            // true: no feasign is 0; false: unknown
  bool single = false;             // true: every length is 1; false: unknown
  std::vector<uint32_t> lengths;   // (N, S) feasigns of each slot
  TagColumns tags;                 // (N) the tags of the schema
  uint64_t lines = 0;              // including empty lines
  uint64_t bad_lines = 0;
  uint64_t left_out = 0;           // lines of the other side of a holdout (holdout.h)
  std::vector<BadLine> first_bad;  // at most 8
  std::vector<LargeValue> large;   // at most one per dense slot
  // At most one per dense slot. Only a limited number of lines of text is looked at.
  std::vector<RoundedValue> rounded;
  // (S) The number of lists that max_length cut, and the number of feasigns that it dropped. Both
  // are empty if no list was cut.
  std::vector<uint64_t> cut_lists;
  std::vector<uint64_t> cut_values;

  // Copies feasigns [first, first + n) of another chunk to the end, with their weights. If only one
  // of the chunks has weights, each weight of the other is 1.
  void AddFeasigns(const ParsedChunk& from, size_t first, size_t n);
};

// Parses whole lines. Lines end with '\n', which the last line may lack; a '\r' before it is
// dropped, and so is a UTF-8 byte order mark at the start of a line. Empty lines are only counted
// in `lines`. A malformed line adds only a count and, for the first 8, a BadLine. Never reads
// outside [data, data + size). The result is the same on every vector path. InvalidArgument only
// for an invalid schema (two labels, duplicate name, unknown Criteo column, dim < 1, more than
// 65535 sparse slots).
//
// The schema's transforms are applied to the good lines: see transform.h.
//
// What is malformed, by format:
//   all            a byte that is not UTF-8; a NUL byte; a line longer than max_line_bytes; a label
//                  outside [0, 1] or not a number; a dense value that is not a finite number, or
//                  beyond kMostDense of dense_limits.h after clip and log1p; a weight outside [0,
//                  kMostWeight]; a feasign that is not a decimal in [0, 2^64 - 1] (a sign is not a
//                  digit)
//   multislot      per slot in order "n v1 .. vn": n missing, not a number or 0; fewer values than
//                  n; n != dim for a dense slot, n != 1 for the label; anything left over
//   feasign_slot   tokens "value:slot" separated by blanks, with floats as values of label and
//                  dense slots. Slots that the schema does not name are ignored, as is usual for
//                  this format. Malformed: a token without ':', or an unknown slot with a control
//                  byte; label missing or repeated; number of dense values != dim
//   slot_value     the same with "slot:value"
//   criteo_tsv     40 tab-separated columns: label, I1..I13 (decimal integer or empty), C1..C26
//                  (1 to 16 hexadecimal digits or empty), checked even if no slot uses them.
//                  A dense slot on I<k> is log(1 + max(v, 0)), or 0 if empty. A sparse slot on I<k>
//                  is the bucket floor(ln(v)^2) if v > 2, otherwise v, as a feasign of that column;
//                  empty has its own bucket. A sparse slot on C<k> is the token's value, with a tag
//                  so that 0 is not padding; an empty token is no feasign
//   multislot with tags  see tags.h: a missing tag, a count other than 1, a text that is not a log
//                  key
//   csv            cells separated by csv_delimiter. A cell may be "quoted", with "" for a quote in
//                  it, but on one line. A cell with a text of csv_nulls is empty. Malformed: a
//                  number of cells other than the number of columns; a quote that is not closed; a
//                  cell of a dense slot whose number of values, separated by csv_list_separator, is
//                  not dim
// A weighted slot has "id:weight" for an id: a weight that is not a number in [0, kMostWeight] is
// malformed. In feasign_slot and slot_value, values of a schema with such a slot may contain a ':',
// and names may not.
// A sparse slot with `hash` has strings, not decimals: tokens, or in csv the values of the cell,
// unchanged. An empty string is no feasign. A dense slot with a default gets it if it is absent
// (feasign_slot, slot_value) or its cell is empty (csv).
Status ParseChunk(const FeedSchema& schema, const char* data, size_t size, ParsedChunk* out);

// Reads the names of the columns from the first line of a CSV file. InvalidArgument unless it names
// each column of the schema once.
Status SetCsvHeader(const char* line, size_t size, FeedSchema* schema);

}  // namespace pbx
