// Pulls and pushes of the open pass, past Paddle: what an operator costs beside its kernel is 40 us
// a call. Inputs are arrays of these very dtypes (a copy would be pulled into, and thrown away).
#pragma once

#include "paddle/bindings/arrays.h"
#include "table/table.h"

namespace pbx {

// out: (B, slots * width), written in place. offsets: as row/lists.h has them.
void PullPooled(Table& table, const Array<int32_t>& ids, const Array<int32_t>& offsets,
                size_t slots, bool use_cvm, Array<float>& out);

// show_click: (B, 2). plan: as MakePlan gives it, or empty: made here. grad: as out of the pull.
void PushPooled(Table& table, const Array<int32_t>& ids, const Array<int32_t>& offsets,
                size_t slots, bool use_cvm, const Array<float>& show_click,
                const Array<int32_t>& plan, const Array<float>& grad);

// The dedup plan (row/plan.h) of a batch, as the feeder makes it.
py::array_t<int32_t> MakePlan(const Array<int32_t>& ids, const Array<int32_t>& offsets,
                              int32_t stamp);

}  // namespace pbx
