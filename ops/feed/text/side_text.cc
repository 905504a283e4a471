#include "feed/text/side_text.h"

#include <cstring>

#include "feed/text/line_parser.h"
#include "feed/text/scan.h"

namespace pbx {
namespace {

constexpr size_t kExcerptBytes = 80;

// [p, end): a line without its line break, not empty.
bool ParseRow(const SideTextLayout& layout, const char* p, const char* end, uint64_t number,
              SideRows* out, feed::LineError* error) {
  const size_t bytes = static_cast<size_t>(end - p);
  if (bytes > layout.max_line_bytes) {
    return error->Set("the line has %zu bytes, expected at most %zu", bytes, layout.max_line_bytes);
  }
  if (std::memchr(p, '\0', bytes) != nullptr) return error->Set("a NUL byte");
  if (!feed::IsUtf8(p, end)) return error->Set("the line is not UTF-8");
  p = feed::SkipBlanks(p, end);
  const char* const key = p;
  p = feed::TokenEnd(p, end);
  if (p == key) return error->Set("the line has no key, expected 'key v1 .. v%zu'", layout.dim);
  if (layout.numbered) {
    uint64_t found = 0;
    if (feed::ScanUint64(key, p, &found) != p || found != number) {
      return error->Set("row number '%s', expected %llu: rows must be in order and without gaps",
                        feed::Printable(key, p, 40).c_str(),
                        static_cast<unsigned long long>(number));
    }
  } else {
    out->key_bytes.append(key, p);
    out->key_ends.push_back(out->key_bytes.size());
  }
  for (size_t i = 0; i < layout.dim; ++i) {
    p = feed::SkipBlanks(p, end);
    if (p == end) return error->Set("%zu values, expected %zu", i, layout.dim);
    float value = 0;
    const char* const after = feed::TokenEnd(p, end);
    if (feed::ScanFloat(p, after, &value) != after) {
      return error->Set("value %zu '%s' is not a finite number", i + 1,
                        feed::Printable(p, after, 40).c_str());
    }
    out->values.push_back(value);
    p = after;
  }
  if (feed::SkipBlanks(p, end) != end) return error->Set("more than %zu values", layout.dim);
  return true;
}

}  // namespace

Status ParseSideText(const SideTextLayout& layout, const char* data, size_t size,
                     uint64_t first_row, uint64_t* line, SideRows* out) {
  const char* const end = data + size;
  uint64_t number = first_row;
  for (const char* p = data; p < end;) {
    const void* found = std::memchr(p, '\n', static_cast<size_t>(end - p));
    const char* const next = found == nullptr ? end : static_cast<const char*>(found);
    const char* const line_end = next > p && next[-1] == '\r' ? next - 1 : next;
    ++*line;
    if (line_end > p) {
      feed::LineError error(true);
      if (!ParseRow(layout, p, line_end, number, out, &error)) {
        return Error(Code::kInvalidArgument, "%s:%llu: %s: %s", out->origin.c_str(),
                     static_cast<unsigned long long>(*line), error.reason().c_str(),
                     feed::Printable(p, line_end, kExcerptBytes).c_str());
      }
      out->lines.push_back(*line);
      ++number;
    }
    p = next == end ? end : next + 1;
  }
  return Status::Ok();
}

}  // namespace pbx
