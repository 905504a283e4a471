// Lists of a batch. A cell is a slot of an instance, b * S + s. Usually each cell has its own list,
// and offsets (cells + 1) tell where the list lies among the ids. If instances repeat lists, a
// batch holds each of L < cells lists once, and offsets has two parts in one array, so that
// programs feed the same variables in both cases:
//
//   [0 .. L]                  offsets
//   [L + 1 .. L + 1 + cells)  the list of each cell; lists are numbered by their first cells
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"

namespace pbx {

struct SharedCells {
  const int32_t* list_of = nullptr;  // (cells); null: cell c has list c
  size_t lists = 0;                  // L
};

// Reads an array in either form. InvalidArgument if its size fits neither cells + 1 offsets nor
// shared lists with L in [1, cells - 1].
Result<SharedCells> FindShared(size_t cells, const int32_t* words, size_t size);

// The cells of each list as a chain. first[list] is its first cell, next[cell] is the cell after
// `cell`, and -1 ends the chain.
struct CellChains {
  std::vector<int32_t> first, last;  // (lists)
  std::vector<int32_t> next;         // (cells)
};

// Checks that lists are numbered in the order of their first cells, and that each list has a cell.
// Overwrites *chains. REQUIRES: shared.list_of.
Status ChainCells(const SharedCells& shared, size_t cells, CellChains* chains);

// The same batch with a list for each cell. REQUIRES: ChainCells succeeded, and offsets (L + 1)
// ascend to the number of ids. InvalidArgument if the result has more than 2^31 - 1 ids.
Status ExpandLists(const SharedCells& shared, size_t cells, const int32_t* ids,
                   const int32_t* offsets, std::vector<int32_t>* ids_out,
                   std::vector<int32_t>* offsets_out);

}  // namespace pbx
