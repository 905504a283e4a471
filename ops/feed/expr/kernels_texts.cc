// Instructions on texts, lists and times.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <unordered_set>

#include "base/vector_clones.h"
#include "feed/expr/kernels.h"
#include "row/feasign.h"

namespace pbx::expr {
namespace {

using Args = const Vector* const*;

// Collects the texts of rows in the bytes of a vector. Views are set at the end, because the bytes
// move while they grow.
class Maker {
 public:
  Maker(Vector* out, size_t n) : out_(out), n_(n) { out_->ints.resize(n); }
  std::string* bytes() { return &out_->bytes; }
  void End(size_t row, bool valid) {
    out_->valid[row] = valid;
    out_->ints[row] = static_cast<int64_t>(out_->bytes.size());
  }
  void Finish() {
    size_t begin = 0;
    for (size_t i = 0; i < n_; ++i) {
      const size_t end = static_cast<size_t>(out_->ints[i]);
      out_->texts[i] = std::string_view(out_->bytes).substr(begin, end - begin);
      out_->valid[i] = out_->valid[i] && end > begin;
      begin = end;
    }
  }

 private:
  Vector* const out_;
  const size_t n_;
};

template <char first, char last, int add>
void Case(const Instruction&, Args args, Vector* out, size_t n) {
  const Vector& in = *args[0];
  Maker made(out, n);
  size_t bytes = 0;
  for (size_t i = 0; i < n; ++i) bytes += in.valid[i] ? in.texts[i].size() : 0;
  made.bytes()->resize(bytes);
  char* to = made.bytes()->data();
  for (size_t i = 0; i < n; ++i) {
    out->valid[i] = in.valid[i];
    if (in.valid[i]) {
      for (const char c : in.texts[i]) {
        *to++ = static_cast<char>(c + (c >= first && c <= last ? add : 0));
      }
    }
    out->ints[i] = to - made.bytes()->data();
  }
  made.Finish();
}

bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

template <typename Cut>
void Part(Args args, Vector* out, size_t n, Cut cut) {
  const Vector& in = *args[0];
  for (size_t i = 0; i < n; ++i) {
    out->texts[i] = in.valid[i] ? cut(in.texts[i]) : std::string_view();
    out->valid[i] = !out->texts[i].empty();
  }
}

void Trim(const Instruction&, Args args, Vector* out, size_t n) {
  Part(args, out, n, [](std::string_view text) {
    while (!text.empty() && IsSpace(text.front())) text.remove_prefix(1);
    while (!text.empty() && IsSpace(text.back())) text.remove_suffix(1);
    return text;
  });
}

// The first characters of UTF-8.
void Prefix(const Instruction& self, Args args, Vector* out, size_t n) {
  Part(args, out, n, [&self](std::string_view text) {
    int64_t left = self.number;
    size_t end = 0;
    for (; end < text.size(); ++end) {
      const bool begins = (static_cast<unsigned char>(text[end]) & 0xc0) != 0x80;
      if (begins && left-- == 0) break;
    }
    return text.substr(0, end);
  });
}

void Concat(const Instruction& self, Args args, Vector* out, size_t n) {
  Maker made(out, n);
  for (size_t i = 0; i < n; ++i) {
    bool valid = true;
    for (size_t arg = 0; arg < self.args.size(); ++arg) valid = valid && args[arg]->valid[i];
    for (size_t arg = 0; valid && arg < self.args.size(); ++arg) {
      made.bytes()->append(args[arg]->texts[i]);
    }
    made.End(i, valid);
  }
  made.Finish();
}

void Split(const Instruction& self, Args args, Vector* out, size_t n) {
  const Vector& in = *args[0];
  for (size_t i = 0; i < n; ++i) {
    std::string_view rest = in.valid[i] ? in.texts[i] : std::string_view();
    while (!rest.empty()) {
      const size_t end = std::min(rest.find(self.text), rest.size());
      if (end > 0) out->texts.push_back(rest.substr(0, end));
      rest.remove_prefix(std::min(end + self.text.size(), rest.size()));
    }
    out->EndRow(out->texts.size());
  }
}

template <typename T>
auto& Items(Vector& v) {
  if constexpr (std::is_same_v<T, int64_t>) {
    return v.ints;
  } else {
    return v.texts;
  }
}
template <typename T>
const T* Items(const Vector& v) {
  return Items<T>(const_cast<Vector&>(v)).data();
}

void Length(const Instruction&, Args args, Vector* out, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    out->ints[i] = static_cast<int64_t>(args[0]->end(i) - args[0]->begin(i));
    out->valid[i] = 1;
  }
}

template <typename T, bool from_end>
void Some(const Instruction& self, Args args, Vector* out, size_t n) {
  auto& to = Items<T>(*out);
  for (size_t i = 0; i < n; ++i) {
    const size_t begin = args[0]->begin(i), end = args[0]->end(i);
    const size_t count = std::min(static_cast<size_t>(self.number), end - begin);
    const T* const first = Items<T>(*args[0]) + (from_end ? end - count : begin);
    to.insert(to.end(), first, first + count);
    out->EndRow(to.size());
  }
}

template <typename T>
void Contains(const Instruction&, Args args, Vector* out, size_t n) {
  const T* const items = Items<T>(*args[0]);
  const T* const wanted = Items<T>(*args[1]);
  for (size_t i = 0; i < n; ++i) {
    out->valid[i] = args[1]->valid[i];
    const T* const end = items + args[0]->end(i);
    out->bools[i] = out->valid[i] && std::find(items + args[0]->begin(i), end, wanted[i]) != end;
  }
}

// Calls take for each distinct item of the first list that the second has, in the order of the
// first.
template <typename T, typename Take>
void EachCommon(const Vector& a, const Vector& b, size_t row, Take take) {
  const T *const first = Items<T>(a) + a.begin(row), *const end = Items<T>(a) + a.end(row);
  const T *const other = Items<T>(b) + b.begin(row), *const other_end = Items<T>(b) + b.end(row);
  constexpr std::ptrdiff_t kFew = 1024;  // pairs: faster than a set
  if ((end - first) * ((other_end - other) + (end - first)) <= kFew) {
    for (const T* at = first; at != end; ++at) {
      if (std::find(other, other_end, *at) != other_end && std::find(first, at, *at) == at) {
        take(*at);
      }
    }
    return;
  }
  std::unordered_set<T> left(other, other_end);
  for (const T* at = first; at != end; ++at) {
    if (left.erase(*at) != 0) take(*at);
  }
}

template <typename T>
void Intersection(const Instruction&, Args args, Vector* out, size_t n) {
  auto& to = Items<T>(*out);
  for (size_t i = 0; i < n; ++i) {
    EachCommon<T>(*args[0], *args[1], i, [&to](const T& item) { to.push_back(item); });
    out->EndRow(to.size());
  }
}

template <typename T>
void Common(const Instruction&, Args args, Vector* out, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    int64_t count = 0;
    EachCommon<T>(*args[0], *args[1], i, [&count](const T&) { ++count; });
    out->ints[i] = count;
    out->valid[i] = 1;
  }
}

// The value of the first item "key:value" with the key. The last colon divides them.
void Match(const Instruction&, Args args, Vector* out, size_t n) {
  const Vector &map = *args[0], &keys = *args[1];
  for (size_t i = 0; i < n; ++i) {
    std::string_view found;
    for (size_t at = map.begin(i); keys.valid[i] && at < map.end(i); ++at) {
      const std::string_view item = map.texts[at], key = keys.texts[i];
      const size_t colon = item.rfind(':');
      if (colon == key.size() && item.compare(0, colon, key) == 0) {
        found = item.substr(colon + 1);
        break;
      }
    }
    out->texts[i] = found;
    out->valid[i] = !found.empty();
  }
}

// The value of a key; null if the table has no such key.
void Lookup(const Instruction& self, Args args, Vector* out, size_t n) {
  Part(args, out, n, [&self](std::string_view key) {
    const auto found = self.table->find(key);
    return found == self.table->end() ? std::string_view() : std::string_view(found->second);
  });
}

// Hours since the first day of the calendar, 0001-01-01, a Monday. Any number for a null.
PBX_VECTOR_CLONES void HoursOf(const int64_t* time, int64_t* out, size_t n) {
  // An hour is 2^10 * 3515625 microseconds. The quotients are exact to far more than is cut off.
  constexpr uint64_t k52 = uint64_t{0x433} << 52;
  for (size_t i = 0; i < n; ++i) {
    const uint64_t since = static_cast<uint64_t>(time[i]) - static_cast<uint64_t>(kFirstTime);
    const uint64_t bits = (since >> 10 & ((uint64_t{1} << 52) - 1)) | k52;  // 2^52 more
    double value;
    std::memcpy(&value, &bits, 8);
    out[i] = static_cast<int32_t>((value - 4503599627370496.0) / 3515625.0);
  }
}

PBX_VECTOR_CLONES void DateOfHours(const int64_t* hours, int64_t* out, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = DateOf(static_cast<uint32_t>(hours[i]) / 24);
}

#define PBX_PART_OF_TIME(name, expression)                                     \
  PBX_VECTOR_CLONES void name##Of(const int64_t* in, int64_t* out, size_t n) { \
    for (size_t i = 0; i < n; ++i) {                                           \
      const uint32_t of = static_cast<uint32_t>(in[i]);                        \
      out[i] = expression;                                                     \
    }                                                                          \
  }
PBX_PART_OF_TIME(Hour, of % 24)
PBX_PART_OF_TIME(Weekday, of / 24 % 7)
PBX_PART_OF_TIME(Day, of & 31)
PBX_PART_OF_TIME(Month, of >> 5)
#undef PBX_PART_OF_TIME

template <void (*all)(const int64_t*, int64_t*, size_t)>
void OfTime(const Instruction&, Args args, Vector* out, size_t n) {
  std::copy_n(args[0]->valid.begin(), n, out->valid.begin());
  all(args[0]->ints.data(), out->ints.data(), n);
}

void DaysBetween(const Instruction&, Args args, Vector* out, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    out->valid[i] = args[0]->valid[i] & args[1]->valid[i];
    out->ints[i] = args[1]->ints[i] / 24 - args[0]->ints[i] / 24;
  }
}

void FromUnix(const Instruction& self, Args args, Vector* out, size_t n) {
  const Vector& in = *args[0];
  const auto first = static_cast<double>(kFirstTime), last = static_cast<double>(kLastTime);
  LocalTimes local(*self.resolved);
  for (size_t i = 0; i < n; ++i) {
    const double micros = std::floor(in.floats[i] * static_cast<double>(kSecond));
    out->valid[i] = in.valid[i] && micros >= first && micros <= last;
    out->ints[i] = out->valid[i] ? local.Of(static_cast<int64_t>(micros)) : 0;
  }
}

void IntToText(const Instruction&, Args args, Vector* out, size_t n) {
  Maker made(out, n);
  char digits[24];
  for (size_t i = 0; i < n; ++i) {
    if (args[0]->valid[i]) {
      char* const end = std::to_chars(digits, digits + sizeof(digits), args[0]->ints[i]).ptr;
      made.bytes()->append(digits, end);
    }
    made.End(i, args[0]->valid[i] != 0);
  }
  made.Finish();
}

void BoolToText(const Instruction&, Args args, Vector* out, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    out->texts[i] = args[0]->bools[i] ? std::string_view("true") : std::string_view("false");
  }
  out->valid = args[0]->valid;
}

void Hash(const Instruction&, Args args, Vector* out, size_t n) {
  const Vector& in = *args[0];
  for (size_t i = 0; i < n; ++i) {
    const std::string_view text = in.texts[i].substr(0, in.valid[i] ? std::string_view::npos : 0);
    out->ints[i] = static_cast<int64_t>(FeasignOfString(text.data(), text.size()));
  }
}

int64_t FeasignOfDigits(int64_t value) {
  char digits[24];
  const char* const end = std::to_chars(digits, digits + sizeof(digits), value).ptr;
  return static_cast<int64_t>(FeasignOfString(digits, static_cast<size_t>(end - digits)));
}

constexpr uint64_t kSmall = 1024;  // integers below are hashed once

std::vector<int64_t> SmallFeasigns() {
  std::vector<int64_t> feasigns(kSmall + 1);  // the last one is that of null
  for (uint64_t i = 0; i < kSmall; ++i) feasigns[i] = FeasignOfDigits(static_cast<int64_t>(i));
  return feasigns;
}

void HashInts(const Instruction&, Args args, Vector* out, size_t n) {
  static const std::vector<int64_t> kFeasigns = SmallFeasigns();
  const int64_t *const in = args[0]->ints.data(), *const feasigns = kFeasigns.data();
  const uint8_t* const valid = args[0]->valid.data();
  int64_t* const to = out->ints.data();
  for (size_t i = 0; i < n; ++i) {
    const uint64_t value = static_cast<uint64_t>(in[i]);
    const uint64_t at = !valid[i] ? kSmall : value < kSmall ? value : kSmall + 1;
    to[i] = at <= kSmall ? feasigns[at] : FeasignOfDigits(in[i]);
  }
}

PBX_VECTOR_CLONES void Ids(const int64_t* values, const uint8_t* valid, size_t n, int64_t* ids) {
  for (size_t i = 0; i < n; ++i) ids[i] = valid[i] ? values[i] : 0;
}

void Id(const Instruction&, Args args, Vector* out, size_t n) {
  Ids(args[0]->ints.data(), args[0]->valid.data(), n, out->ints.data());
}

void HashLists(const Instruction&, Args args, Vector* out, size_t n) {
  for (const std::string_view text : args[0]->texts) {
    out->ints.push_back(static_cast<int64_t>(FeasignOfString(text.data(), text.size())));
  }
  out->ends.assign(args[0]->ends.begin(), args[0]->ends.begin() + static_cast<std::ptrdiff_t>(n));
}

using View = std::string_view;

}  // namespace

const std::vector<Function> kTextFunctions = {
    {"lower", "t", 't', false, nullptr, Case<'A', 'Z', 'a' - 'A'>},
    {"upper", "t", 't', false, nullptr, Case<'a', 'z', 'A' - 'a'>},
    {"trim", "t", 't', false, nullptr, Trim},
    {"prefix", "t#", 't', false, nullptr, Prefix},
    {"concat", "tt", 't', true, nullptr, Concat},
    {"split", "ts", 'L', false, nullptr, Split},
    {"length", "L", 'i', false, Length, Length},
    {"first", "L#", 'L', false, Some<int64_t, false>, Some<View, false>},
    {"last", "L#", 'L', false, Some<int64_t, true>, Some<View, true>},
    {"contains", "Lv", 'b', false, Contains<int64_t>, Contains<View>},
    {"intersection", "LL", 'L', false, Intersection<int64_t>, Intersection<View>},
    {"common", "LL", 'i', false, Common<int64_t>, Common<View>},
    {"match", "Lt", 't', false, nullptr, Match},
    {"lookup", "st", 't', false, nullptr, Lookup},
    {"hour", "dz", 'i', false, OfTime<HourOf>, nullptr},
    {"weekday", "dz", 'i', false, OfTime<WeekdayOf>, nullptr},
    {"day", "dz", 'i', false, OfTime<DayOf>, nullptr},
    {"month", "dz", 'i', false, OfTime<MonthOf>, nullptr},
    {"days_between", "ddz", 'i', false, DaysBetween, nullptr},
    {"from_unix", "n", 'd', false, FromUnix, nullptr},
};

Kernel HashKernel(Type from) {
  if (from.kind == Kind::kInt) return HashInts;
  return from.list ? HashLists : Hash;
}

Kernel IdKernel() { return Id; }

Kernel HoursKernel() { return OfTime<HoursOf>; }

Kernel DateKernel() { return OfTime<DateOfHours>; }

Kernel ConvertKernel(Type from, Type to) {
  if (from.list || to.list) return nullptr;
  if (to.kind == Kind::kText && from.kind == Kind::kInt) return IntToText;
  if (to.kind == Kind::kText && from.kind == Kind::kBool) return BoolToText;
  return NumberKernel(from.kind, to.kind);
}

const Function* FindFunction(const std::string& name) {
  for (const auto* table : {&kNumberFunctions, &kTextFunctions}) {
    for (const Function& function : *table) {
      if (name == function.name) return &function;
    }
  }
  return nullptr;
}

std::vector<std::string> FunctionNames() {
  std::vector<std::string> names = {"if",   "coalesce", "missing", "number", "int",
                                    "text", "list",     "zscore",  "minmax", "quantile"};
  for (const auto* table : {&kNumberFunctions, &kTextFunctions}) {
    for (const Function& function : *table) {
      const std::string name = function.name;
      const bool word = name[0] >= 'a' && name[0] <= 'z';
      if (word && name != "and" && name != "or" && name != "not" && name != "negative") {
        names.push_back(name);
      }
    }
  }
  return names;
}

}  // namespace pbx::expr
