// The open tables of this process by name. Operators of a program find their table by its name, not
// by a pointer, so that a saved program works in another process.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "table/row_access.h"

namespace pbx {

// InvalidArgument if an open table has the name already.
Status RegisterTable(const std::shared_ptr<RowAccess>& table);
void UnregisterTable(const std::string& name);

// The table with that name; an empty name means the only open table. FailedPrecondition, listing
// the open tables, if there is no such table or more than one to choose from.
Result<std::shared_ptr<RowAccess>> FindTable(const std::string& name);

}  // namespace pbx
