#include "feed/text/parser.h"

#include <algorithm>
#include <cstdarg>
#include <cstring>

#include "feed/text/dense_limits.h"
#include "feed/text/line_parser.h"
#include "feed/text/scan.h"
#include "feed/text/tokens.h"
#include "feed/text/transform.h"

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

const char* CutWeight(const SlotSpec& slot, const char* p, const char* end, float* weight,
                      LineError* error) {
  *weight = 1;
  const void* found = memrchr(p, ':', static_cast<size_t>(end - p));
  if (found == nullptr) return end;
  const char* const colon = static_cast<const char*>(found);
  float value = -1;
  if (ScanFloat(colon + 1, end, &value) == end && value >= 0 && value <= kMostWeight) {
    *weight = value + 0.0f;  // "-0" is 0
    return colon;
  }
  if (error->wanted()) {
    error->Set("slot '%.200s': '%s' is not an id with a weight in [0, 2^32], such as 7:0.5",
               slot.name.c_str(), Printable(p, end, 40).c_str());
  }
  return nullptr;
}

namespace {

constexpr size_t kBadLinesKept = 8;
constexpr size_t kExcerptBytes = 80;

std::unique_ptr<LineParser> NewParser(const FeedSchema& schema) {
  switch (schema.format) {
    case Format::kMultiSlot: return NewMultiSlotParser(schema);
    case Format::kFeasignSlot:
    case Format::kSlotValue: return NewSlotTextParser(schema);
    case Format::kCriteoTsv: return NewCriteoParser(schema);
    case Format::kCsv: return NewCsvParser(schema);
    case Format::kPlugin: return NewPluginParser(schema);
    case Format::kColumns: break;
  }
  return nullptr;
}

// Some editors put this mark at the beginning of a file. In concatenated files it can begin any
// line.
constexpr char kByteOrderMark[] = "\xef\xbb\xbf";

class ChunkParser {
 public:
  ChunkParser(const FeedSchema& schema, const char* data, size_t size, ParsedChunk* out)
      : schema_(schema),
        begin_(data),
        end_(data + size),
        out_(*out),
        parser_(NewParser(schema)),
        limits_(schema) {
    values_.dense.resize(schema.dense_width());
    if (exact_) values_.exact.resize(values_.dense.size());
    values_.lengths.resize(schema.sparse_slots());
    if (kernels_ != nullptr) tokens_ = std::make_unique<TokenBuffer>();
  }

  bool known() const { return parser_ != nullptr; }

  void Run() {
    const char* ahead = schema_.program != nullptr ? begin_ : end_;
    for (const char* p = begin_; p < end_; ++out_.lines) {
      if (p == ahead) ahead = Ahead(p);
      const void* found = std::memchr(p, '\n', static_cast<size_t>(end_ - p));
      const char* const next = found == nullptr ? end_ : static_cast<const char*>(found);
      const char* const line_end = next > p && next[-1] == '\r' ? next - 1 : next;
      if (ParseFast(p, line_end)) {
        Take(p, line_end);
      } else {
        ParseSlowly(p, line_end);
      }
      p = next == end_ ? end_ : next + 1;
    }
  }

 private:
  bool ParseFast(const char* p, const char* end) {
    const size_t bytes = static_cast<size_t>(end - p);
    if (kernels_ == nullptr || bytes == 0 || bytes > schema_.max_line_bytes ||
        bytes > TokenKernels::kMaxLine || p - begin_ < kReach || end_ - end < kReach) {
      return false;
    }
    MakeRoom(bytes);
    if (has_text_ && !all_utf8_) return false;
    LineError unsaid(false);
    p = SkipTags(p, end, &unsaid);
    if (p == nullptr || p == end) return false;
    const size_t rest = static_cast<size_t>(end - p);
    return parser_->ParseFast(*kernels_, p, rest, tokens_->columns(), &values_);
  }

  static const char* SkipMark(const char* p, const char* end) {
    return end - p >= 3 && std::memcmp(p, kByteOrderMark, 3) == 0 ? p + 3 : p;
  }

  // Shows the parser the next lines. Returns where the line after them begins.
  const char* Ahead(const char* p) {
    lines_.clear();
    while (p < end_ && lines_.size() < expr::kRows) {
      const void* found = std::memchr(p, '\n', static_cast<size_t>(end_ - p));
      const char* const next = found == nullptr ? end_ : static_cast<const char*>(found);
      const char* const line_end = next > p && next[-1] == '\r' ? next - 1 : next;
      const char* const begin = SkipMark(p, line_end);
      if (begin < line_end && static_cast<size_t>(line_end - begin) <= schema_.max_line_bytes) {
        lines_.push_back({begin, line_end});
      }
      p = next == end_ ? end_ : next + 1;
    }
    parser_->Ahead(lines_);
    return p;
  }

  void ParseSlowly(const char* p, const char* end) {
    p = SkipMark(p, end);
    if (p == end) return;
    LineError error(out_.first_bad.size() < kBadLinesKept);
    if (ParseLine(p, end, &error)) {
      Take(p, end);
    } else {
      Reject(p, end, error);
    }
  }

  // Adds a parsed line, unless one of its dense values is too large.
  void Take(const char* p, const char* end) {
    if (limits_.Beyond(values_.dense.data())) {
      LineError error(out_.first_bad.size() < kBadLinesKept);
      if (!limits_.Take(values_.dense.data(), out_.lines, &out_.large, &error)) {
        Reject(p, end, error);
        return;
      }
      if (looked_ < kLooked && limits_.MayRound(values_.dense.data(), out_.rounded)) Look(p, end);
    }
    Append(p, end);
  }

  // Parses the line once more, for its dense values as they were read.
  __attribute__((noinline)) void Look(const char* p, const char* end) {
    if (looked_++ == 0) {
      for (SlotSpec& slot : exactly_.slots) slot.exact = true;
      exact_parser_ = NewParser(exactly_);
      values_.exact.resize(values_.dense.size());
    }
    if (schema_.format == Format::kPlugin) return;
    LineError unsaid(false);
    values_.count = 0;
    p = SkipTags(SkipMark(p, end), end, &unsaid);
    if (p != nullptr && schema_.program != nullptr) exact_parser_->Ahead({{p, end}});
    if (p == nullptr || !exact_parser_->Parse(p, end, &values_, &unsaid)) return;
    limits_.TakeRounded(values_.dense.data(), values_.exact.data(), out_.lines, &out_.rounded);
  }

  __attribute__((noinline)) void Reject(const char* p, const char* end, const LineError& error) {
    ++out_.bad_lines;
    if (out_.first_bad.size() < kBadLinesKept) {
      out_.first_bad.push_back({out_.lines, error.reason(), Printable(p, end, kExcerptBytes)});
    }
  }

  bool ParseLine(const char* p, const char* end, LineError* error) {
    const size_t bytes = static_cast<size_t>(end - p);
    if (bytes > schema_.max_line_bytes) {
      return error->Set("the line has %zu bytes, expected at most %zu", bytes,
                        schema_.max_line_bytes);
    }
    if (const void* nul = std::memchr(p, '\0', bytes)) {
      return error->Set("a NUL byte at offset %zu",
                        static_cast<size_t>(static_cast<const char*>(nul) - p));
    }
    if (const size_t valid = all_utf8_ ? bytes : Utf8Bytes(p, end); valid < bytes) {
      return error->Set("byte %zu of the line, \\x%02x, is not UTF-8", valid + 1,
                        static_cast<unsigned>(p[valid]) & 0xffu);
    }
    MakeRoom(bytes);
    p = SkipTags(p, end, error);
    return p != nullptr && parser_->Parse(p, end, &values_, error);
  }

  // Returns where the slots of the line begin; null if its tags are malformed.
  const char* SkipTags(const char* p, const char* end, LineError* error) {
    return leading_tags_ ? TakeTags(schema_.tags, p, end, &values_.tags, error) : p;
  }

  void MakeRoom(size_t line_bytes) {
    const size_t room = values_.MaxFeasigns(line_bytes);
    if (values_.feasigns.size() < room) values_.feasigns.resize(room + room / 4);
    if (weighted_) values_.weights.resize(values_.feasigns.size());
    values_.count = 0;
  }

  // [p, end): the line. Reserves memory as if the rest of the chunk had as many values per byte as
  // the lines so far.
  void Append(const char* p, const char* end) {
    const size_t rest = static_cast<size_t>(end_ - p);
    const size_t lines = rest / static_cast<size_t>(end - p + 1) + 1;
    const auto append = [&](const auto* values, size_t n, auto* column) {
      if (column->capacity() - column->size() < n) {
        // The slack is at most a quarter, and the total at most four times the text.
        const size_t wanted = n * lines + n * lines / 64;
        const size_t most = 4 * rest / sizeof(*values);
        column->reserve(column->size() + std::max({n, column->size() / 4, std::min(wanted, most)}));
      }
      column->insert(column->end(), values, values + n);
    };
    ++out_.instances;
    append(&values_.label, 1, &out_.labels);
    append(values_.dense.data(), values_.dense.size(), &out_.dense);
    if (exact_) AppendExact(append);
    append(values_.lengths.data(), values_.lengths.size(), &out_.lengths);
    append(values_.feasigns.data(), values_.count, &out_.feasigns);
    if (weighted_) append(values_.weights.data(), values_.count, &out_.weights);
    if (schema_.tags.any()) out_.tags.Add(schema_.tags, values_.tags);
  }

  template <typename Append>
  void AppendExact(const Append& append) {
    if (schema_.format == Format::kCriteoTsv || schema_.format == Format::kPlugin) {  // floats
      std::copy(values_.dense.begin(), values_.dense.end(), values_.exact.begin());
    }
    append(values_.exact.data(), values_.exact.size(), &out_.exact);
  }

  bool HasStrings() const {
    return std::any_of(schema_.slots.begin(), schema_.slots.end(),
                       [](const SlotSpec& slot) { return slot.transform.hash; });
  }

  static constexpr std::ptrdiff_t kReach = TokenKernels::kReach;

  const FeedSchema& schema_;
  const char* const begin_;
  const char* const end_;
  ParsedChunk& out_;
  const std::unique_ptr<LineParser> parser_;
  const DenseLimits limits_;
  const bool weighted_ = schema_.weighted();
  const bool exact_ = schema_.exact();
  // For `rounded`: lines that are parsed once more, of each chunk.
  static constexpr int kLooked = 256;
  int looked_ = 0;
  FeedSchema exactly_ = schema_;
  std::unique_ptr<LineParser> exact_parser_;
  // Null on the plain path, and if tokens are strings or have weights, which the kernels cannot
  // read.
  const TokenKernels* const kernels_ = HasStrings() || weighted_ ? nullptr : ActiveTokenKernels();
  std::unique_ptr<TokenBuffer> tokens_;
  std::vector<TextLine> lines_;
  LineValues values_;
  const bool leading_tags_ = schema_.tags.any() && schema_.format == Format::kMultiSlot;
  // Whether lines that the kernels can read may hold text: names of unknown slots, or tags.
  const bool has_text_ = kernels_ == nullptr || leading_tags_ ||
                         schema_.format == Format::kFeasignSlot ||
                         schema_.format == Format::kSlotValue;
  // One check of the chunk is faster than one of each line. False: unknown.
  const bool all_utf8_ = has_text_ && IsUtf8(begin_, end_);
};

}  // namespace
}  // namespace feed

void ParsedChunk::AddFeasigns(const ParsedChunk& from, size_t first, size_t n) {
  const size_t before = feasigns.size();
  const auto add = [&](const auto& values, auto* column) {
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(first);
    column->insert(column->end(), begin, begin + static_cast<std::ptrdiff_t>(n));
  };
  add(from.feasigns, &feasigns);
  if (from.weights.empty() && weights.empty()) return;
  weights.resize(before, 1.0f);
  if (from.weights.empty()) {
    weights.resize(feasigns.size(), 1.0f);
  } else {
    add(from.weights, &weights);
  }
}

Status ParseChunk(const FeedSchema& whole, const char* data, size_t size, ParsedChunk* out) {
  PBX_RETURN_IF_ERROR(whole.Check());
  *out = ParsedChunk();
  const FeedSchema schema = whole.WithoutMade();
  feed::ChunkParser parser(schema, data, size, out);
  if (!parser.known())
    return Error(Code::kInvalidArgument, "the schema's format is not a text format");
  parser.Run();
  Transform(whole, out);
  return Status::Ok();
}

}  // namespace pbx
