// Tags (ids, contents, log keys, times) from columns.
#include <cstring>
#include <string>

#include "feed/columns/column_block.h"
#include "feed/text/line_parser.h"

namespace pbx::feed {
namespace {

constexpr size_t kMaxDigits = 20;  // digits of a 64-bit number, or a sign and 19 digits

// The decimal digits of the integer at index `at` of the leaf.
std::string TextOfInteger(const Column& column, int64_t at) {
  std::string digits;
  WithInteger(column.leaf_kind(), [&](auto* type) {
    digits = std::to_string(static_cast<decltype(type)>(column.leaf().buffers[1])[at]);
  });
  return digits;
}

}  // namespace

Status Block::TakeTags(const TagColumn& tag, const Column& column) {
  const char kind = column.leaf_kind();
  const bool text = std::strchr("uUzZ", kind) != nullptr;
  if (tag.tag == Tag::kInsId && !text)
    digits_.reserve(kBlockRows * kMaxDigits);  // so that views into it stay valid
  for (size_t row = 0; row < rows_; ++row) {
    LineTags* const out = &row_tags_[row];
    LineError error(true);
    std::string_view value;
    if (nulls_[row]) {
      if (tag.tag != Tag::kContent) Bad(row, "%s: a null", tag.name);
    } else if (text) {
      const int64_t at = items_[row].begin;
      PBX_RETURN_IF_ERROR(kind == 'u' || kind == 'z' ? TextOf<int32_t>(column, at, &value)
                                                     : TextOf<int64_t>(column, at, &value));
    } else if (tag.tag == Tag::kTime) {
      if (!SetTime(TextOfInteger(column, items_[row].begin), out, &error)) {
        Bad(row, "%s", error.reason().c_str());
      }
      continue;
    } else {
      value = DigitsOf(column, items_[row].begin);
    }
    if (nulls_[row] && tag.tag != Tag::kContent) continue;
    if (tag.tag == Tag::kContent) {
      out->content = value;
    } else if (tag.tag == Tag::kInsId) {
      out->ins_id = value;
      if (value.empty()) Bad(row, "%s: an empty text, expected an id", tag.name);
    } else if (!SetLogKey(value, out, &error)) {
      Bad(row, "%s", error.reason().c_str());
    }
  }
  return Status::Ok();
}

std::string_view Block::DigitsOf(const Column& column, int64_t at) {
  const size_t first = digits_.size();
  digits_ += TextOfInteger(column, at);
  return std::string_view(digits_).substr(first);
}

}  // namespace pbx::feed
