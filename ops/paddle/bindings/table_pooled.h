// Pulls and pushes of the open pass without Paddle, whose operators cost 40 us per call in addition
// to the kernel. Arguments must have exactly these dtypes. With another dtype pybind would make a
// copy, and the results would be written to that copy.
#pragma once

#include <optional>

#include "paddle/bindings/arrays.h"
#include "table/table.h"

namespace pbx {

// out: (B, slots * width), written in place. offsets: as in row/lists.h.
void PullPooled(Table& table, const Array<int32_t>& ids, const Array<int32_t>& offsets,
                size_t slots, bool use_cvm, Array<float>& out);

// show_click: (B, 2 + further counts). plan: made by MakePlan; empty: made here. grad: shaped as
// `out` of the pull.
void PushPooled(Table& table, const Array<int32_t>& ids, const Array<int32_t>& offsets,
                size_t slots, bool use_cvm, const Array<float>& show_click,
                const Array<int32_t>& plan, const Array<float>& grad);

// The dedup plan (row/plan.h) of a batch, the same as that of the feeder. factors: (nnz) of the
// ids, or None.
py::array_t<int32_t> MakePlan(const Array<int32_t>& ids, const Array<int32_t>& offsets,
                              int32_t stamp, const std::optional<Array<float>>& factors);

// The ids and offsets (cells + 1) of a batch whose offsets have either form of row/lists.h.
py::tuple ExpandedLists(const Array<int32_t>& ids, const Array<int32_t>& offsets, size_t cells);

// ids and offsets of a batch whose sequences share their ids (ShareIds), and its plan. offsets:
// (cells + 1). sequence: (C). repeats: (cells), or None.
py::tuple WithSharedIds(const Array<int32_t>& ids, const Array<int32_t>& offsets, int32_t stamp,
                        const Array<uint8_t>& sequence,
                        const std::optional<Array<uint8_t>>& repeats);

}  // namespace pbx
