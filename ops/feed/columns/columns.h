// Columns: converts Arrow record batches (from Parquet or Arrow IPC) to the columns of instances,
// in one pass over their buffers.
#pragma once

#include <string>
#include <vector>

#include "feed/columns/arrow_abi.h"
#include "feed/text/parser.h"
#include "feed/text/schema.h"

namespace pbx {

// A record batch: a struct of columns. The caller owns it.
struct ColumnBatch {
  const ArrowSchema* type;
  const ArrowArray* values;
};

// Checks that each column of the schema exists exactly once, with a type that its slot accepts:
//   label   a number or a bool
//   dense   a number or a bool (dim 1); a list, large_list or fixed_size_list of them
//   sparse  an integer; a list, large_list or fixed_size_list of them. With `hash`: also a string
//           or binary, or a list of them
//   all     the type null, or a list of it where a list is accepted: each value is null
//   the weights of a weighted slot: a number or a bool; a list of them
//   tags    a string or binary; for ins_id also an integer, whose decimal digits are the id; for
//           time an integer
// InvalidArgument names the slot, its column, the expected type and the actual type.
Status CheckColumns(const FeedSchema& schema, const ArrowSchema& type);

// Parses the rows of the batches, in order, and applies the schema's transforms. A row counts as a
// line of the ParsedChunk. In a sparse slot, a negative integer i is the feasign 2^64 + i, so an
// int64 covers the whole range of feasigns too; 0 means no feasign. With `hash`, the decimal digits
// of an integer are hashed, those of 0 too.
//
// A null weight, or a null in place of the weights of a row, is 1. A row is malformed if the number
// of its weights is not that of its ids, or a weight is outside [0, kMostWeight].
//
// A null in a sparse slot, alone or in a list, means no feasign. A null in a dense slot gets the
// slot's default. A null content is empty. A row is malformed if it has a null or empty ins_id; a
// null or invalid log key; a null or negative time; a null label, or a label outside [0, 1]; a null
// dense value without a default; a dense value that is not finite or is beyond kMostDense of
// dense_limits.h; or a dense list whose length is not dim.
//
// Returns InvalidArgument in the same cases as CheckColumns, and Corruption if offsets are outside
// of their buffers. The Arrow interface does not give the size of string buffers, so the code that
// reads a file must check that its batches are valid (pyarrow: RecordBatch.validate()).
Status ParseColumns(const FeedSchema& schema, const std::vector<ColumnBatch>& batches,
                    ParsedChunk* out);

}  // namespace pbx
