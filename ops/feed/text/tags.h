// Tags: what the input says of an instance beside its slots. In MultiSlot text a line begins with
// them, in PaddleBox's order:
//
//   1 <ins_id> 1 <content> 1 <logkey> <slots ...>
//
// each only where the schema asks for it; in CSV and Arrow each is a column. A log key is at least
// 32 characters of which [11, 32) are hexadecimal: [11, 14) cmatch, [14, 16) rank, [16, 32) search
// id. It is the instance's id as well, in place of an ins_id.
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

  bool any() const { return ins_id || content || log_key; }
  bool has_ids() const { return ins_id || log_key; }
  bool operator==(const TagSpec& other) const {
    return ins_id == other.ins_id && content == other.content && log_key == other.log_key;
  }
};

struct LogKey {
  uint64_t search_id = 0;
  uint32_t cmatch = 0;
  uint32_t rank = 0;
};

// False when the text is no log key.
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

// The tags of one line. The texts lie in the line.
struct LineTags {
  std::string_view ins_id;
  std::string_view content;
  LogKey log_key;
};

// N = instances. A column that the schema does not ask for is empty.
struct TagColumns {
  StringColumn ins_ids;          // (N)
  StringColumn contents;         // (N)
  std::vector<LogKey> log_keys;  // (N)

  void Add(const TagSpec& spec, const LineTags& tags);
  void AddRow(const TagColumns& from, size_t row);  // the columns that `from` has
  // Which columns are there; with others than n rows, none of these.
  bool Fits(size_t n) const;
  TagSpec spec() const { return {ins_ids.size() > 0, contents.size() > 0, !log_keys.empty()}; }
  size_t held() const {
    return ins_ids.held() + contents.held() + log_keys.capacity() * sizeof(LogKey);
  }
};

namespace feed {

class LineError;

// False, with the reason in *error, for a text that is no log key; it becomes the ins_id as well.
bool SetLogKey(std::string_view text, LineTags* out, LineError* error);

// Takes the tags off the line [p, end). Returns where its slots begin, or null for a line that has
// not the tags of the spec. spec.any() is expected.
const char* TakeTags(const TagSpec& spec, const char* p, const char* end, LineTags* out,
                     LineError* error);

}  // namespace feed
}  // namespace pbx
