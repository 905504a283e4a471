// ImportRows: writes the rows of a table, or of all ranks of a table, as the first segments of
// another, empty table whose layout, rules, slots or range of keys differ (rule/convert.h). It goes
// through the rows once in the order of keys and needs the memory of one segment file. If keys
// change (SlotMap::MovesKeys), rows are sorted in runs, which the caller merges.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/status.h"
#include "rule/convert.h"
#include "table/table.h"

namespace pbx {

struct ImportOptions {
  SlotMap map;
  uint64_t sort_bytes = 256ull << 20;   // of rows that are sorted together
  uint64_t low = 0, high = UINT64_MAX;  // keys of the target; other rows are left out
};

struct ImportResult {
  std::vector<SegmentDescriptor> segments;  // durable, not in a manifest yet
  size_t runs = 0;    // each run is in the order of keys; with several runs, segments overlap
  uint64_t rows = 0;  // rows written
  uint64_t with_embedx = 0;       // rows written that have embedx
  std::vector<uint64_t> dropped;  // number of rows left out, by slot of the source
};

// sources: idle tables with the same layout; the keys of each are above the keys of the one before.
// target: has an empty SSD tier; the segments are not published. progress: called from time to time
// with the number of rows read so far; if it returns an error, the import ends. After an error,
// files that no manifest names may be left.
Result<ImportResult> ImportRows(const std::vector<Table*>& sources, const Table& target,
                                const ImportOptions& options,
                                const std::function<Status(uint64_t rows)>& progress);

// Rows from another system, in the order of keys. The caller owns the memory, which is valid until
// the next chunk.
struct KeyedRows {
  const uint64_t* keys = nullptr;  // (n)
  const float* rows = nullptr;     // (n, words of the target), as in docs/formats/row.md
  size_t n = 0;                    // 0: the end
};

// The same for the rows that `next` returns, in the layout of the target. InvalidArgument if keys
// do not ascend.
Result<ImportResult> ImportChunks(const Table& target, uint64_t expected_rows,
                                  const std::function<Result<KeyedRows>()>& next);

}  // namespace pbx
