// PassTable: the table of one pass in the HBM tier, and data that the pass keeps about each row.
//
// States: staged -> training -> frozen -> gone. In an evaluation: staged -> training -> gone.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "store/hbm_tier.h"
#include "table/decay_clock.h"

namespace pbx {

enum class Purpose {
  kTrain,     // every key gets a row; absent rows are created
  kEvaluate,  // absent keys get no row and read as zeros; nothing is changed
};

// Where a row was when its pass was staged. kDead: it was stored, but a life event deleted it.
enum class Origin : uint8_t { kNew = 0, kMem, kSsd, kHbm, kDead };

struct PassTable {
  int32_t stamp = 0;  // identifies the pass; batches hold it
  Purpose purpose = Purpose::kTrain;
  uint32_t day = 0;  // days since 1970-01-01, written into rows on a push; 0: no date
  std::unique_ptr<HbmTier> table;
  std::vector<Origin> origin;    // (rows)
  std::vector<uint8_t> touched;  // (rows) 1: a push changed the row; set when the pass ends
  bool written = false;  // frozen: its changed rows are in segments, or there are none to write
  std::vector<uint16_t> slots;    // (rows) slots of new rows, until the pass begins; empty: all 0
  std::vector<uint64_t> refused;  // keys of the pass that were not admitted, ascending
  // The ids of rows that the training pass holds. These rows are copied when that pass ends.
  std::vector<uint32_t> awaited;
  std::unique_ptr<DecayClock> clock;  // while the pass trains with weight decay; otherwise null

  size_t rows() const { return table->rows(); }
  // Whether staging has created the row.
  bool Created(size_t id) const {
    return origin[id] == Origin::kNew || origin[id] == Origin::kDead;
  }
  // A new row that no push has changed does not exist: it is never written.
  bool Exists(size_t id) const { return (!touched.empty() && touched[id] != 0) || !Created(id); }

  // A pass of n rows takes at most n times this: table, origin, touched, slots, awaited.
  static uint64_t BytesPerRow(uint32_t row_bytes) { return HbmTier::BytesPerRow(row_bytes) + 8; }
};

}  // namespace pbx
