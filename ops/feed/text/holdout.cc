#include "feed/text/holdout.h"

#include <cmath>
#include <cstring>

#include "base/hash.h"
#include "feed/text/csv_cells.h"
#include "feed/text/scan.h"

namespace pbx {
namespace {

constexpr char kName[] = "holdout";  // keeps the hashes apart from those of feasigns

bool IsNumber(std::string_view text) {
  float rounded = 0;
  const char *const begin = text.data(), *const end = begin + text.size();
  return begin != end && feed::ScanFloat(begin, end, &rounded) == end;
}

long double NumberOf(std::string_view text) {
  return feed::ExactOf(text.data(), text.data() + text.size());
}

// Finds the value of a column in the lines of a CSV file.
class CellReader {
 public:
  CellReader(const FeedSchema& schema, size_t column) : schema_(schema), column_(column) {}

  // Empty if the line has no such cell. Valid until the next call.
  std::string_view Read(const char* p, const char* end) {
    const size_t bytes = static_cast<size_t>(end - p);
    if (bytes > schema_.max_line_bytes) return {};
    unquoted_.clear();
    unquoted_.reserve(bytes);
    feed::LineError unsaid(false);
    feed::Cell cell = {};
    for (size_t i = 0; i <= column_; ++i) {
      if (i > 0 && p++ == end) return {};
      p = feed::CutCell(p, end, schema_.csv_delimiter, i + 1, &unquoted_, &cell, &unsaid);
      if (p == nullptr) return {};
    }
    const std::string_view text(cell.begin, static_cast<size_t>(cell.end - cell.begin));
    for (const std::string& null : schema_.csv_nulls) {
      if (text == null) return {};
    }
    return text;
  }

 private:
  const FeedSchema& schema_;
  const size_t column_;
  std::string unquoted_;
};

const char* WithoutByteOrderMark(const char* p, const char* end) {
  return end - p >= 3 && std::memcmp(p, "\xef\xbb\xbf", 3) == 0 ? p + 3 : p;
}

}  // namespace

Result<Holdout> Holdout::From(const HoldoutRule& rule) {
  const bool shares = rule.share > 0 && rule.share < 1;
  const int rules =
      (rule.share != 0 ? 1 : 0) + (rule.at_least.empty() ? 0 : 1) + (rule.equals.empty() ? 0 : 1);
  if (rules != 1 || (rule.share != 0 && !shares)) {
    return Error(Code::kInvalidArgument,
                 "holdout: expected one of a share in (0, 1), at_least and equals, found share %g, "
                 "at_least '%.80s', equals '%.80s'",
                 rule.share, rule.at_least.c_str(), rule.equals.c_str());
  }
  Holdout made;
  made.rule_ = rule;
  made.rule_.seed = HashBytes(kName, sizeof(kName) - 1, rule.seed);
  if (shares) made.bound_ = static_cast<uint64_t>(std::ldexp(rule.share, 64));
  made.numeric_ = IsNumber(rule.at_least);
  if (made.numeric_) made.number_ = NumberOf(rule.at_least);
  return made;
}

uint64_t Holdout::FileNumber(std::string_view name) const {
  return HashBytes(name.data(), name.size(), rule_.seed);
}

Result<bool> Holdout::Holds(std::string_view value, uint64_t file, uint64_t place) const {
  if (rule_.share != 0) {
    if (!rule_.of_values || value.empty()) return Mix(file + Mix(place + 1)) < bound_;
    return HashBytes(value.data(), value.size(), rule_.seed) < bound_;
  }
  if (value.empty()) return false;
  if (!rule_.equals.empty()) return value == rule_.equals;
  if (!numeric_) return value >= std::string_view(rule_.at_least);
  if (IsNumber(value)) return NumberOf(value) >= number_;
  return Error(Code::kInvalidArgument, "'%s' is not a number, as at_least %s is",
               feed::Printable(value.data(), value.data() + value.size(), 40).c_str(),
               rule_.at_least.c_str());
}

Result<uint64_t> KeepLines(const Holdout& holdout, const FeedSchema& schema,
                           const HoldoutLines& lines, bool held_out, bool drop, const char* data,
                           size_t size, std::string* out) {
  const uint64_t file = holdout.FileNumber(lines.file);
  const char* const end = data + size;
  CellReader cells(schema, lines.column);
  uint64_t left_out = 0;
  out->clear();
  out->reserve(size + 1);
  for (const char* p = data; p < end;) {
    const void* found = std::memchr(p, '\n', static_cast<size_t>(end - p));
    const char* const next = found == nullptr ? end : static_cast<const char*>(found) + 1;
    const char* line_end = found == nullptr ? end : static_cast<const char*>(found);
    if (line_end > p && line_end[-1] == '\r') --line_end;
    const char* const begin = WithoutByteOrderMark(p, line_end);
    bool keeps = begin == line_end;
    if (!keeps) {
      const std::string_view value =
          holdout.reads_values() ? cells.Read(begin, line_end) : std::string_view();
      const Result<bool> holds =
          holdout.Holds(value, file, lines.end - static_cast<uint64_t>(end - p));
      if (!holds.ok()) return holds.status();
      keeps = holds.value() == held_out;
    }
    if (keeps) {
      out->append(p, next);
    } else {
      ++left_out;
      if (!drop) out->push_back('\n');
    }
    p = next;
  }
  return left_out;
}

Result<std::vector<uint8_t>> KeepRows(const Holdout& holdout, const HoldoutRows& rows,
                                      bool held_out) {
  const uint64_t file = holdout.FileNumber(rows.file);
  std::vector<uint8_t> keeps(rows.count);
  for (size_t i = 0; i < rows.count; ++i) {
    std::string_view value;
    if (rows.offsets != nullptr) {
      value = std::string_view(rows.bytes + rows.offsets[i],
                               static_cast<size_t>(rows.offsets[i + 1] - rows.offsets[i]));
    }
    const Result<bool> holds = holdout.Holds(value, file, rows.first + i);
    if (!holds.ok()) return holds.status();
    keeps[i] = holds.value() == held_out ? 1 : 0;
  }
  return keeps;
}

void CountAllRows(const std::vector<uint64_t>& kept, uint64_t rows, ParsedChunk* chunk) {
  const auto number = [&](auto* lines) {
    for (auto& one : *lines) one.line = kept[one.line];
  };
  number(&chunk->first_bad);
  number(&chunk->large);
  number(&chunk->rounded);
  chunk->lines = rows;
  chunk->left_out = rows - kept.size();
}

}  // namespace pbx
