// Rows of a whole table as arrays: for saves, tools and tests.
#pragma once

#include <optional>

#include "paddle/bindings/arrays.h"
#include "table/table.h"

namespace pbx {

// All pairs, in key order: (n) feasigns and (n, words) rows, in memory.
py::tuple ReadAll(Table& table);

// All pairs, or those that pass the filter, at most `most` at a time: callback(feasigns (n), rows
// (n, words)).
void VisitChunks(Table& table, size_t most, const py::function& callback,
                 const std::optional<py::dict>& fields);

// feasigns: (n), ascending by key. (n) uint8 found (and passed by the filter), (n, words) rows.
py::tuple Lookup(Table& table, const Array<uint64_t>& feasigns,
                 const std::optional<py::dict>& fields);

}  // namespace pbx
