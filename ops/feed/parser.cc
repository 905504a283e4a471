#include "feed/parser.h"

#include <algorithm>
#include <cstdarg>
#include <cstring>

#include "feed/line_parser.h"
#include "feed/scan.h"
#include "feed/transform.h"

namespace pbx {
namespace feed {

std::string Printable(const char* p, const char* end, size_t limit) {
  std::string text;
  const char* const stop = static_cast<size_t>(end - p) > limit ? p + limit : end;
  for (; p < stop; ++p) {
    if (*p >= 0x20 && *p < 0x7f) {
      text.push_back(*p);
    } else {
      char escaped[5];
      std::snprintf(escaped, sizeof(escaped), "\\x%02x", static_cast<unsigned>(*p) & 0xffu);
      text += escaped;
    }
  }
  return text;
}

bool LineError::Set(const char* format, ...) {
  if (!wanted_) return false;
  char text[512];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof(text), format, args);
  va_end(args);
  reason_ = text;
  return false;
}

bool LineError::Token(const std::string& slot, const char* p, const char* end,
                      const char* expected) {
  if (!wanted_) return false;
  const std::string token = Printable(p, TokenEnd(p, end), 40);
  return Set("slot '%.200s': '%s' is not %s", slot.c_str(), token.c_str(), expected);
}

bool ParseLabel(const std::string& slot, const char* p, const char* end, float* label,
                LineError* error) {
  float value = -1;
  if (ScanFloat(p, end, &value) != end || !(value >= 0 && value <= 1)) {
    return error->Token(slot, p, end, "a label in [0, 1]");
  }
  *label = value + 0.0f;  // "-0" is 0
  return true;
}

}  // namespace feed

namespace {

constexpr size_t kBadLinesKept = 8;
constexpr size_t kExcerptBytes = 80;

std::unique_ptr<feed::LineParser> NewParser(const FeedSchema& schema) {
  switch (schema.format) {
    case Format::kMultiSlot: return feed::NewMultiSlotParser(schema);
    case Format::kFeasignSlot:
    case Format::kSlotValue: return feed::NewSlotTextParser(schema);
    case Format::kCriteoTsv: return feed::NewCriteoParser(schema);
    case Format::kCsv: return feed::NewCsvParser(schema);
    case Format::kColumns: break;
  }
  return nullptr;
}

bool ParseLine(const FeedSchema& schema, const char* p, const char* end, feed::LineParser* parser,
               feed::LineValues* values, feed::LineError* error) {
  const size_t bytes = static_cast<size_t>(end - p);
  if (bytes > schema.max_line_bytes) {
    return error->Set("the line has %zu bytes, expected at most %zu", bytes, schema.max_line_bytes);
  }
  if (const void* nul = std::memchr(p, '\0', bytes)) {
    return error->Set("a NUL byte at offset %zu",
                      static_cast<size_t>(static_cast<const char*>(nul) - p));
  }
  const size_t room = values->MaxFeasigns(bytes);
  if (values->feasigns.size() < room) values->feasigns.resize(room * 2);
  values->count = 0;
  return parser->Parse(p, end, values, error);
}

void AppendLine(const feed::LineValues& values, ParsedChunk* out) {
  ++out->instances;
  out->labels.push_back(values.label);
  out->dense.insert(out->dense.end(), values.dense.begin(), values.dense.end());
  out->lengths.insert(out->lengths.end(), values.lengths.begin(), values.lengths.end());
  const uint64_t* feasigns = values.feasigns.data();
  out->feasigns.insert(out->feasigns.end(), feasigns, feasigns + values.count);
}

}  // namespace

Status ParseChunk(const FeedSchema& whole, const char* data, size_t size, ParsedChunk* out) {
  PBX_RETURN_IF_ERROR(whole.Check());
  *out = ParsedChunk();
  const FeedSchema schema = whole.WithoutMade();
  const std::unique_ptr<feed::LineParser> parser = NewParser(schema);
  if (parser == nullptr) return Error(Code::kInvalidArgument, "the schema's format is no text");
  feed::LineValues values;
  values.dense.resize(schema.dense_width());
  values.lengths.resize(schema.sparse_slots());

  const char* const end = data + size;
  for (const char* p = data; p < end; ++out->lines) {
    const void* found = std::memchr(p, '\n', static_cast<size_t>(end - p));
    const char* const next = found == nullptr ? end : static_cast<const char*>(found);
    const char* const line_end = next > p && next[-1] == '\r' ? next - 1 : next;
    if (line_end > p) {
      feed::LineError error(out->first_bad.size() < kBadLinesKept);
      if (ParseLine(schema, p, line_end, parser.get(), &values, &error)) {
        AppendLine(values, out);
      } else {
        ++out->bad_lines;
        if (out->first_bad.size() < kBadLinesKept) {
          out->first_bad.push_back(
              {out->lines, error.reason(), feed::Printable(p, line_end, kExcerptBytes)});
        }
      }
    }
    p = next == end ? end : next + 1;
  }
  Transform(whole, out);
  return Status::Ok();
}

}  // namespace pbx
