// A table's config and life events, from Python's dicts.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "table/table.h"

namespace pbx {

// Fields as paddlebox/config/schema.py's TableConfig names them, and the arguments of Table.
TableConfig ConfigFrom(const pybind11::dict& fields);

// Of `table.on_bad_grad`.
OnBadGrad OnBadGradFrom(const std::string& name);

std::vector<LifeEvent> EventsFrom(const std::vector<pybind11::dict>& records);

}  // namespace pbx
