// Rows of a whole table as arrays, for saves, tools and tests.
#pragma once

#include <optional>

#include "paddle/bindings/arrays.h"
#include "table/table.h"

namespace pbx {

// All pairs with keys in [low, high], in the order of keys: (n) feasigns and (n, words) rows.
py::tuple ReadAll(Table& table, uint64_t low, uint64_t high);

// Calls callback(feasigns (n), rows (n, words)) with all pairs, or those that pass the filter, at
// most `most` at a time.
void VisitChunks(Table& table, size_t most, const py::function& callback,
                 const std::optional<py::dict>& fields);

// feasigns: (n), ascending by key. Returns (n) uint8, 1 if the row exists and passes the filter,
// and (n, words) rows.
py::tuple Lookup(Table& table, const Array<uint64_t>& feasigns,
                 const std::optional<py::dict>& fields);

}  // namespace pbx
