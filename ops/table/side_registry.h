// The side tables that a pass has open, by kind and name. Operators of a program find theirs here.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "table/side_table.h"

namespace pbx {

// The kinds differ in config().keyed: input tables have keys, replica caches have none.

// FailedPrecondition if an open side table of its kind has the name already.
Status RegisterSideTable(const std::shared_ptr<SideTable>& table);
// Does nothing if another side table has the name.
void UnregisterSideTable(const std::shared_ptr<SideTable>& table);

// The side table of that kind and name; an empty name means the only one of the kind.
// FailedPrecondition, listing the open ones, if there is none or more than one to choose from.
Result<std::shared_ptr<SideTable>> FindSideTable(bool keyed, const std::string& name);

}  // namespace pbx
