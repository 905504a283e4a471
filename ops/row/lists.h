// Lists of a batch. A cell is a slot of an instance, b * S + s. As a rule each cell has a list of
// its own, and offsets (cells + 1) say where it lies among the ids. Where instances repeat lists, a
// batch holds each of L < cells lists once:
//
//   [0 .. L]                  offsets
//   [L + 1 .. L + 1 + cells)  the list of each cell; lists are numbered by their first cells
//
// in one array, so that programs feed the same variables either way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"

namespace pbx {

struct SharedCells {
  const int32_t* list_of = nullptr;  // (cells); null: list l is cell l's
  size_t lists = 0;                  // L
};

// What the words of such an array are. InvalidArgument when there are neither cells + 1, nor as
// many as 1 to cells - 1 lists make.
Result<SharedCells> FindShared(size_t cells, const int32_t* words, size_t size);

// The cells of each list as a chain: from first (lists) by next (cells), -1 at its end.
struct CellChains {
  std::vector<int32_t> first, next;
  std::vector<int32_t> last;  // (lists) where they end
};

// Checks that lists are numbered by their first cells, and all have one. Overwrites *chains.
// REQUIRES: shared.list_of.
Status ChainCells(const SharedCells& shared, size_t cells, CellChains* chains);

// The same batch with a list for each cell. REQUIRES: ChainCells found no fault, offsets (L + 1)
// ascend to the number of ids. InvalidArgument when it has more than 2^31 - 1 ids.
Status ExpandLists(const SharedCells& shared, size_t cells, const int32_t* ids,
                   const int32_t* offsets, std::vector<int32_t>* ids_out,
                   std::vector<int32_t>* offsets_out);

}  // namespace pbx
