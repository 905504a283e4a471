// Which side tables a pass has open, by kind and name: how an operator in a program finds its own.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "table/side_table.h"

namespace pbx {

// The two kinds differ in config().keyed: replica caches have no keys, input tables have.

// FailedPrecondition when a live side table of its kind has the name already.
Status RegisterSideTable(const std::shared_ptr<SideTable>& table);
// Only if it is this one that has the name.
void UnregisterSideTable(const std::shared_ptr<SideTable>& table);

// The side table of that kind and name; with an empty name the only one of the kind.
// FailedPrecondition that lists what is open when there is none, or more than one to choose from.
Result<std::shared_ptr<SideTable>> FindSideTable(bool keyed, const std::string& name);

}  // namespace pbx
