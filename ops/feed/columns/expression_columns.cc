#include "feed/columns/expression_columns.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include "feed/columns/column_types.h"
#include "feed/text/line_parser.h"
#include "feed/text/scan.h"

namespace pbx::feed {
namespace {

using expr::Kind;

// The number of units of a date or timestamp in a day; 0 for another type.
int64_t UnitsOfDay(const ArrowSchema& type) {
  if (std::strcmp(type.format, "tdD") == 0) return 1;
  if (std::strcmp(type.format, "tdm") == 0) return 86400000;
  if (std::strncmp(type.format, "ts", 2) != 0) return 0;
  switch (type.format[2]) {
    case 's': return 86400;
    case 'm': return 86400000;
    case 'u': return expr::kDay;
    default: return expr::kDay * 1000;
  }
}

SlotSpec SpecOfLoad(const expr::Load& load) {
  SlotSpec spec;
  spec.name = load.column;
  return spec;
}

Status CheckLoad(const expr::Load& load, const ArrowSchema& type) {
  const ArrowSchema& item = load.type.list && IsList(type) ? *type.children[0] : type;
  bool fits = IsNull(item);
  const char* expected = "a number or bool";
  switch (load.type.kind) {
    case Kind::kFloat: fits = fits || IsNumber(item); break;
    case Kind::kInt:
      fits = fits || IsInteger(item);
      expected = "an integer type";
      break;
    case Kind::kTime:
      fits = fits || IsString(item) || (item.dictionary == nullptr && UnitsOfDay(item) != 0);
      expected = "a timestamp, date or string";
      break;
    default:
      fits = fits || IsString(item) || IsInteger(item);
      expected = "a string or an integer type";
  }
  if (fits) return Status::Ok();
  return Error(Code::kInvalidArgument,
               "column '%.200s' of an expr: expected %s%s, found %s: write the column with such a "
               "type, or change the expression",
               load.column.c_str(), expected, load.type.list ? ", or a list of one" : "",
               TypeName(type).c_str());
}

}  // namespace

// An array with the values of one slot.
struct ExpressionColumns::Output {
  ArrowSchema type{}, item_type{};
  ArrowArray array{}, items{};
  ArrowSchema* type_child[1] = {&item_type};
  ArrowArray* child[1] = {&items};
  const void* buffers[2] = {};
  const void* item_buffers[2] = {};
  SlotSpec spec;
  std::vector<uint8_t> valid;  // bits
  std::vector<int64_t> ends;

  // The vector must outlive the use of the arrays.
  void Set(const expr::Vector& from, expr::Type of, size_t n) {
    const bool floating = of.kind == Kind::kFloat;
    const int64_t* const ints = from.ints.empty() ? kNone : from.ints.data();
    const void* const values =
        floating ? static_cast<const void*>(from.floats.data()) : static_cast<const void*>(ints);
    item_type.format = type.format = floating ? "g" : "l";
    type.name = item_type.name = "";
    array.length = static_cast<int64_t>(n);
    array.n_buffers = items.n_buffers = 2;
    array.buffers = buffers;
    items.buffers = item_buffers;
    if (of.list) {
      ends.assign(1, 0);
      ends.insert(ends.end(), from.ends.begin(), from.ends.begin() + static_cast<ptrdiff_t>(n));
      type.format = "+L";
      type.n_children = array.n_children = 1;
      type.children = type_child;
      array.children = child;
      buffers[1] = ends.data();
      items.length = ends.back();
      item_buffers[1] = values;
      return;
    }
    valid.assign((n + 7) / 8, 0);
    size_t nulls = n;
    for (size_t i = 0; i < n; ++i) {
      valid[i / 8] |= static_cast<uint8_t>(from.valid[i] << (i % 8));
      nulls -= from.valid[i];
    }
    array.null_count = static_cast<int64_t>(nulls);
    buffers[0] = valid.data();
    buffers[1] = values;
  }

 private:
  static constexpr int64_t kNone[1] = {};
};

ExpressionColumns::ExpressionColumns(const FeedSchema& schema)
    : program_(*schema.program), evaluator_(program_), items_(expr::kRows), nulls_(expr::kRows) {
  for (const expr::Load& load : program_.loads) specs_.push_back(SpecOfLoad(load));
  for (const SlotSpec& slot : schema.slots) {
    if (slot.output < 0) continue;
    outputs_.push_back(std::make_unique<Output>());
    outputs_.back()->spec = slot;
    outputs_.back()->spec.transform.hash = false;  // the program has hashed
  }
}

ExpressionColumns::~ExpressionColumns() = default;

Column ExpressionColumns::column(const SlotSpec& slot) const {
  const Output& output = *outputs_[static_cast<size_t>(slot.output)];
  return {output.spec, output.type, output.array, -begin_};
}

Status ExpressionColumns::Open(const ColumnBatch& batch) {
  columns_.clear();
  for (const SlotSpec& spec : specs_) {
    const int64_t place = FindColumn(spec, *batch.type).value();
    columns_.emplace_back(spec, *batch.type->children[place], *batch.values->children[place],
                          batch.values->offset);
    PBX_RETURN_IF_ERROR(columns_.back().CheckBuffers(batch.values->length));
  }
  return Status::Ok();
}

Status ExpressionColumns::Take(int64_t begin, int64_t rows) {
  begin_ = begin;
  errors_.clear();
  for (size_t i = 0; i < columns_.size(); ++i) {
    PBX_RETURN_IF_ERROR(Load(i, columns_[i], begin, rows));
  }
  const size_t n = static_cast<size_t>(rows);
  evaluator_.Run(n);
  for (size_t i = 0; i < outputs_.size(); ++i) {
    outputs_[i]->Set(evaluator_.output(i), TypeOf(i), n);
  }
  std::stable_sort(errors_.begin(), errors_.end(),
                   [](const RowError& a, const RowError& b) { return a.row < b.row; });
  const auto same = [](const RowError& a, const RowError& b) { return a.row == b.row; };
  errors_.erase(std::unique(errors_.begin(), errors_.end(), same), errors_.end());
  return Status::Ok();
}

expr::Type ExpressionColumns::TypeOf(size_t output) const {
  return program_.registers[static_cast<size_t>(program_.outputs[output])];
}

void ExpressionColumns::Malformed(int64_t row, const expr::Load& load, const std::string& found) {
  errors_.push_back({row, "column '" + load.column.substr(0, 200) + "' of an expr: " + found});
}

namespace {

// Calls take(text) for the string at an index, or for the digits of an integer.
template <typename Take>
Status WithText(const Column& column, int64_t at, Take take) {
  std::string_view text;
  char digits[24];
  switch (column.leaf_kind()) {
    case 'u':
    case 'z': PBX_RETURN_IF_ERROR(TextOf<int32_t>(column, at, &text)); break;
    case 'U':
    case 'Z': PBX_RETURN_IF_ERROR(TextOf<int64_t>(column, at, &text)); break;
    default:
      WithInteger(column.leaf_kind(), [&](auto* type) {
        using T = std::remove_cv_t<std::remove_pointer_t<decltype(type)>>;
        const T value = Values<T>(column.leaf())[at];
        const char* const end = std::to_chars(digits, digits + sizeof(digits), value).ptr;
        text = std::string_view(digits, static_cast<size_t>(end - digits));
      });
  }
  take(text);
  return Status::Ok();
}

template <typename Offset>
bool TextsOf(const Column& column, int64_t first, size_t n, expr::Vector* to) {
  const ArrowArray& leaf = column.leaf();
  const Offset* const offsets = Values<Offset>(leaf) + first;
  const char* const text = static_cast<const char*>(leaf.buffers[2]);
  const Offset begin = offsets[0], end = offsets[n];
  bool fits = text != nullptr && begin >= 0;
  for (size_t row = 0; row < n; ++row) fits = fits && offsets[row] <= offsets[row + 1];
  fits = fits && end <= Values<Offset>(leaf)[leaf.offset + leaf.length];
  if (!fits || !IsUtf8(text + begin, text + end)) return false;
  for (size_t row = 0; row < n; ++row) {
    const Offset from = offsets[row], size = offsets[row + 1] - from;
    const bool begins = size == 0 || (static_cast<unsigned char>(text[from]) & 0xc0) != 0x80;
    if (!begins) return false;
    to->texts[row] = std::string_view(text + from, static_cast<size_t>(size));
    to->valid[row] = to->valid[row] && size != 0;
  }
  return true;
}

// The value of a date or timestamp, in microseconds of the local time of a zone. False: out of
// range.
bool TimeAt(const Column& column, int64_t at, const expr::Zone& zone, int64_t* local) {
  const ArrowSchema& type = column.leaf_type();
  const int64_t units = UnitsOfDay(type);
  const bool days = units == 1;
  const int64_t value =
      days ? Values<int32_t>(column.leaf())[at] : Values<int64_t>(column.leaf())[at];
  if (units > expr::kDay) {
    *local = expr::FloorDivide(value, 1000);
  } else {
    const int64_t unit = expr::kDay / units;
    if (value < expr::kFirstTime / unit || value > expr::kLastTime / unit) return false;
    *local = value * unit;
  }
  if (*local < expr::kFirstTime || *local > expr::kLastTime) return false;
  const bool instant = type.format[1] == 's' && type.format[4] != '\0';
  if (instant) *local = zone.Local(*local);
  return true;
}

}  // namespace

void ExpressionColumns::TakeValidity(const Column& column, size_t n, expr::Vector* to) const {
  if (column.one_each()) {
    std::fill(to->valid.begin(), to->valid.end(), uint8_t{1});
    return;
  }
  for (size_t row = 0; row < n; ++row) {
    to->valid[row] = !nulls_[row] && Valid(column.leaf(), items_[row].begin);
  }
}

// Takes strings whose bytes are valid as a whole. False: they must be looked at one by one.
bool ExpressionColumns::TakeTexts(const Column& column, size_t n, expr::Vector* to) const {
  const bool large = column.leaf_kind() == 'U' || column.leaf_kind() == 'Z';
  TakeValidity(column, n, to);
  return large ? TextsOf<int64_t>(column, items_[0].begin, n, to)
               : TextsOf<int32_t>(column, items_[0].begin, n, to);
}

Status ExpressionColumns::Load(size_t load, const Column& column, int64_t begin, int64_t rows) {
  const expr::Load& of = program_.loads[load];
  const size_t n = static_cast<size_t>(rows);
  expr::Vector& to = *evaluator_.input(load);
  to.Reset(of.type, n);
  PBX_RETURN_IF_ERROR(column.Rows(begin, rows, items_.data(), nulls_.data()));
  if (of.type.kind == Kind::kFloat) {
    WithNumbers(column.leaf(), column.leaf_kind(), [&](auto number) {
      TakeValidity(column, n, &to);
      const int64_t first = items_[0].begin;
      if (column.one_each()) {
        for (size_t row = 0; row < n; ++row) {
          to.floats[row] = number(first + static_cast<int64_t>(row));
        }
        return;
      }
      for (size_t row = 0; row < n; ++row) {
        to.floats[row] = to.valid[row] ? number(items_[row].begin) : 0;
      }
    });
    for (size_t row = 0; row < n; ++row) {
      if (std::isfinite(to.floats[row])) continue;
      to.valid[row] = 0;
      Malformed(begin + static_cast<int64_t>(row), of,
                std::isnan(to.floats[row]) ? "nan is not a finite number"
                                           : "infinity is not a finite number");
    }
    return Status::Ok();
  }
  const bool strings = column.is_string();
  if (of.type == expr::Type{Kind::kText, false, -1} && strings && TakeTexts(column, n, &to)) {
    return Status::Ok();
  }
  size_t values = 0;
  for (size_t row = 0; row < n; ++row) {
    values += static_cast<size_t>(items_[row].end - items_[row].begin);
  }
  if (of.type.kind == Kind::kText && !strings) to.bytes.reserve(values * 24);  // so that none moves
  Status status;
  const auto take = [&](size_t row, int64_t at) {  // false: no value
    int64_t number = 0;
    std::string_view text;
    bool fits = true;
    if (of.type.kind == Kind::kText || (of.type.kind == Kind::kTime && strings)) {
      const Status read = WithText(column, at, [&](std::string_view value) {
        text = value;
        if (strings) {
          fits = IsUtf8(value.data(), value.data() + value.size());
        } else {
          const size_t before = to.bytes.size();
          to.bytes.append(value);
          text = std::string_view(to.bytes).substr(before);
        }
      });
      if (!read.ok()) {
        status = read;
        return false;
      }
      if (text.empty()) return false;
    }
    if (of.type.kind == Kind::kTime) {
      const expr::Zone& zone = program_.zones[static_cast<size_t>(of.type.zone)];
      fits = fits &&
             (strings ? expr::ScanTime(text, zone, &number) : TimeAt(column, at, zone, &number));
    } else if (of.type.kind == Kind::kInt) {
      WithInteger(column.leaf_kind(), [&](auto* type) {
        using T = std::remove_cv_t<std::remove_pointer_t<decltype(type)>>;
        const T value = Values<T>(column.leaf())[at];
        number = static_cast<int64_t>(value);  // NOLINT(bugprone-signed-char-misuse)
      });
    }
    if (!fits) {
      const std::string found = Printable(text.data(), text.data() + text.size(), 40);
      const bool time = of.type.kind == Kind::kTime;
      Malformed(
          begin + static_cast<int64_t>(row), of,
          "'" + found + "' is not " +
              (time ? "a time such as 2024-01-31 23:59:59, with or without an offset" : "UTF-8"));
      return false;
    }
    if (of.type.kind == Kind::kText) {
      of.type.list ? to.texts.push_back(text) : static_cast<void>(to.texts[row] = text);
    } else {
      of.type.list ? to.ints.push_back(number) : static_cast<void>(to.ints[row] = number);
    }
    return true;
  };
  for (size_t row = 0; row < n; ++row) {
    if (!of.type.list) to.valid[row] = 0;
    for (int64_t at = items_[row].begin; at < items_[row].end; ++at) {
      const bool taken = Valid(column.leaf(), at) && take(row, at);
      if (!of.type.list) to.valid[row] = taken;
    }
    if (of.type.list) { to.EndRow(of.type.kind == Kind::kText ? to.texts.size() : to.ints.size()); }
  }
  return status;
}

Status CheckExpressions(const FeedSchema& schema, const ArrowSchema& type) {
  if (schema.program == nullptr) return Status::Ok();
  for (const expr::Load& load : schema.program->loads) {
    const Result<int64_t> place = FindColumn(SpecOfLoad(load), type);
    PBX_RETURN_IF_ERROR(place.status());
    PBX_RETURN_IF_ERROR(CheckLoad(load, *type.children[place.value()]));
  }
  return Status::Ok();
}

}  // namespace pbx::feed
