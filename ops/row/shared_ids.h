// Places of sequences that share their ids. A model that reads the ids of a slot one by one has a
// cell for each place (paddlebox/data/positions.py). If histories of a batch have ids in common,
// the batch has each id once, as a list (lists.h) of all cells in which it occurs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "row/plan.h"

namespace pbx {

// A batch with a list for each cell.
struct CellIds {
  size_t cells = 0;
  const int32_t* ids = nullptr;
  const int32_t* offsets = nullptr;  // (cells + 1)
  PlanView plan;                     // of these ids and offsets
};

// Shares the ids of sequences, whose cells have one id or none: each id becomes one list, and so
// does "no id". The other cells keep a list of their own, or share that of the instance before.
//
// C = cells of an instance. sequence: (C) 1: the cell shares its id. repeats: (cells) 1: a cell
// that does not share its id has the list of the cell C before; null: none. Overwrites *ids_out and
// *words_out, the offsets in either form of lists.h. InvalidArgument if a cell of a sequence has
// several ids.
Status ShareIds(const CellIds& batch, const std::vector<uint8_t>& sequence, const uint8_t* repeats,
                std::vector<int32_t>* ids_out, std::vector<int32_t>* words_out);

}  // namespace pbx
