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

// Where the segments of an import begin. The default is for an empty table.
struct ImportPlace {
  uint64_t id = 1;        // of the first segment; ids of the others follow
  uint64_t sequence = 1;  // of all: above those of the table's segments, so that they are newer
  bool is_first() const { return id == 1 && sequence == 1; }
};

// The same for the rows that `next` returns, in the layout of the target. InvalidArgument if keys
// do not ascend.
Result<ImportResult> ImportChunks(const Table& target, uint64_t expected_rows,
                                  const std::function<Result<KeyedRows>()>& next,
                                  const ImportPlace& place = {});

// The parts of a row that another system gives.
enum GivenPart : uint32_t {
  kGivesSlot = 1,
  kGivesCounts = 1 << 1,  // show and click
  kGivesDeltaScore = 1 << 2,
  kGivesDay = 1 << 3,
  kGivesEmbed = 1 << 4,
  kGivesEmbedState = 1 << 5,
  kGivesEmbedx = 1 << 6,  // if the flag kHasEmbedx of the given row is set; otherwise there is none
  kGivesEmbedxState = 1 << 7,
  kGivesExpand = 1 << 8,
  kGivesExpandState = 1 << 9,
  kGivesFurtherCounts = 1 << 10,
};

// Completes given rows, which are float32 rows of target in which only their parts have a meaning,
// and the slot in any case. What is not given comes from the row of the table, or, if there is
// none, from a new row of the slot that was seen on `day`. Weights that are given without their
// state get the state of new weights with these values.
struct RowsToComplete {
  const uint64_t* keys = nullptr;   // (n)
  const uint32_t* parts = nullptr;  // (n), bits of GivenPart
  const uint8_t* found = nullptr;   // (n), 1: the table has a row; null: it has none of them
  const float* existing = nullptr;  // (n, words), of which those that are found have a meaning
  float* rows = nullptr;            // (n, words), completed in place
  size_t n = 0;
};
void CompleteRows(const Table& target, uint32_t day, uint32_t life_seq,
                  const RowsToComplete& batch);

}  // namespace pbx
