#include "feed/text/csv_expressions.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

namespace pbx::feed {
namespace {

template <typename T>
bool Scan(std::string_view text, T* value) {
  const auto [last, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && last == text.data() + text.size();
}

// From -2^63 to 2^64 - 1; a feasign above 2^63 keeps its bits.
bool ScanInt(std::string_view text, int64_t* value) {
  uint64_t bits = 0;
  if (!Scan(text, &bits)) return Scan(text, value);
  *value = static_cast<int64_t>(bits);
  return true;
}

const char* ExpectedOf(expr::Kind kind) {
  if (kind == expr::Kind::kFloat) return kFloatExpected;
  if (kind == expr::Kind::kText) return "one value: read it with list(column)";
  return kind == expr::Kind::kInt ? "an integer of 64 bits"
                                  : "a time such as 2024-01-31 23:59:59, with or without an offset";
}

}  // namespace

CsvExpressions::CsvExpressions(const FeedSchema& schema, std::vector<size_t> places, size_t columns)
    : schema_(schema), places_(std::move(places)), columns_(columns), evaluator_(*schema.program) {}

void CsvExpressions::Take(const std::vector<TextLine>& lines) {
  lines_ = lines;
  row_ = 0;
  const size_t n = lines.size(), loads = schema_.program->loads.size();
  cut_.assign(n, 0);
  malformed_.assign(n, loads);
  cells_.resize(n * columns_);
  size_t bytes = 0;
  for (const TextLine& line : lines) bytes += static_cast<size_t>(line.end - line.begin);
  unquoted_.clear();
  unquoted_.reserve(bytes);
  for (size_t i = 0; i < loads; ++i) {
    evaluator_.input(i)->Reset(schema_.program->loads[i].type, n);
  }
  static const char kNothing[] = "";
  const std::vector<Cell> empty(columns_, Cell{kNothing, kNothing});
  std::vector<Cell> cells;
  LineError unsaid(false);
  for (size_t row = 0; row < n; ++row) {
    cells.clear();
    cut_[row] = CutCells(lines[row].begin, lines[row].end, schema_.csv_delimiter, &unquoted_,
                         &cells, &unsaid) &&
                cells.size() == columns_;
    if (cut_[row]) {
      EmptyNulls(schema_, &cells);
      std::copy(cells.begin(), cells.end(),
                cells_.begin() + static_cast<std::ptrdiff_t>(row * columns_));
    }
    Load(row, cut_[row] ? cells : empty);
  }
  evaluator_.Run(n);
}

void CsvExpressions::Load(size_t row, const std::vector<Cell>& cells) {
  const expr::Program& program = *schema_.program;
  for (size_t i = 0; i < places_.size(); ++i) {
    const Cell cell = cells[places_[i]];
    const expr::Type type = program.loads[i].type;
    expr::Vector& to = *evaluator_.input(i);
    bool fits = true;
    const auto take = [&](std::string_view text, int64_t* number) {
      if (type.kind == expr::Kind::kInt) return ScanInt(text, number);
      return expr::ScanTime(text, program.zones[static_cast<size_t>(type.zone)], number);
    };
    const std::string_view text(cell.begin, static_cast<size_t>(cell.end - cell.begin));
    if (type.list) {
      for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find(schema_.csv_list_separator, at), text.size());
        const std::string_view item = text.substr(at, end - at);
        at = end + 1;
        if (item.empty()) continue;
        if (type.kind == expr::Kind::kText) {
          to.texts.push_back(item);
        } else {
          to.ints.push_back(0);
          fits = fits && take(item, &to.ints.back());
        }
      }
      to.EndRow(type.kind == expr::Kind::kText ? to.texts.size() : to.ints.size());
    } else {
      to.valid[row] = !text.empty();
      if (type.kind == expr::Kind::kText) {
        to.texts[row] = text;
        fits = text.find(schema_.csv_list_separator) == text.npos;
      } else if (type.kind == expr::Kind::kFloat) {
        to.floats[row] = 0;
        fits = text.empty() || (Scan(text, &to.floats[row]) && std::isfinite(to.floats[row]));
      } else {
        to.ints[row] = 0;
        fits = text.empty() || take(text, &to.ints[row]);
      }
      to.valid[row] = to.valid[row] && fits;
    }
    if (!fits) malformed_[row] = std::min(malformed_[row], i);
  }
}

bool CsvExpressions::Find(const char* p, std::vector<Cell>* cells, LineError* error) {
  while (row_ < lines_.size() && lines_[row_].begin != p) ++row_;
  if (row_ == lines_.size() || !cut_[row_]) return true;
  const auto first = cells_.begin() + static_cast<std::ptrdiff_t>(row_ * columns_);
  cells->assign(first, first + static_cast<std::ptrdiff_t>(columns_));
  const size_t load = malformed_[row_];
  if (load == places_.size()) return true;
  const Cell cell = (*cells)[places_[load]];
  const expr::Load& of = schema_.program->loads[load];
  if (!error->wanted()) return false;
  return error->Set("column '%.200s' of an expr: '%s' is not %s", of.column.c_str(),
                    Printable(cell.begin, cell.end, 40).c_str(), ExpectedOf(of.type.kind));
}

bool CsvExpressions::TakeDense(const SlotSpec& slot, size_t column, LineValues* out,
                               LineError* error) const {
  const expr::Vector& values = evaluator_.output(static_cast<size_t>(slot.output));
  if (!values.valid[row_]) {
    if (!slot.transform.has_default) {
      return error->Set("slot '%.200s': expr is null and the slot has no default",
                        slot.name.c_str());
    }
    SetDefault(slot, column, out);
    return true;
  }
  const double value = values.floats[row_];
  if (!(std::fabs(value) <= static_cast<double>(std::numeric_limits<float>::max()))) {
    return error->Set("slot '%.200s': expr is %g, expected a finite float", slot.name.c_str(),
                      value);
  }
  out->dense[column] = static_cast<float>(value);
  if (slot.exact) out->exact[column] = static_cast<long double>(value);
  return true;
}

void CsvExpressions::TakeSparse(const SlotSpec& slot, const FeedSchema& schema, uint32_t index,
                                LineValues* out) const {
  const expr::Vector& values = evaluator_.output(static_cast<size_t>(slot.output));
  const bool list = !values.ends.empty();
  const size_t begin = list ? values.begin(row_) : row_;
  const size_t end = list ? values.end(row_) : row_ + 1;
  const size_t room = out->count + (end - begin);
  if (out->feasigns.size() < room) out->feasigns.resize(room * 2);
  if (!out->weights.empty()) out->weights.resize(out->feasigns.size());
  const size_t first = out->count;
  for (size_t i = begin; i < end; ++i) {
    const uint64_t feasign = static_cast<uint64_t>(values.ints[i]);
    if (!out->weights.empty()) out->weights[out->count] = 1;
    out->feasigns[out->count] = schema.Keyed(feasign, index);
    out->count += feasign != 0;
  }
  out->lengths[index] = static_cast<uint32_t>(out->count - first);
}

}  // namespace pbx::feed
