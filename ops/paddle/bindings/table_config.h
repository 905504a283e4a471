// Converts a table's config and life events from Python dicts.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "table/table.h"

namespace pbx {

// fields: named as in TableConfig of paddlebox/config/schema.py, and the arguments of Table.
TableConfig ConfigFrom(const pybind11::dict& fields);

// name: the value of `table.on_bad_grad`.
OnBadGrad OnBadGradFrom(const std::string& name);

std::vector<LifeEvent> EventsFrom(const std::vector<pybind11::dict>& records);

// An event that the table has added itself: a weight decay or an eviction.
pybind11::dict ToDict(const LifeEvent& event);

}  // namespace pbx
