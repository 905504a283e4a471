// The values of slots with expressions in CSV, for blocks of lines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "feed/text/csv_cells.h"
#include "feed/text/line_parser.h"
#include "feed/text/schema.h"

namespace pbx::feed {

class CsvExpressions {
 public:
  // places: the column of each load of the program. columns: of a line. The schema must outlive it.
  CsvExpressions(const FeedSchema& schema, std::vector<size_t> places, size_t columns);

  // Cuts the lines into cells and evaluates the program.
  void Take(const std::vector<TextLine>& lines);

  // Moves on to the line that begins at p. Sets *cells to its cells, unless it has another number
  // of them. False, with the reason in *error, if a cell that an expression reads is malformed.
  bool Find(const char* p, std::vector<Cell>* cells, LineError* error);

  // The values of the current line. Both apply the default of the slot.
  bool TakeDense(const SlotSpec& slot, size_t column, LineValues* out, LineError* error) const;
  void TakeSparse(const SlotSpec& slot, const FeedSchema& schema, uint32_t index,
                  LineValues* out) const;

 private:
  void Load(size_t row, const std::vector<Cell>& cells);

  const FeedSchema& schema_;
  const std::vector<size_t> places_;
  const size_t columns_;
  expr::Evaluator evaluator_;
  std::vector<TextLine> lines_;
  std::vector<Cell> cells_;        // (lines, columns)
  std::vector<uint8_t> cut_;       // (lines) whether it has the right number of cells
  std::vector<size_t> malformed_;  // (lines) a load whose cell is malformed, or the number of loads
  std::string unquoted_;
  size_t row_ = 0;
};

}  // namespace pbx::feed
