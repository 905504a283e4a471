// The dedup plan of a batch: its unique rows, and the segments (instance b, slot s: b * S + s) in
// which each row occurs. Push goes through it row by row, so it needs no atomics and sums in a
// fixed order.
//
// It is one int32 array, so that a batch feeds one tensor. U = unique rows, M = occurrences with a
// row (ids >= 0):
//   [0] stamp of the pass table the ids belong to
//   [1] U
//   [2] M
//   [3 .. 3+U)          row ids, ascending
//   [3+U .. 3+2U+1)     starts: occurrences of row u are segments[starts[u] .. starts[u+1])
//   [3+2U+1 .. +M)      segments, ascending within a row; the first of each row has kFirst added
//   [.. + nnz)          only with factors (row/pooling.h): those of all ids, as floats
//   [.. + M)            and those of the occurrences, in the order of the segments
//
// kFirst lets a push go through the occurrences without the starts. Rows with one, two or three
// occurrences follow each other at random, so a loop over the occurrences of each row would
// mispredict a branch per row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"

namespace pbx {

constexpr int32_t kFirst = INT32_MIN;  // the highest bit

struct PlanView {
  int32_t stamp = 0;
  size_t unique = 0;                  // U
  size_t occurrences = 0;             // M
  const int32_t* rows = nullptr;      // (U)
  const int32_t* starts = nullptr;    // (U + 1)
  const int32_t* segments = nullptr;  // (M)
  const float* factors = nullptr;     // (M) of the occurrences; null: each is 1
};

// ids: (nnz), -1: no row. offsets: (segments + 1). factors: (nnz) of the ids; null: the plan has
// none. Overwrites *plan. REQUIRES: offsets are valid for ids.
void BuildPlan(const int32_t* ids, const int32_t* offsets, size_t segments, int32_t stamp,
               std::vector<int32_t>* plan, const float* factors = nullptr);

// Checks sizes, order and bounds against table_rows and segments. A plan that passes needs no
// further check. nnz: the number of ids, of which the plan may have factors; 0: it must have none.
Result<PlanView> ViewPlan(const int32_t* plan, size_t size, size_t table_rows, size_t segments,
                          size_t nnz = 0);

// (nnz) the factors of the ids; null: the plan has none. Checks only that its size fits.
Result<const float*> FactorsOf(const int32_t* plan, size_t size, size_t nnz);

}  // namespace pbx
