// Criteo's TSV: label, 13 integers, 26 hexadecimal tokens, separated by tabs.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "feed/text/line_parser.h"
#include "feed/text/scan.h"
#include "row/feasign.h"

namespace pbx::feed {
namespace {

constexpr int kIntegers = 13;
constexpr int kTokens = 26;
constexpr int kColumns = 1 + kIntegers + kTokens;

// Tags in the upper bits distinguish buckets of integers from tokens, and the token 0 from padding.
constexpr uint64_t kTokenTag = uint64_t{'C'} << 56;
constexpr uint64_t kIntegerTag = uint64_t{'I'} << 56;

uint64_t NotPadding(uint64_t feasign, uint64_t tag) { return feasign == 0 ? tag : feasign; }

uint64_t TokenFeasign(uint64_t token) { return NotPadding(token ^ kTokenTag, kTokenTag); }

// The tag has the column, because buckets of different columns have different meanings. Zigzag
// makes the bucket positive: 0, -1, 1, -2 .. become 1, 2, 3, 4 ..; 0 is the bucket of the empty
// field.
uint64_t IntegerTag(int column) { return kIntegerTag | static_cast<uint64_t>(column) << 48; }
uint64_t BucketFeasign(int column, int64_t bucket) {
  const uint64_t sign = bucket < 0 ? ~uint64_t{0} : 0;
  const uint64_t zigzag = (static_cast<uint64_t>(bucket) << 1) ^ sign;
  return NotPadding(IntegerTag(column) ^ (zigzag + 1), IntegerTag(column));
}

// Computed in long double, for which glibc has one log for all x86-64 processors. For double it has
// several, and a different last bit could move a value to another bucket.
int64_t BucketOf(int64_t v) {
  if (v <= 2) return v;
  const long double log = std::log(static_cast<long double>(v));
  return static_cast<int64_t>(log * log);
}
// log(1 + v), v >= 0. Computed in double, whose error is below 2^-52 of the value on every
// processor. If both ends of that interval round to the same float, that float is the result.
// Otherwise the logarithm is computed in long double.
float DenseOf(int64_t v) {
  constexpr double kError = 0x1p-50;
  const double log = std::log(1 + static_cast<double>(v));
  const float below = static_cast<float>(log * (1 - kError));
  if (below == static_cast<float>(log * (1 + kError))) return below;
  return static_cast<float>(std::log(1 + static_cast<long double>(v)));
}

// Most values are small, and their logarithms are in a table. The bucket of a larger value is found
// among the values at which buckets begin.
class Logarithms {
 public:
  static constexpr int64_t kSmall = 4096;

  Logarithms() {
    for (int64_t v = 0; v < kSmall; ++v) {
      bucket_[static_cast<size_t>(v)] = static_cast<uint16_t>(BucketOf(v));
      dense_[static_cast<size_t>(v)] = DenseOf(v);
    }
    const int64_t last = BucketOf(INT64_MAX);
    for (int64_t bucket = bucket_.back() + 1; bucket <= last; ++bucket) {
      begins_.push_back(BeginOf(bucket));
    }
  }

  float Dense(int64_t v) const { return v < kSmall ? dense_[static_cast<size_t>(v)] : DenseOf(v); }

  int64_t Bucket(int64_t v) const {
    if (v < 0) return v;
    if (v < kSmall) return bucket_[static_cast<size_t>(v)];
    return bucket_.back() + (std::upper_bound(begins_.begin(), begins_.end(), v) - begins_.begin());
  }

 private:
  // The least v >= kSmall - 1 whose bucket is at least this one.
  static int64_t BeginOf(int64_t bucket) {
    int64_t below = kSmall - 1, at = INT64_MAX;
    while (at - below > 1) {
      const int64_t middle = below + (at - below) / 2;
      (BucketOf(middle) < bucket ? below : at) = middle;
    }
    return at;
  }

  std::array<uint16_t, kSmall> bucket_;
  std::array<float, kSmall> dense_;
  std::vector<int64_t> begins_;  // for each bucket after the last of bucket_
};
const Logarithms& SharedLogarithms() {
  static const Logarithms logarithms;
  return logarithms;
}

// The fields of one line. Index 0 of each array is column I1 or C1.
struct Fields {
  std::array<bool, kIntegers> has_integer;
  std::array<int64_t, kIntegers> integer;
  std::array<bool, kTokens> has_token;
  std::array<uint64_t, kTokens> token;
};

class CriteoParser : public LineParser {
 public:
  explicit CriteoParser(const FeedSchema& schema)
      : schema_(schema), logarithms_(SharedLogarithms()) {
    for (const SlotSpec& slot : schema.slots) columns_.push_back(CriteoColumn(slot));
  }

  bool Parse(const char* p, const char* end, LineValues* out, LineError* error) override {
    Fields fields;
    for (int column = 0; column < kColumns; ++column) {
      const char* const tab = FieldEnd(p, end);
      const bool last = column == kColumns - 1;
      if (last != (tab == end)) return WrongCount(column, tab, end, error);
      if (!ParseField(column, p, tab, &fields, out, error)) return false;
      p = tab + 1;
    }
    Assemble(fields, out);
    return true;
  }

  bool ParseFast(const TokenKernels& kernels, const char* line, size_t size,
                 const TokenColumns& tokens, LineValues* out) override {
    if (!kernels.fields(line, size, kColumns, 1 + kIntegers, tokens)) return false;
    if (tokens.size(0) == 0 || !ParseLabel(line, tokens, 0, &out->label)) return false;
    Fields fields;
    for (size_t i = 0; i < kIntegers; ++i) {
      fields.has_integer[i] = tokens.size(1 + i) != 0;
      if (!IntegerOf(line, tokens, 1 + i, &fields.integer[i])) return false;
    }
    unsigned odd = 0;
    for (size_t i = 0; i < kTokens; ++i) {
      odd |= tokens.marks[1 + kIntegers + i];
      fields.has_token[i] = tokens.size(1 + kIntegers + i) != 0;
      fields.token[i] = tokens.values[1 + kIntegers + i];
    }
    if (odd != 0) return false;
    Assemble(fields, out);
    return true;
  }

 private:
  // *value is 0 for an empty field. False: not decided; parse the field again.
  static bool IntegerOf(const char* line, const TokenColumns& tokens, size_t i, int64_t* value) {
    const uint64_t magnitude = tokens.values[i];
    const size_t size = tokens.size(i);
    *value = static_cast<int64_t>(magnitude);
    if (tokens.bytes_odd(i) == 0) return *value >= 0;
    *value = static_cast<int64_t>(0 - magnitude);  // at most 14 digits
    return size > 1 && size <= 15 && tokens.bytes_odd(i) == 1u << (16 - size) &&
           line[tokens.ends[i] - size] == '-';
  }

  static const char* FieldEnd(const char* p, const char* end) {
    while (p < end && *p != '\t') ++p;
    return p;
  }

  static bool WrongCount(int column, const char* tab, const char* end, LineError* error) {
    return error->Set("%td columns, expected %d", column + 1 + std::count(tab, end, '\t'),
                      kColumns);
  }

  static bool ParseField(int column, const char* p, const char* end, Fields* fields,
                         LineValues* out, LineError* error) {
    if (column == 0) return ParseLabel("label", p, end, &out->label, error);
    if (column <= kIntegers) {
      const size_t i = static_cast<size_t>(column - 1);
      fields->has_integer[i] = p != end;
      if (p == end || ScanInt64(p, end, &fields->integer[i]) == end) return true;
      return error->Token("I" + std::to_string(column), p, end, "a decimal integer");
    }
    const size_t i = static_cast<size_t>(column - 1 - kIntegers);
    fields->has_token[i] = p != end;
    if (p == end || ScanHex64(p, end, &fields->token[i]) == end) return true;
    return error->Token("C" + std::to_string(column - kIntegers), p, end,
                        "a token of 1 to 16 hexadecimal digits");
  }

  void Assemble(const Fields& fields, LineValues* out) const {
    size_t dense = 0;
    uint32_t sparse = 0;
    for (size_t i = 0; i < columns_.size(); ++i) {
      const int column = columns_[i];
      if (schema_.slots[i].kind == SlotKind::kDense) {
        out->dense[dense++] = Dense(fields, column);
      } else if (schema_.slots[i].kind == SlotKind::kSparse) {
        const uint64_t feasign = schema_.Keyed(Sparse(fields, column), sparse);
        out->feasigns[out->count] = feasign;
        out->count += feasign != 0;
        out->lengths[sparse++] = feasign != 0;
      }
    }
  }

  float Dense(const Fields& fields, int column) const {
    const size_t i = static_cast<size_t>(column - 1);
    if (!fields.has_integer[i]) return 0;
    return logarithms_.Dense(std::max<int64_t>(fields.integer[i], 0));
  }

  // 0: no feasign.
  uint64_t Sparse(const Fields& fields, int column) const {
    if (column > kIntegers) {
      const size_t i = static_cast<size_t>(column - 1 - kIntegers);
      return fields.has_token[i] ? TokenFeasign(fields.token[i]) : 0;
    }
    const size_t i = static_cast<size_t>(column - 1);
    if (!fields.has_integer[i]) return IntegerTag(column);
    return BucketFeasign(column, logarithms_.Bucket(fields.integer[i]));
  }

  const FeedSchema& schema_;
  const Logarithms& logarithms_;
  std::vector<int> columns_;  // per slot
};

}  // namespace

std::unique_ptr<LineParser> NewCriteoParser(const FeedSchema& schema) {
  return std::make_unique<CriteoParser>(schema);
}

}  // namespace pbx::feed
