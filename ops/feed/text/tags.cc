#include "feed/text/tags.h"

#include <cstring>

#include "feed/text/line_parser.h"
#include "feed/text/scan.h"

namespace pbx {
namespace {

constexpr size_t kLogKeyChars = 32;

// The value of the hexadecimal digits [first, last) of the text. False if one is not such a digit.
bool Hex(std::string_view text, size_t first, size_t last, uint64_t* out) {
  return feed::ScanHex64(text.data() + first, text.data() + last, out) == text.data() + last;
}

}  // namespace

bool ParseLogKey(std::string_view text, LogKey* out) {
  uint64_t cmatch = 0, rank = 0;
  if (text.size() < kLogKeyChars || !Hex(text, 11, 14, &cmatch) || !Hex(text, 14, 16, &rank) ||
      !Hex(text, 16, kLogKeyChars, &out->search_id)) {
    return false;
  }
  out->cmatch = static_cast<uint32_t>(cmatch);
  out->rank = static_cast<uint32_t>(rank);
  return true;
}

void TagColumns::Add(const TagSpec& spec, const LineTags& tags) {
  if (spec.has_ids()) ins_ids.Add(tags.ins_id);
  if (spec.content) contents.Add(tags.content);
  if (spec.log_key) log_keys.push_back(tags.log_key);
  if (spec.time) times.push_back(tags.time);
}

void TagColumns::AddRow(const TagColumns& from, size_t row) {
  if (from.ins_ids.size() > 0) ins_ids.Add(from.ins_ids[row]);
  if (from.contents.size() > 0) contents.Add(from.contents[row]);
  if (!from.log_keys.empty()) log_keys.push_back(from.log_keys[row]);
  if (!from.times.empty()) times.push_back(from.times[row]);
}

bool TagColumns::Fits(size_t n) const {
  const auto fits = [n](size_t size) { return size == 0 || size == n; };
  return fits(ins_ids.size()) && fits(contents.size()) && fits(log_keys.size()) &&
         fits(times.size());
}

namespace feed {
namespace {

// Reads "1 <text>" at p. A NUL makes the line malformed, on every vector path.
const char* TakeText(const char* name, const char* p, const char* end, std::string_view* out,
                     LineError* error) {
  p = SkipBlanks(p, end);
  const char* const count_end = TokenEnd(p, end);
  if (count_end - p != 1 || *p != '1') {
    if (error->wanted()) {
      const std::string found = Printable(p, count_end, 40);
      error->Set("%s: expected '1 <%s>', found '%s'", name, name, found.c_str());
    }
    return nullptr;
  }
  p = SkipBlanks(count_end, end);
  const char* const after = TokenEnd(p, end);
  const size_t size = static_cast<size_t>(after - p);
  if (size == 0 || std::memchr(p, '\0', size) != nullptr) {
    error->Set("%s: %s", name, size == 0 ? "the line ends before it" : "a NUL byte in it");
    return nullptr;
  }
  *out = {p, size};
  return after;
}

}  // namespace

bool SetLogKey(std::string_view text, LineTags* out, LineError* error) {
  out->ins_id = text;
  if (ParseLogKey(text, &out->log_key)) return true;
  return error->wanted() &&
         error->Set(
             "logkey: '%s' is not a log key: expected at least 32 characters, [11, 32) hexadecimal",
             Printable(text.data(), text.data() + text.size(), 80).c_str());
}

bool SetTime(std::string_view text, LineTags* out, LineError* error) {
  const char* const end = text.data() + text.size();
  uint64_t time = 0;
  if (!text.empty() && ScanUint64(text.data(), end, &time) == end && time <= INT64_MAX) {
    out->time = static_cast<int64_t>(time);
    return true;
  }
  return error->wanted() && error->Set("time: '%s' is not an integer in [0, 2^63 - 1]",
                                       Printable(text.data(), end, 40).c_str());
}

const char* TakeTags(const TagSpec& spec, const char* p, const char* end, LineTags* out,
                     LineError* error) {
  if (spec.ins_id) p = TakeText("ins_id", p, end, &out->ins_id, error);
  if (p != nullptr && spec.content) p = TakeText("content", p, end, &out->content, error);
  if (p != nullptr && spec.log_key) {
    p = TakeText("logkey", p, end, &out->ins_id, error);
    if (p != nullptr && !SetLogKey(out->ins_id, out, error)) return nullptr;
  }
  if (p == nullptr || !spec.time) return p;
  std::string_view time;
  p = TakeText("time", p, end, &time, error);
  return p != nullptr && SetTime(time, out, error) ? p : nullptr;
}

}  // namespace feed
}  // namespace pbx
