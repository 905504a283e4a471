// ImportRows: the rows of one table, or of the ranks of one, as the first segments of another,
// empty one, whose layout, rules, slots or range of keys differ (rule/convert.h). One walk in the
// order of keys, in the memory of one segment file; where keys change (SlotMap::MovesKeys) rows are
// sorted in runs, which the caller merges.
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
  uint64_t sort_bytes = 256ull << 20;   // of rows that are sorted at a time
  uint64_t low = 0, high = UINT64_MAX;  // keys that are the target's; rows of others are not its
};

struct ImportResult {
  std::vector<SegmentDescriptor> segments;  // durable, named by nothing yet
  size_t runs = 0;                          // each in order; above 1: segments overlap
  uint64_t rows = 0;                        // written
  uint64_t with_embedx = 0;                 // of those
  std::vector<uint64_t> dropped;            // rows left out, by their slot in the source
};

// sources: idle, of one layout, each with keys above those of the one before. target: with an SSD
// tier that holds nothing; the segments are not published.
// progress: called now and then with the rows read so far; its error ends the import. On an error
// files may be left, which nothing names.
Result<ImportResult> ImportRows(const std::vector<Table*>& sources, const Table& target,
                                const ImportOptions& options,
                                const std::function<Status(uint64_t rows)>& progress);

// Rows of somebody else's, in the order of keys. The pointers stay the caller's, until the next.
struct KeyedRows {
  const uint64_t* keys = nullptr;  // (n)
  const float* rows = nullptr;     // (n, words of the target), as docs/formats/row.md has them
  size_t n = 0;                    // 0: there are no more
};

// The same of rows that next brings, whose layout is the target's. InvalidArgument for keys that do
// not ascend.
Result<ImportResult> ImportChunks(const Table& target, uint64_t expected_rows,
                                  const std::function<Result<KeyedRows>()>& next);

}  // namespace pbx
