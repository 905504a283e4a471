#include "row/lists.h"

#include <limits>

namespace pbx {

Result<SharedCells> FindShared(size_t cells, const int32_t* words, size_t size) {
  SharedCells shared;
  if (size == cells + 1) return shared;
  if (size < cells + 2 || size > 2 * cells) {
    return Error(Code::kInvalidArgument,
                 "Offsets has shape (%zu), expected (%zu), or (L + 1 + %zu) if instances share L "
                 "lists",
                 size, cells + 1, cells);
  }
  shared.lists = size - cells - 1;
  shared.list_of = words + shared.lists + 1;
  return shared;
}

Status ChainCells(const SharedCells& shared, size_t cells, CellChains* chains) {
  chains->first.resize(shared.lists);
  chains->next.assign(cells, -1);
  chains->last.resize(shared.lists);
  int32_t* const last = chains->last.data();  // the last cell of each list so far
  int32_t* const next = chains->next.data();
  size_t found = 0, bad = cells;
  for (size_t cell = 0; cell < cells; ++cell) {
    const int32_t at = static_cast<int32_t>(cell);
    const size_t list = static_cast<size_t>(static_cast<uint32_t>(shared.list_of[cell]));
    if (list < found) {
      next[last[list]] = at;
    } else if (list == found && found < shared.lists) {
      chains->first[found++] = at;
    } else {
      bad = cell;
      break;
    }
    last[list] = at;
  }
  if (bad == cells && found == shared.lists) return Status::Ok();
  return Error(Code::kInvalidArgument,
               "lists of the batch: %zu of %zu have a segment, then segment %zu names list %d; "
               "expected lists numbered in the order of their first segments: feed the offsets "
               "that came with the batch",
               found, shared.lists, bad, bad < cells ? shared.list_of[bad] : -1);
}

Status ExpandLists(const SharedCells& shared, size_t cells, const int32_t* ids,
                   const int32_t* offsets, std::vector<int32_t>* ids_out,
                   std::vector<int32_t>* offsets_out) {
  offsets_out->assign(1, 0);
  offsets_out->reserve(cells + 1);
  int64_t total = 0;
  for (size_t cell = 0; cell < cells; ++cell) {
    const int32_t list = shared.list_of[cell];
    total += offsets[list + 1] - offsets[list];
    if (total > std::numeric_limits<int32_t>::max()) {
      return Error(Code::kInvalidArgument,
                   "the segments of a batch have more than 2^31 - 1 ids; lower the batch size");
    }
    offsets_out->push_back(static_cast<int32_t>(total));
  }
  ids_out->clear();
  ids_out->reserve(static_cast<size_t>(total));
  for (size_t cell = 0; cell < cells; ++cell) {
    const int32_t list = shared.list_of[cell];
    ids_out->insert(ids_out->end(), ids + offsets[list], ids + offsets[list + 1]);
  }
  return Status::Ok();
}

}  // namespace pbx
