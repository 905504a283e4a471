// Keys and batches of several ranks: the owner of keys merges the lists that all ranks request, and
// each rank numbers the rows of a batch within the batch.
//
// Letters: K = keys of one list, U = unique keys of all lists, nnz = number of ids of a batch, u =
// unique rows of a batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"

namespace pbx {

// Keys that one rank requests from their owner.
struct KeyList {
  const uint64_t* keys = nullptr;    // (K) strictly ascending
  const uint16_t* slots = nullptr;   // (K), or null: none
  const uint32_t* counts = nullptr;  // (K), or null: none
  size_t size = 0;
};

// The keys of all lists.
struct MergedKeys {
  std::vector<uint64_t> keys;    // (U) strictly ascending
  std::vector<uint16_t> slots;   // (U) the lowest of all lists; empty if a list has none
  std::vector<uint32_t> counts;  // (U) sums, at most UINT32_MAX; empty if a list has none
  std::vector<std::vector<int32_t>> places;  // per list (K): where its keys are in `keys`
};

// InvalidArgument if a list does not ascend, or there are more than 2^31 - 1 unique keys.
Status MergeKeys(const std::vector<KeyList>& lists, MergedKeys* merged);

// Renumbers the ids of a batch, and the rows of its plan (row/plan.h), as 0 .. u - 1 in the order
// of the plan. ids: (nnz), -1 stays. rows: (u) the former id of each new id, ascending. table_rows:
// the number of rows of the table. InvalidArgument if an id is not in the plan, or the plan is
// malformed.
Status CompactBatch(int32_t* ids, size_t nnz, int32_t* plan, size_t plan_size, size_t table_rows,
                    std::vector<int32_t>* rows);

}  // namespace pbx
