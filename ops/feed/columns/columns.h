// Columns: Arrow record batches (of Parquet, Arrow IPC) to the columns of instances, in one pass
// over the buffers they lie in.
#pragma once

#include <string>
#include <vector>

#include "feed/columns/arrow_abi.h"
#include "feed/text/parser.h"
#include "feed/text/schema.h"

namespace pbx {

// One record batch: a struct of columns. Borrowed.
struct ColumnBatch {
  const ArrowSchema* type;
  const ArrowArray* values;
};

// Each column that the schema reads is there, once, and has a type that its slot can take:
//   label   a number or a bool
//   dense   a number or a bool (dim 1); a list, large_list or fixed_size_list of them
//   sparse  an integer; a list, large_list or fixed_size_list of them. With `hash`: a string or
//           binary, or a list of them
//   tags    a string or binary; of ins_id also an integer, whose decimal digits are the id
// InvalidArgument names the slot, its column, the type expected and the one found.
Status CheckColumns(const FeedSchema& schema, const ArrowSchema& type);

// The rows of the batches, in order, with the schema's transforms. Lines are rows here. A 64-bit
// integer of a sparse slot stands for its bits, so int64 has the whole range of feasigns too; 0 is
// no feasign.
//
// A null in a sparse slot is no feasign, alone and in a list; in a dense slot it is the default.
// A null content is an empty one. Malformed rows: a null or empty ins_id, a logkey that is null or
// none; a null label, or one outside [0, 1]; a null dense value without a default, one that is no
// finite float, or beyond kMostDense of dense_limits.h; a dense list without dim values; a negative
// int8, int16 or int32 in a sparse slot.
//
// InvalidArgument as CheckColumns; Corruption when offsets leave the buffers they are for. The size
// of a string's buffer is not in the interface: whoever takes batches from a file checks that they
// are valid (pyarrow: RecordBatch.validate()).
Status ParseColumns(const FeedSchema& schema, const std::vector<ColumnBatch>& batches,
                    ParsedChunk* out);

}  // namespace pbx
