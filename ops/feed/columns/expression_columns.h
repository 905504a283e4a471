// The values of slots with expressions, computed from the columns of a batch, as columns of Arrow.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "feed/columns/arrow_abi.h"
#include "feed/columns/column_values.h"
#include "feed/columns/columns.h"
#include "feed/columns/expression_loads.h"
#include "feed/text/schema.h"

namespace pbx::feed {

// Of a schema with a program, which must outlive it.
class ExpressionColumns {
 public:
  explicit ExpressionColumns(const FeedSchema& schema);
  ~ExpressionColumns();

  // Takes a batch, whose columns CheckExpressions has accepted. The caller keeps it.
  Status Open(const ColumnBatch& batch);
  // Evaluates the program for rows [begin, begin + rows) of it, at most expr::kRows.
  Status Take(int64_t begin, int64_t rows);

  // The values of a slot with an expression in the rows of the last Take.
  Column column(const SlotSpec& slot) const;

  // Of the last Take, by row of the batch, ascending; at most one for each.
  const std::vector<RowError>& errors() const { return errors_; }

 private:
  struct Output;

  const expr::Program& program_;
  std::vector<std::unique_ptr<Output>> outputs_;
  std::vector<SlotSpec> specs_;  // of the columns that are read
  std::vector<Column> columns_;
  int64_t begin_ = 0;
  expr::Evaluator evaluator_;
  std::vector<RowError> errors_;
};

// CheckColumns for the columns that expressions read.
Status CheckExpressions(const FeedSchema& schema, const ArrowSchema& type);

}  // namespace pbx::feed
