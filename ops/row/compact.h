// What several ranks make of keys and batches: keys merged by their owner, batches that name their
// own rows.
//
// Letters: K = keys of one list, U = unique keys of all lists, nnz = ids of a batch, u = unique
// rows of a batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"

namespace pbx {

// Keys that one rank asks an owner for.
struct KeyList {
  const uint64_t* keys = nullptr;    // (K) strictly ascending
  const uint16_t* slots = nullptr;   // (K), or null: none
  const uint32_t* counts = nullptr;  // (K), or null: none
  size_t size = 0;
};

// The keys of all lists.
struct MergedKeys {
  std::vector<uint64_t> keys;                // (U) strictly ascending
  std::vector<uint16_t> slots;               // (U) the lowest of any; empty where a list has none
  std::vector<uint32_t> counts;              // (U) the sum, at most UINT32_MAX; empty likewise
  std::vector<std::vector<int32_t>> places;  // of each list (K): where its keys are among the U
};

// InvalidArgument when a list does not ascend, or the keys of all are more than 2^31 - 1.
Status MergeKeys(const std::vector<KeyList>& lists, MergedKeys* merged);

// Makes the ids of a batch, and the rows of its plan (row/plan.h), places among the batch's own
// unique rows: 0 .. u - 1. ids: (nnz), -1 stays. rows: (u) the ids that the places stand for,
// ascending. table_rows: of the ids. InvalidArgument when an id is not in the plan, or the plan is
// malformed.
Status CompactBatch(int32_t* ids, size_t nnz, int32_t* plan, size_t plan_size, size_t table_rows,
                    std::vector<int32_t>* rows);

}  // namespace pbx
