// PassTable: the HBM tier's table of one pass, and what the pass needs to know of each row.
//
// Life: staged -> training -> frozen -> gone; an evaluation's table: staged -> training -> gone.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "store/hbm_tier.h"

namespace pbx {

enum class Purpose {
  kTrain,     // every key gets a row; absent ones are made
  kEvaluate,  // absent keys get no row and read as zeros; nothing is changed anywhere
};

// Where a row was when its pass was staged. kDead: stored, but a life event deleted it.
enum class Origin : uint8_t { kNew = 0, kMem, kSsd, kHbm, kDead };

struct PassTable {
  int32_t stamp = 0;  // names the pass; batches carry it
  Purpose purpose = Purpose::kTrain;
  uint32_t day = 0;  // days since 1970-01-01, written into the rows it trains; 0: no date
  std::unique_ptr<HbmTier> table;
  std::vector<Origin> origin;     // (rows)
  std::vector<uint8_t> touched;   // (rows) 1 where a push changed the row; filled when it ends
  bool written = false;           // frozen: its changed rows are in segments, or need none
  std::vector<uint16_t> slots;    // (rows) of rows made new, until the pass begins; none: all 0
  std::vector<uint64_t> refused;  // keys of the pass that were not admitted, ascending
  std::vector<uint32_t> awaited;  // row ids that the pass now training holds: copied when it ends

  size_t rows() const { return table->rows(); }
  // A new row that no push has reached does not exist: it is written nowhere.
  bool Exists(size_t id) const {
    return (!touched.empty() && touched[id] != 0) ||
           (origin[id] != Origin::kNew && origin[id] != Origin::kDead);
  }

  // Memory of a pass of n rows is at most n times this: table, origin, touched, slots and awaited.
  static uint64_t BytesPerRow(uint32_t row_bytes) { return HbmTier::BytesPerRow(row_bytes) + 8; }
};

}  // namespace pbx
