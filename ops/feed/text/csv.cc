// CSV: a line has one cell per column. One or several slots use a column.
#include <algorithm>
#include <cstring>

#include "feed/text/csv_cells.h"
#include "feed/text/csv_expressions.h"
#include "feed/text/line_parser.h"
#include "feed/text/parser.h"
#include "feed/text/scan.h"
#include "feed/text/transform.h"
#include "row/feasign.h"

namespace pbx {
namespace feed {
__attribute__((noinline)) void EmptyNulls(const FeedSchema& schema, std::vector<Cell>* cells) {
  for (Cell& cell : *cells) {
    const std::string_view text(cell.begin, static_cast<size_t>(cell.end - cell.begin));
    for (const std::string& null : schema.csv_nulls) {
      if (text == null) cell.end = cell.begin;
    }
  }
}

namespace {

class CsvParser : public LineParser {
 public:
  explicit CsvParser(const FeedSchema& schema) : schema_(schema), tags_(schema.TagColumnsRead()) {
    const std::vector<std::string> columns =
        schema.csv_columns.empty() ? schema.ColumnNames() : schema.csv_columns;
    columns_ = columns.size();
    const auto place = [&columns](const std::string& name) {
      const auto at = std::find(columns.begin(), columns.end(), name);
      return static_cast<size_t>(at - columns.begin());
    };
    for (const SlotSpec& slot : schema.slots) places_.push_back(place(slot.column_name()));
    if (schema.program != nullptr) {
      std::vector<size_t> loads;
      for (const expr::Load& load : schema.program->loads) loads.push_back(place(load.column));
      expressions_ = std::make_unique<CsvExpressions>(schema, std::move(loads), columns_);
    }
    for (const TagColumn& tag : tags_) tag_places_.push_back(place(tag.column));
  }

  void Ahead(const std::vector<TextLine>& lines) override { expressions_->Take(lines); }

  bool Parse(const char* p, const char* end, LineValues* out, LineError* error) override {
    if (!Cut(p, end, error)) return false;
    for (size_t i = 0; i < tags_.size(); ++i) {
      if (!TakeTag(tags_[i], cells_[tag_places_[i]], &out->tags, error)) return false;
    }
    uint32_t sparse = 0;
    size_t dense = 0;
    for (size_t i = 0; i < places_.size(); ++i) {
      const SlotSpec& slot = schema_.slots[i];
      if (slot.output >= 0) {
        if (slot.kind == SlotKind::kSparse) {
          expressions_->TakeSparse(slot, schema_, sparse++, out);
        } else if (!expressions_->TakeDense(slot, dense++, out, error)) {
          return false;
        }
        continue;
      }
      const Cell cell = cells_[places_[i]];
      switch (slot.kind) {
        case SlotKind::kLabel:
          if (!ParseLabel(slot.name, cell.begin, cell.end, &out->label, error)) return false;
          break;
        case SlotKind::kDense:
          if (!ParseDense(slot, cell, dense, out, error)) return false;
          dense += static_cast<size_t>(slot.dim);
          break;
        case SlotKind::kSparse:
          if (!ParseSparse(slot, sparse++, cell, out, error)) return false;
          break;
      }
    }
    return true;
  }

 private:
  // Cuts the line into `cells_`.
  bool Cut(const char* p, const char* end, LineError* error) {
    cells_.clear();
    if (expressions_ != nullptr) {
      if (!expressions_->Find(p, &cells_, error)) return false;
      if (!cells_.empty()) return true;
    }
    unquoted_.clear();
    unquoted_.reserve(static_cast<size_t>(end - p));
    if (!CutCells(p, end, schema_.csv_delimiter, &unquoted_, &cells_, error)) return false;
    if (cells_.size() != columns_) {
      return error->Set("%zu cells, expected %zu", cells_.size(), columns_);
    }
    if (!schema_.csv_nulls.empty()) EmptyNulls(schema_, &cells_);
    return true;
  }

  const char* ValueEnd(const char* p, const char* end) const {
    const void* found = std::memchr(p, schema_.csv_list_separator, static_cast<size_t>(end - p));
    return found == nullptr ? end : static_cast<const char*>(found);
  }

  static bool Wrong(const SlotSpec& slot, const char* p, const char* end, const char* expected,
                    LineError* error) {
    return error->wanted() && error->Set("slot '%.200s': '%s' is not %s", slot.name.c_str(),
                                         Printable(p, end, 40).c_str(), expected);
  }

  static bool TakeTag(const TagColumn& tag, Cell cell, LineTags* out, LineError* error) {
    const std::string_view text(cell.begin, static_cast<size_t>(cell.end - cell.begin));
    if (tag.tag == Tag::kContent) {
      out->content = text;
      return true;
    }
    if (tag.tag == Tag::kLogKey) return SetLogKey(text, out, error);
    if (tag.tag == Tag::kTime) return SetTime(text, out, error);
    out->ins_id = text;
    return !text.empty() || error->Set("%s: an empty cell, expected an id", tag.name);
  }

  bool ParseDense(const SlotSpec& slot, Cell cell, size_t column, LineValues* values,
                  LineError* error) const {
    float* const out = &values->dense[column];
    if (cell.begin == cell.end && slot.transform.has_default) {
      SetDefault(slot, column, values);
      return true;
    }
    int n = 0;
    for (const char* p = cell.begin;; ++p) {
      const char* const stop = slot.dim == 1 ? cell.end : ValueEnd(p, cell.end);
      float value = 0;
      if (ScanFloat(p, stop, &value) != stop) return Wrong(slot, p, stop, kFloatExpected, error);
      if (n < slot.dim) out[n] = value;
      if (slot.exact && n == 0) values->exact[column] = ExactOf(p, stop);
      ++n;
      p = stop;
      if (p == cell.end) break;
    }
    if (n == slot.dim) return true;
    return error->Set("slot '%.200s': %d values, expected %d", slot.name.c_str(), n, slot.dim);
  }

  bool ParseSparse(const SlotSpec& slot, uint32_t index, Cell cell, LineValues* out,
                   LineError* error) const {
    // Two slots may use one column, so a line may have more feasigns than LineValues has room for.
    const size_t room = out->count + static_cast<size_t>(cell.end - cell.begin) + 1;
    if (out->feasigns.size() < room) out->feasigns.resize(room * 2);
    if (weighted_) out->weights.resize(out->feasigns.size());
    const size_t first = out->count;
    for (const char* p = cell.begin; cell.begin < cell.end; ++p) {
      const char* const stop = ValueEnd(p, cell.end);
      uint64_t feasign = 0;
      float weight = 1;
      const char* const id_end = slot.weighted ? CutWeight(slot, p, stop, &weight, error) : stop;
      if (id_end == nullptr) return false;
      if (slot.transform.hash) {
        feasign = FeasignOfString(p, static_cast<size_t>(id_end - p));
      } else if (ScanUint64(p, id_end, &feasign) != id_end) {
        return Wrong(slot, p, stop, kFeasignExpected, error);
      }
      if (weighted_) out->weights[out->count] = weight;
      out->feasigns[out->count] = feasign = schema_.Keyed(feasign, index);
      out->count += feasign != 0;
      p = stop;
      if (p == cell.end) break;
    }
    out->lengths[index] = static_cast<uint32_t>(out->count - first);
    return true;
  }

  const FeedSchema& schema_;
  const bool weighted_ = schema_.weighted();
  size_t columns_ = 0;
  std::vector<size_t> places_;  // column of each slot
  const std::vector<TagColumn> tags_;
  std::vector<size_t> tag_places_;
  std::vector<Cell> cells_;
  std::string unquoted_;
  std::unique_ptr<CsvExpressions> expressions_;  // null: no slot has expr
};

}  // namespace

std::unique_ptr<LineParser> NewCsvParser(const FeedSchema& schema) {
  return std::make_unique<CsvParser>(schema);
}

}  // namespace feed

Status SetCsvHeader(const char* line, size_t size, FeedSchema* schema) {
  if (size == 0) {
    std::string expected;
    for (const std::string& name : schema->ColumnNames()) {
      expected += (expected.empty() ? "" : ", ") + name;
    }
    return Error(
        Code::kInvalidArgument,
        "expected a header with the columns %.1000s, found no first line, or an empty one; "
        "for files without a header set csv: {header: false} in slots.yaml",
        expected.c_str());
  }
  std::vector<feed::Cell> cells;
  std::string unquoted;
  unquoted.reserve(size);
  feed::LineError error(true);
  if (!feed::CutCells(line, line + size, schema->csv_delimiter, &unquoted, &cells, &error)) {
    return Error(Code::kInvalidArgument, "the header: %s", error.reason().c_str());
  }
  schema->csv_columns.clear();
  for (const feed::Cell& cell : cells) schema->csv_columns.emplace_back(cell.begin, cell.end);
  return schema->Check();
}

}  // namespace pbx
