#include "feed/columns/expression_loads.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "base/vector_clones.h"
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

// Sets bytes to bits [first, first + n).
void Unpack(const uint8_t* bits, int64_t first, size_t n, uint8_t* bytes) {
  size_t i = 0;
  for (; i < n && (static_cast<size_t>(first) + i) % 8 != 0; ++i) {
    const size_t at = static_cast<size_t>(first) + i;
    bytes[i] = (bits[at / 8] >> (at % 8)) & 1;
  }
  for (; i + 8 <= n; i += 8) {  // byte k of `spread` has bit k
    const uint64_t eight = bits[(static_cast<size_t>(first) + i) / 8];
    const uint64_t spread = (eight * 0x0101010101010101u) & 0x8040201008040201u;
    const uint64_t ones = (spread + 0x7f7f7f7f7f7f7f7fu) >> 7 & 0x0101010101010101u;
    std::memcpy(bytes + i, &ones, 8);
  }
  for (; i < n; ++i) {
    const size_t at = static_cast<size_t>(first) + i;
    bytes[i] = (bits[at / 8] >> (at % 8)) & 1;
  }
}

// Whether a value that is not null is infinite or NaN.
PBX_VECTOR_CLONES bool AnyOdd(const double* values, const uint8_t* valid, size_t n) {
  uint64_t most, odd = 0;
  std::memcpy(&most, &expr::kMostNumber, 8);
  for (size_t i = 0; i < n; ++i) {
    uint64_t bits;
    std::memcpy(&bits, values + i, 8);
    odd |= (most - (bits & 0x7fffffffffffffffu)) & -uint64_t{valid[i]};
  }
  return odd >> 63 != 0;
}

PBX_VECTOR_CLONES void AsDoubles(const int64_t* from, size_t n, double* to) {
  for (size_t i = 0; i < n; ++i) to[i] = static_cast<double>(from[i]);
}

PBX_VECTOR_CLONES void FindRange(const int64_t* values, size_t n, int64_t* first, int64_t* last) {
  int64_t low = values[0], high = values[0];
  for (size_t i = 1; i < n; ++i) low = std::min(low, values[i]);
  for (size_t i = 1; i < n; ++i) high = std::max(high, values[i]);
  *first = low;
  *last = high;
}

PBX_VECTOR_CLONES void Scale(int64_t* values, size_t n, int64_t unit, int64_t offset) {
  for (size_t i = 0; i < n; ++i) values[i] = values[i] * unit + offset;
}

// Reads one column in one block of rows.
class Loader {
 public:
  Loader(const expr::Load& load, const expr::Zone* zone, const Column& column, int64_t begin,
         size_t n, expr::Vector* to, std::vector<RowError>* errors)
      : load_(load),
        zone_(zone),
        column_(column),
        begin_(begin),
        first_(column.place(begin)),
        n_(n),
        to_(*to),
        errors_(*errors) {}

  Status Take() {
    to_.Reset(load_.type, n_);
    if (load_.type.list) return Lists();
    if (column_.leaf_kind() == 'n') {
      Nulls();
      return Status::Ok();
    }
    Validity();
    const bool strings = column_.is_string();
    switch (load_.type.kind) {
      case Kind::kFloat: Floats(); return Status::Ok();
      case Kind::kInt: Ints(); return Status::Ok();
      case Kind::kTime:
        if (strings)
          return EachText([this](size_t row, std::string_view text) {
            return expr::ScanTime(text, *zone_, &to_.ints[row]);
          });
        Times();
        return Status::Ok();
      default:
        if (!strings) {
          Digits();
          return Status::Ok();
        }
        if (TakeTexts()) return Status::Ok();
        Validity();
        return EachText([this](size_t row, std::string_view text) {
          to_.texts[row] = text;
          return true;
        });
    }
  }

 private:
  void Malformed(size_t row, const std::string& found) {
    errors_.push_back({begin_ + static_cast<int64_t>(row),
                       "column '" + load_.column.substr(0, 200) + "' of an expr: " + found});
  }
  void NoTime(size_t row, std::string_view text) {
    Malformed(row, "'" + Printable(text.data(), text.data() + text.size(), 40) +
                       "' is not a time such as 2024-01-31 23:59:59, with or without an offset");
  }

  void Nulls() {
    std::fill(to_.valid.begin(), to_.valid.end(), uint8_t{0});
    std::fill(to_.texts.begin(), to_.texts.end(), std::string_view());
  }

  void Validity() {
    const ArrowArray& leaf = column_.leaf();
    if (HasNulls(leaf)) {
      Unpack(static_cast<const uint8_t*>(leaf.buffers[0]), first_, n_, to_.valid.data());
    } else {
      std::fill(to_.valid.begin(), to_.valid.end(), uint8_t{1});
    }
  }

  void Floats() {
    if (column_.leaf_kind() == 'l') {
      return AsDoubles(Values<int64_t>(column_.leaf()) + first_, n_, to_.floats.data());
    }
    WithNumbers(column_.leaf(), column_.leaf_kind(), [&](auto number) {
      for (size_t row = 0; row < n_; ++row) {
        to_.floats[row] = number(first_ + static_cast<int64_t>(row));
      }
    });
    if (!AnyOdd(to_.floats.data(), to_.valid.data(), n_)) return;
    for (size_t row = 0; row < n_; ++row) {
      if (!to_.valid[row] || std::isfinite(to_.floats[row])) continue;
      to_.valid[row] = 0;
      Malformed(row, std::isnan(to_.floats[row]) ? "nan is not a finite number"
                                                 : "infinity is not a finite number");
    }
  }

  void Ints() {
    WithInteger(column_.leaf_kind(), [&](auto* type) {
      using T = std::remove_cv_t<std::remove_pointer_t<decltype(type)>>;
      const T* const from = Values<T>(column_.leaf()) + first_;
      for (size_t row = 0; row < n_; ++row) {
        to_.ints[row] = static_cast<int64_t>(from[row]);  // NOLINT(bugprone-signed-char-misuse)
      }
    });
  }

  // Dates and timestamps, in microseconds of the local time of the zone.
  void Times() {
    const ArrowSchema& type = column_.leaf_type();
    const int64_t units = UnitsOfDay(type);
    if (units == 1) {
      const int32_t* const days = Values<int32_t>(column_.leaf()) + first_;
      for (size_t row = 0; row < n_; ++row) to_.ints[row] = days[row];
    } else {
      std::copy_n(Values<int64_t>(column_.leaf()) + first_, n_, to_.ints.begin());
    }
    const bool nanos = units > expr::kDay;
    const int64_t unit = nanos ? 1 : expr::kDay / units;
    const int64_t least = expr::kFirstTime / unit, most = expr::kLastTime / unit;
    const bool instant = type.format[1] == 's' && type.format[4] != '\0';
    expr::LocalTimes local(*zone_);
    int64_t first, last;
    FindRange(to_.ints.data(), n_, &first, &last);
    // Most blocks are within one period of the zone.
    if (!nanos && first >= least && last <= most &&
        (!instant || local.Same(first * unit, last * unit))) {
      return Scale(to_.ints.data(), n_, unit, instant ? local.Of(first * unit) - first * unit : 0);
    }
    for (size_t row = 0; row < n_; ++row) {
      if (!to_.valid[row]) continue;
      int64_t value = to_.ints[row];
      if (nanos) value = expr::FloorDivide(value, 1000);
      if (value < least || value > most) {
        to_.valid[row] = 0;
        NoTime(row, std::to_string(value));
        continue;
      }
      to_.ints[row] = instant ? local.Of(value * unit) : value * unit;
    }
  }

  // The digits of integers.
  void Digits() {
    constexpr size_t kMost = 24;
    to_.bytes.resize(n_ * kMost);
    char* next = to_.bytes.data();
    WithInteger(column_.leaf_kind(), [&](auto* type) {
      using T = std::remove_cv_t<std::remove_pointer_t<decltype(type)>>;
      const T* const from = Values<T>(column_.leaf()) + first_;
      for (size_t row = 0; row < n_; ++row, next += kMost) {
        char* const end = std::to_chars(next, next + kMost, from[row]).ptr;
        to_.texts[row] = std::string_view(next, static_cast<size_t>(end - next));
      }
    });
  }

  // Takes strings whose bytes are valid as a whole. False: they must be looked at one by one.
  bool TakeTexts() {
    const bool large = column_.leaf_kind() == 'U' || column_.leaf_kind() == 'Z';
    return large ? TextsOf<int64_t>() : TextsOf<int32_t>();
  }

  template <typename Offset>
  bool TextsOf() {
    const ArrowArray& leaf = column_.leaf();
    const Offset* const offsets = Values<Offset>(leaf) + first_;
    const char* const text = static_cast<const char*>(leaf.buffers[2]);
    const Offset begin = offsets[0], end = offsets[n_];
    const Offset most = Values<Offset>(leaf)[leaf.offset + leaf.length];
    bool fits = text != nullptr && begin >= 0 && begin < end && end <= most;
    for (size_t row = 0; row < n_; ++row) fits &= offsets[row] <= offsets[row + 1];
    if (!fits || !IsUtf8(text + begin, text + end)) return false;
    to_.around = std::string_view(text, static_cast<size_t>(most));
    std::string_view* const texts = to_.texts.data();
    uint8_t* const valid = to_.valid.data();
    bool begins = true;
    for (size_t row = 0; row < n_; ++row) {
      const Offset from = offsets[row], size = offsets[row + 1] - from;
      const char* const p = text + (size == 0 ? begin : from);
      begins &= (static_cast<unsigned char>(*p) & 0xc0) != 0x80;
      texts[row] = std::string_view(p, static_cast<size_t>(size));
      valid[row] &= size != 0;
    }
    return begins;
  }

  // The string at an index.
  Status TextAt(int64_t at, std::string_view* text) const {
    const bool large = column_.leaf_kind() == 'U' || column_.leaf_kind() == 'Z';
    return large ? TextOf<int64_t>(column_, at, text) : TextOf<int32_t>(column_, at, text);
  }

  // Calls take(row, text) for strings, which returns whether the text is a time.
  template <typename Taken>
  Status EachText(Taken take) {
    for (size_t row = 0; row < n_; ++row) {
      if (!to_.valid[row]) continue;
      std::string_view text;
      PBX_RETURN_IF_ERROR(TextAt(first_ + static_cast<int64_t>(row), &text));
      to_.valid[row] = !text.empty() && IsUtf8At(row, text);
      if (!to_.valid[row] || take(row, text)) continue;
      to_.valid[row] = 0;
      NoTime(row, text);
    }
    return Status::Ok();
  }

  bool IsUtf8At(size_t row, std::string_view text) {
    if (IsUtf8(text.data(), text.data() + text.size())) return true;
    Malformed(row, "'" + Printable(text.data(), text.data() + text.size(), 40) + "' is not UTF-8");
    return false;
  }

  // Items of lists, or single values as lists of one.
  Status Lists() {
    std::vector<Items> rows(n_);
    std::vector<uint8_t> nulls(n_);
    PBX_RETURN_IF_ERROR(column_.Rows(begin_, static_cast<int64_t>(n_), rows.data(), nulls.data()));
    const ArrowArray& leaf = column_.leaf();
    for (size_t row = 0; row < n_; ++row) {
      for (int64_t at = rows[row].begin; at < rows[row].end; ++at) {
        if (Valid(leaf, at)) PBX_RETURN_IF_ERROR(Item(row, at));
      }
      to_.EndRow(load_.type.kind == Kind::kText ? to_.texts.size() : to_.ints.size());
    }
    if (load_.type.kind == Kind::kText && !column_.is_string()) FindDigits();
    return Status::Ok();
  }

  Status Item(size_t row, int64_t at) {
    if (column_.is_string()) {
      std::string_view text;
      PBX_RETURN_IF_ERROR(TextAt(at, &text));
      if (!text.empty() && IsUtf8At(row, text)) to_.texts.push_back(text);
      return Status::Ok();
    }
    WithInteger(column_.leaf_kind(), [&](auto* type) {
      using T = std::remove_cv_t<std::remove_pointer_t<decltype(type)>>;
      const T value = Values<T>(column_.leaf())[at];
      if (load_.type.kind == Kind::kInt) {
        to_.ints.push_back(static_cast<int64_t>(value));  // NOLINT(bugprone-signed-char-misuse)
        return;
      }
      char digits[24];
      char* const end = std::to_chars(digits, digits + sizeof(digits), value).ptr;
      to_.bytes.append(digits, end);
      to_.texts.emplace_back(nullptr, static_cast<size_t>(end - digits));  // FindDigits sets it
    });
    return Status::Ok();
  }

  // Sets the texts of items whose sizes are set to the bytes, which move no more.
  void FindDigits() {
    const char* next = to_.bytes.data();
    for (std::string_view& text : to_.texts) {
      text = std::string_view(next, text.size());
      next += text.size();
    }
  }

  const expr::Load& load_;
  const expr::Zone* const zone_;
  const Column& column_;
  const int64_t begin_;
  const int64_t first_;  // of a column without lists: the place of the first value
  const size_t n_;
  expr::Vector& to_;
  std::vector<RowError>& errors_;
};

}  // namespace

SlotSpec SpecOf(const expr::Load& load) {
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

Status TakeLoad(const expr::Load& load, const expr::Zone* zone, const Column& column, int64_t begin,
                size_t n, expr::Vector* to, std::vector<RowError>* errors) {
  return Loader(load, zone, column, begin, n, to, errors).Take();
}

}  // namespace pbx::feed
