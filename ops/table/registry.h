// Which tables this process has open, by name: how an operator in a program finds its table. A name
// and not a pointer, so that a saved program works in the next process.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "table/row_access.h"

namespace pbx {

// InvalidArgument when a live table has the name already.
Status RegisterTable(const std::shared_ptr<RowAccess>& table);
void UnregisterTable(const std::string& name);

// The table of that name; with an empty name the only one there is. FailedPrecondition that lists
// what is open when there is no such table, or more than one to choose from.
Result<std::shared_ptr<RowAccess>> FindTable(const std::string& name);

}  // namespace pbx
