// The columns of Arrow that expressions read, as vectors of a block of rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "feed/columns/column_values.h"
#include "feed/expr/program.h"

namespace pbx::feed {

// A row of a batch that cannot be used.
struct RowError {
  int64_t row;
  std::string reason;
};

// A SlotSpec for the column, for FindColumn and for errors.
SlotSpec SpecOf(const expr::Load& load);

// InvalidArgument if a column has a type that the load cannot read.
Status CheckLoad(const expr::Load& load, const ArrowSchema& type);

// Sets the values of rows [begin, begin + n) of a column, and adds those that it cannot read to
// *errors. zone: of a time. REQUIRES: n <= expr::kRows; CheckLoad has accepted the column's type.
Status TakeLoad(const expr::Load& load, const expr::Zone* zone, const Column& column, int64_t begin,
                size_t n, expr::Vector* to, std::vector<RowError>* errors);

}  // namespace pbx::feed
