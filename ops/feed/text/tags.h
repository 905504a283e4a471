// Tags: fields of an instance beside its slots. In MultiSlot text they are at the beginning of the
// line, in PaddleBox's order:
//
//   1 <ins_id> 1 <content> 1 <logkey> 1 <time> <slots ...>
//
// The schema names the tags that lines have; in CSV and Arrow each tag is a column. A log key has
// at least 32 characters. Characters [11, 32) are hexadecimal: [11, 14) cmatch, [14, 16) rank, [16,
// 32) search id. A log key also replaces ins_id as the id of the instance. A time is a decimal in
// [0, 2^63 - 1], in any unit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pbx {

struct TagSpec {
  bool ins_id = false;
  bool content = false;
  bool log_key = false;
  bool time = false;

  bool any() const { return ins_id || content || log_key || time; }
  bool has_ids() const { return ins_id || log_key; }
  bool operator==(const TagSpec& other) const {
    return ins_id == other.ins_id && content == other.content && log_key == other.log_key &&
           time == other.time;
  }
};

struct LogKey {
  uint64_t search_id = 0;
  uint32_t cmatch = 0;
  uint32_t rank = 0;
};

// False if the text is not a log key.
bool ParseLogKey(std::string_view text, LogKey* out);

// Strings in one block of bytes.
class StringColumn {
 public:
  void Add(std::string_view text) {
    bytes_.append(text);
    ends_.push_back(bytes_.size());
  }
  size_t size() const { return ends_.size(); }
  std::string_view operator[](size_t i) const {
    const size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(bytes_).substr(begin, ends_[i] - begin);
  }
  size_t held() const { return bytes_.capacity() + ends_.capacity() * sizeof(size_t); }

 private:
  std::string bytes_;
  std::vector<size_t> ends_;
};

// The tags of one line. The texts point into the line.
struct LineTags {
  std::string_view ins_id;
  std::string_view content;
  LogKey log_key;
  int64_t time = 0;
};

// N = instances. Columns of tags that the schema does not name are empty.
struct TagColumns {
  StringColumn ins_ids;          // (N)
  StringColumn contents;         // (N)
  std::vector<LogKey> log_keys;  // (N)
  std::vector<int64_t> times;    // (N)

  void Add(const TagSpec& spec, const LineTags& tags);
  void AddRow(const TagColumns& from, size_t row);  // the columns that `from` has
  // Whether each column is empty or has n rows.
  bool Fits(size_t n) const;
  TagSpec spec() const {
    return {ins_ids.size() > 0, contents.size() > 0, !log_keys.empty(), !times.empty()};
  }
  size_t held() const {
    return ins_ids.held() + contents.held() + log_keys.capacity() * sizeof(LogKey) +
           times.capacity() * sizeof(int64_t);
  }
};

namespace feed {

class LineError;

// Sets the log key, and the text as ins_id. False, with the reason in *error, if the text is not a
// log key.
bool SetLogKey(std::string_view text, LineTags* out, LineError* error);

// Sets the time. False, with the reason in *error, if the text is not a time.
bool SetTime(std::string_view text, LineTags* out, LineError* error);

// Reads the tags of the line [p, end). Returns where its slots begin, or null if the line does not
// have the tags of the spec. REQUIRES: spec.any().
const char* TakeTags(const TagSpec& spec, const char* p, const char* end, LineTags* out,
                     LineError* error);

}  // namespace feed
}  // namespace pbx
