// The interface between ParseChunk and the parser of a format. A LineParser turns one line into
// values. ParseChunk cuts lines, counts bad lines and collects columns.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "feed/text/schema.h"
#include "feed/text/tokens.h"

namespace pbx::feed {

// The values of one line, reused from line to line. S = sparse slots, W = dense width.
struct LineValues {
  float label = 0;
  std::vector<float> dense;  // (W)
  // (W) the first value of exact slots, as read; empty if no slot is exact.
  std::vector<long double> exact;
  std::vector<uint32_t> lengths;   // (S)
  std::vector<uint64_t> feasigns;  // in slot order; room for at least MaxFeasigns of the line
  size_t count = 0;                // feasigns in use
  // As long as `feasigns` if the schema is weighted, otherwise empty. A parser sets the weight of
  // each feasign in use, which it would otherwise have from an earlier line.
  std::vector<float> weights;
  LineTags tags;  // texts point into the line or the parser; valid until the next line

  // An upper bound for a line. A feasign takes a byte and a separator. Criteo's columns are an
  // exception: each gives one feasign even if it is empty. The bound is a few higher, because a 0
  // is written before it is dropped, and MultiSlot writes four at a time.
  size_t MaxFeasigns(size_t line_bytes) const { return line_bytes / 2 + 5 + lengths.size(); }
};

// Bytes as text, unprintable bytes as \xNN. At most `limit` bytes of the input.
std::string Printable(const char* p, const char* end, size_t limit);

// The reason why a line is bad. It formats nothing unless the reason is shown, so that a file of
// bad lines is no slower than a file of good lines.
class LineError {
 public:
  explicit LineError(bool wanted) : wanted_(wanted) {}

  // Both return false, so that a parser can `return error->Set(...)`.
  __attribute__((format(printf, 2, 3))) bool Set(const char* format, ...);
  // "slot 'C3': 'xyz' is not <expected>", for the token that starts at p.
  bool Token(const std::string& slot, const char* p, const char* end, const char* expected);

  bool wanted() const { return wanted_; }
  const std::string& reason() const { return reason_; }

 private:
  bool wanted_;
  std::string reason_;
};

// A line without its line break.
struct TextLine {
  const char* begin;
  const char* end;
};

class LineParser {
 public:
  virtual ~LineParser() = default;

  // Takes up to expr::kRows lines that Parse will be called with, in order, before the next call.
  // It may leave some out. Only called if the schema has expressions.
  virtual void Ahead(const std::vector<TextLine>& lines) { static_cast<void>(lines); }

  // [p, end): a line without its line break, not empty, without NUL. Sets every member of `out`.
  // False if the line is malformed; then `out` is undefined.
  virtual bool Parse(const char* p, const char* end, LineValues* out, LineError* error) = 0;

  // The same with token kernels. [line, line + size) is at most TokenKernels::kMaxLine long,
  // readable for kReach bytes beyond both ends, and may contain NUL. False: not decided; call
  // Parse.
  virtual bool ParseFast(const TokenKernels& kernels, const char* line, size_t size,
                         const TokenColumns& tokens, LineValues* out) {
    static_cast<void>(kernels), static_cast<void>(line), static_cast<void>(size);
    static_cast<void>(tokens), static_cast<void>(out);
    return false;
  }
};

// REQUIRES: schema.Check() is ok. The schema must outlive the parser.
std::unique_ptr<LineParser> NewMultiSlotParser(const FeedSchema& schema);
// The parser of feasign_slot and slot_value.
std::unique_ptr<LineParser> NewSlotTextParser(const FeedSchema& schema);
std::unique_ptr<LineParser> NewCriteoParser(const FeedSchema& schema);
std::unique_ptr<LineParser> NewCsvParser(const FeedSchema& schema);
std::unique_ptr<LineParser> NewPluginParser(const FeedSchema& schema);

// A label slot's value: a number in [0, 1] that fills the whole token.
bool ParseLabel(const std::string& slot, const char* p, const char* end, float* label,
                LineError* error);

// The same for token i, which is converted already. False: not decided; call the function above.
inline bool ParseLabel(const char* line, const TokenColumns& tokens, size_t i, float* label) {
  if (!FloatOf(line, tokens, i, label) || !(*label >= 0 && *label <= 1)) return false;
  *label += 0.0f;
  return true;
}

// Sets the values of a dense slot to its default. column: of its first value.
inline void SetDefault(const SlotSpec& slot, size_t column, LineValues* out) {
  for (size_t i = column; i < column + static_cast<size_t>(slot.dim); ++i) {
    out->dense[i] = static_cast<float>(slot.transform.default_value);
  }
  if (slot.exact) out->exact[column] = static_cast<long double>(slot.transform.default_value);
}

// Divides the value [p, end) of a weighted slot, "id:weight" or "id". Returns where the id ends;
// null if the weight is malformed.
const char* CutWeight(const SlotSpec& slot, const char* p, const char* end, float* weight,
                      LineError* error);

constexpr char kFeasignExpected[] = "a decimal feasign in [0, 2^64 - 1]";
constexpr char kFloatExpected[] = "a finite number";

}  // namespace pbx::feed
