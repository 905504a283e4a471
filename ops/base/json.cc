#include "base/json.h"

#include <charconv>
#include <limits>
#include <utility>

namespace pbx {
namespace {

constexpr int kMostDepth = 64;

void AppendUtf8(uint32_t point, std::string* to) {
  const auto put = [to](uint32_t byte) { to->push_back(static_cast<char>(byte)); };
  if (point < 0x80) return put(point);
  if (point < 0x800) {
    put(0xc0 | point >> 6);
  } else {
    if (point < 0x10000) {
      put(0xe0 | point >> 12);
    } else {
      put(0xf0 | point >> 18);
      put(0x80 | (point >> 12 & 0x3f));
    }
    put(0x80 | (point >> 6 & 0x3f));
  }
  put(0x80 | (point & 0x3f));
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Result<Json> Run() {
    Json value;
    bool good = Value(&value, 0);
    Blanks();
    good = good && at_ == text_.size();
    if (good) return value;
    return Error(Code::kInvalidArgument, "not JSON at byte %zu of %zu", at_, text_.size());
  }

 private:
  void Blanks() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != text_.npos) ++at_;
  }
  bool Take(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  bool Value(Json* out, int depth) {
    Blanks();
    if (at_ == text_.size() || depth > kMostDepth) return false;
    const char first = text_[at_];
    if (first == '"') {
      out->kind = Json::Kind::kText;
      return Text(&out->text);
    }
    if (first == '[') return List(out, depth);
    if (first == '{') return Object(out, depth);
    if (Take("null")) return true;
    if (Take("true")) return out->kind = Json::Kind::kTrue, true;
    if (Take("false")) return out->kind = Json::Kind::kFalse, true;
    return Number(out);
  }

  bool Number(Json* out) {
    out->kind = Json::Kind::kNumber;
    for (const char* word : {"NaN", "Infinity", "-Infinity"}) {
      if (Take(word)) return out->text = word, true;
    }
    const char* const begin = text_.data() + at_;
    double unused = 0;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), unused);
    const bool plain = *begin == '-' || (*begin >= '0' && *begin <= '9');
    if (!plain || error == std::errc::invalid_argument) return false;
    out->text.assign(begin, end);
    at_ += static_cast<size_t>(end - begin);
    return true;
  }

  bool List(Json* out, int depth) {
    out->kind = Json::Kind::kList;
    ++at_;
    for (Blanks(); !Take("]"); Blanks()) {
      if (!out->items.empty() && !Take(",")) return false;
      if (!Value(&out->items.emplace_back(), depth + 1)) return false;
    }
    return true;
  }

  bool Object(Json* out, int depth) {
    out->kind = Json::Kind::kObject;
    ++at_;
    for (Blanks(); !Take("}"); Blanks()) {
      if (!out->items.empty() && !Take(",")) return false;
      Blanks();
      if (at_ == text_.size() || text_[at_] != '"' || !Text(&out->names.emplace_back())) {
        return false;
      }
      Blanks();
      if (!Take(":") || !Value(&out->items.emplace_back(), depth + 1)) return false;
    }
    return true;
  }

  bool Text(std::string* out) {
    ++at_;
    while (at_ < text_.size()) {
      const char next = text_[at_++];
      if (next == '"') return true;
      if (static_cast<unsigned char>(next) < 0x20) return false;
      if (next != '\\') {
        out->push_back(next);
      } else if (!Escape(out)) {
        return false;
      }
    }
    return false;
  }

  bool Escape(std::string* out) {
    if (at_ == text_.size()) return false;
    const char kind = text_[at_++];
    static constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
    if (const size_t which = kFrom.find(kind); which != kFrom.npos) {
      out->push_back(kTo[which]);
      return true;
    }
    uint32_t point = 0, low = 0;
    if (kind != 'u' || !Hex(&point)) return false;
    if (point >= 0xd800 && point < 0xe000) {  // the first half of a pair
      if (point >= 0xdc00 || !Take("\\u") || !Hex(&low) || low < 0xdc00 || low >= 0xe000) {
        return false;
      }
      point = 0x10000 + ((point - 0xd800) << 10) + (low - 0xdc00);
    }
    AppendUtf8(point, out);
    return true;
  }

  bool Hex(uint32_t* out) {
    if (text_.size() - at_ < 4) return false;
    const char* const begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, begin + 4, *out, 16);
    at_ += 4;
    return error == std::errc() && end == begin + 4;
  }

  const std::string_view text_;
  size_t at_ = 0;
};

const Json kNone;
const std::string kNoText;

template <typename T>
bool Whole(const std::string& text, T* value) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *value);
  return error == std::errc() && stop == end;
}

}  // namespace

Result<Json> Json::Parse(std::string_view text) { return Parser(text).Run(); }

const Json* Json::Find(std::string_view name) const {
  for (size_t i = names.size(); i-- > 0;) {
    if (names[i] == name) return items[i].kind == Kind::kNull ? nullptr : &items[i];
  }
  return nullptr;
}

void JsonReader::Fail(std::string_view name, const char* expected) {
  if (!status_.ok()) return;
  status_ = Error(Code::kInvalidArgument, "%s: %.*s: expected %s", what_.c_str(),
                  static_cast<int>(name.size()), name.data(), expected);
}

const Json& JsonReader::Member(const Json& object, std::string_view name, const char* expected) {
  const Json* const found = object.Find(name);
  if (found != nullptr) return *found;
  Fail(name, expected);
  return kNone;
}

bool JsonReader::Bool(const Json& object, std::string_view name) {
  const Json& value = Member(object, name, "true or false");
  if (value.kind != Json::Kind::kTrue && value.kind != Json::Kind::kFalse) {
    Fail(name, "true or false");
  }
  return value.kind == Json::Kind::kTrue;
}

int64_t JsonReader::AsInteger(const Json& value, std::string_view name, int64_t least,
                              int64_t most) {
  int64_t number = 0;
  const bool whole = value.kind == Json::Kind::kNumber && Whole(value.text, &number);
  if (whole && number >= least && number <= most) return number;
  Fail(name, "an integer in the range of the field");
  return least;
}

int64_t JsonReader::Integer(const Json& object, std::string_view name, int64_t least,
                            int64_t most) {
  return AsInteger(Member(object, name, "an integer"), name, least, most);
}

uint64_t JsonReader::Unsigned(const Json& object, std::string_view name) {
  const Json& value = Member(object, name, "an integer of 64 bits");
  uint64_t number = 0;
  if (value.kind != Json::Kind::kNumber || !Whole(value.text, &number)) {
    Fail(name, "an integer of 64 bits");
  }
  return number;
}

double JsonReader::AsNumber(const Json& value, std::string_view name) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double number = 0;
  if (value.kind == Json::Kind::kNumber) {
    if (value.text == "Infinity") return kInfinity;
    if (value.text == "-Infinity") return -kInfinity;
    if (value.text == "NaN") return std::numeric_limits<double>::quiet_NaN();
    if (Whole(value.text, &number)) return number;
  }
  Fail(name, "a number");
  return 0;
}

long double JsonReader::AsExact(const Json& value, std::string_view name) {
  int64_t integer = 0;
  uint64_t large = 0;
  if (value.kind == Json::Kind::kNumber && Whole(value.text, &integer)) {
    return static_cast<long double>(integer);
  }
  if (value.kind == Json::Kind::kNumber && Whole(value.text, &large)) {
    return static_cast<long double>(large);
  }
  return static_cast<long double>(AsNumber(value, name));
}

double JsonReader::Number(const Json& object, std::string_view name) {
  return AsNumber(Member(object, name, "a number"), name);
}

const std::string& JsonReader::Text(const Json& object, std::string_view name) {
  const Json& value = Member(object, name, "a text");
  if (value.kind == Json::Kind::kText) return value.text;
  Fail(name, "a text");
  return kNoText;
}

const std::vector<Json>& JsonReader::List(const Json& object, std::string_view name) {
  const Json& value = Member(object, name, "a list");
  if (value.kind == Json::Kind::kList) return value.items;
  Fail(name, "a list");
  return kNone.items;
}

const Json& JsonReader::Object(const Json& object, std::string_view name) {
  const Json& value = Member(object, name, "an object");
  if (value.kind == Json::Kind::kObject) return value;
  Fail(name, "an object");
  return kNone;
}

std::vector<std::string> JsonReader::Texts(const Json& object, std::string_view name) {
  std::vector<std::string> texts;
  for (const Json& item : List(object, name)) {
    if (item.kind != Json::Kind::kText) Fail(name, "a list of texts");
    texts.push_back(item.text);
  }
  return texts;
}

}  // namespace pbx
