#include "feed/columns.h"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>

#include "feed/line_parser.h"
#include "feed/transform.h"
#include "row/feasign.h"

namespace pbx {
namespace {

constexpr int64_t kBlockRows = 1024;  // their values stay in the cache; 128 and 256 are no faster
constexpr size_t kBadRowsKept = 8;
constexpr double kMost = static_cast<double>(std::numeric_limits<float>::max());
// Short lists are copied whole, without asking how long they are: 1 to 3 values of a slot at random
// cost a misprediction each, which took half of the time.
constexpr size_t kShort = 4;

using ll = long long;

// Room for n, on huge pages where the kernel has them: the faults of small ones took more time than
// all else here.
template <typename T>
void ReserveHuge(std::vector<T>* values, size_t n) {
  constexpr uintptr_t kHugePage = 2u << 20;
  values->reserve(n);
  const uintptr_t begin = reinterpret_cast<uintptr_t>(values->data());
  const uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t end = (begin + values->capacity() * sizeof(T)) / kHugePage * kHugePage;
  if (first >= end) return;
  madvise(reinterpret_cast<char*>(values->data()) + (first - begin), end - first, MADV_HUGEPAGE);
}

// ---- types

std::string TypeName(const ArrowSchema& type) {
  static constexpr struct {
    const char* format;
    const char* name;
  } kNames[] = {
      {"n", "null"},         {"b", "bool"},         {"c", "int8"},         {"C", "uint8"},
      {"s", "int16"},        {"S", "uint16"},       {"i", "int32"},        {"I", "uint32"},
      {"l", "int64"},        {"L", "uint64"},       {"e", "halffloat"},    {"f", "float"},
      {"g", "double"},       {"z", "binary"},       {"Z", "large_binary"}, {"u", "string"},
      {"U", "large_string"}, {"vz", "binary_view"}, {"vu", "string_view"}};
  if (type.dictionary != nullptr) return "dictionary of " + TypeName(*type.dictionary);
  const std::string format = type.format;
  for (const auto& known : kNames) {
    if (format == known.format) return known.name;
  }
  const std::string item = type.n_children == 1 ? TypeName(*type.children[0]) : "...";
  if (format == "+l") return "list<" + item + ">";
  if (format == "+L") return "large_list<" + item + ">";
  if (format.rfind("+w:", 0) == 0) return "fixed_size_list<" + item + ">[" + format.substr(3) + "]";
  return "the type '" + format + "' of the Arrow C data interface";
}

bool IsOne(const ArrowSchema& type, const char* formats) {
  return type.dictionary == nullptr && std::strlen(type.format) == 1 &&
         std::strchr(formats, type.format[0]) != nullptr;
}

bool IsInteger(const ArrowSchema& type) { return IsOne(type, "cCsSiIlL"); }
bool IsNumber(const ArrowSchema& type) { return IsInteger(type) || IsOne(type, "fgb"); }
bool IsString(const ArrowSchema& type) { return IsOne(type, "uUzZ"); }

// Items of a fixed_size_list; -1 for another type.
int64_t FixedSize(const ArrowSchema& type) {
  if (std::strncmp(type.format, "+w:", 3) != 0) return -1;
  return std::strtoll(type.format + 3, nullptr, 10);
}

bool IsList(const ArrowSchema& type) {
  return type.n_children == 1 && type.dictionary == nullptr &&
         (std::strcmp(type.format, "+l") == 0 || std::strcmp(type.format, "+L") == 0 ||
          FixedSize(type) >= 0);
}

Status CheckType(const SlotSpec& slot, const ArrowSchema& type) {
  const ArrowSchema& item = IsList(type) ? *type.children[0] : type;
  bool fits = false;
  const char* expected = "";
  switch (slot.kind) {
    case SlotKind::kLabel:
      fits = IsNumber(type);
      expected = "a number or bool";
      break;
    case SlotKind::kDense:
      fits = IsNumber(item) && (&item != &type || slot.dim == 1) &&
             (FixedSize(type) < 0 || FixedSize(type) == slot.dim);
      expected = slot.dim == 1 ? "a number, bool, or list of one of them" : "a list of dim numbers";
      break;
    case SlotKind::kSparse:
      fits = slot.transform.hash ? IsString(item) : IsInteger(item);
      expected = slot.transform.hash ? "string, binary, or a list of them, as hash: true says"
                                     : "an integer type, or a list of one; strings need hash: true";
      break;
  }
  if (fits) return Status::Ok();
  return Error(Code::kInvalidArgument, "column '%.200s' of slot '%.200s': expected %s, found %s",
               slot.column_name().c_str(), slot.name.c_str(), expected, TypeName(type).c_str());
}

// A tag's column, as one to be found and named in errors.
SlotSpec SpecOf(const TagColumn& tag) {
  SlotSpec spec;
  spec.name = tag.name;
  spec.column = tag.column;
  return spec;
}

Status CheckTagType(const TagColumn& tag, const ArrowSchema& type) {
  const bool id = tag.tag == Tag::kInsId;
  if (IsString(type) || (id && IsInteger(type))) return Status::Ok();
  return Error(Code::kInvalidArgument, "column '%.200s' of %s: expected %s, found %s",
               tag.column.c_str(), tag.name,
               id ? "string, binary or an integer type" : "string or binary",
               TypeName(type).c_str());
}

// The place of the slot's column among the children.
Result<int64_t> FindColumn(const SlotSpec& slot, const ArrowSchema& type) {
  int64_t found = -1, times = 0;
  std::string there;
  for (int64_t i = 0; i < type.n_children; ++i) {
    const char* const name = type.children[i]->name;
    there += (i == 0 ? "" : ", ") + std::string(name);
    if (slot.column_name() != name) continue;
    found = i;
    ++times;
  }
  if (times == 1) return found;
  return Error(Code::kInvalidArgument,
               "slot '%.200s': expected one column '%.200s', found %lld among: %.1000s",
               slot.name.c_str(), slot.column_name().c_str(), static_cast<ll>(times),
               there.c_str());
}

// ---- values

bool HasNulls(const ArrowArray& array) {
  return array.null_count != 0 && array.n_buffers != 0 && array.buffers[0] != nullptr;
}

bool Valid(const ArrowArray& array, int64_t at) {  // at: with the array's offset
  return !HasNulls(array) ||
         ((static_cast<const uint8_t*>(array.buffers[0])[at >> 3] >> (at & 7)) & 1);
}

template <typename T>
const T* Values(const ArrowArray& array) {
  return static_cast<const T*>(array.buffers[1]);
}

// Items [begin, end) of a column's leaf that belong to one row, with the leaf's offset.
struct Items {
  int64_t begin;
  int64_t end;
};

// One column of one batch: which items each row has. Scalars are lists of one.
class Column {
 public:
  // structure_offset: rows of the batch begin there in each child.
  Column(const SlotSpec& slot, const ArrowSchema& type, const ArrowArray& array, int64_t offset)
      : slot_(slot), array_(array), offset_(array.offset + offset), list_(IsList(type)) {
    leaf_ = list_ ? array.children[0] : &array;
    leaf_type_ = list_ ? type.children[0] : &type;
    fixed_ = FixedSize(type);
    large_ = type.format[1] == 'L';
  }

  const SlotSpec& slot() const { return slot_; }
  const ArrowArray& leaf() const { return *leaf_; }
  bool scalar() const { return !list_; }
  char leaf_kind() const { return leaf_type_->format[0]; }

  // The buffers that the types ask for are there; rows: of the batch.
  Status CheckBuffers(int64_t rows) const {
    const bool strings = IsString(*leaf_type_);
    const int64_t of_leaf = strings ? 3 : 2, of_list = fixed_ >= 0 ? 1 : 2;
    const bool counted = leaf_->n_buffers >= of_leaf && (!list_ || array_.n_buffers >= of_list);
    const bool there = counted && (leaf_->length == 0 || leaf_->buffers[1] != nullptr) &&
                       (!list_ || fixed_ >= 0 || rows == 0 || array_.buffers[1] != nullptr);
    const bool long_enough = rows <= array_.length + array_.offset - offset_;
    if (there && long_enough && leaf_->offset >= 0 && offset_ >= 0) return Status::Ok();
    return Broken("its buffers are not those of its type");
  }

  // Items of rows [begin, begin + n), and which rows are null: those have none.
  Status Rows(int64_t begin, int64_t n, Items* items, uint8_t* is_null) const {
    const int64_t first = offset_ + begin;
    bool fits = true;
    if (!list_) {
      for (int64_t i = 0; i < n; ++i) items[i] = {first + i, first + i + 1};
    } else if (fixed_ >= 0) {
      fits = (first + n) * fixed_ <= leaf_->length;
      const int64_t from = leaf_->offset + first * fixed_;
      for (int64_t i = 0; i < n; ++i) items[i] = {from + i * fixed_, from + (i + 1) * fixed_};
    } else {
      fits = large_ ? ListRows<int64_t>(first, n, items) : ListRows<int32_t>(first, n, items);
    }
    if (!fits) return Broken("the offsets of its lists leave their values");
    if (n > 0) std::memset(is_null, 0, static_cast<size_t>(n));
    if (!HasNulls(array_)) return Status::Ok();
    for (int64_t i = 0; i < n; ++i) {
      if (Valid(array_, first + i)) continue;
      is_null[i] = 1;
      items[i].end = items[i].begin;
    }
    return Status::Ok();
  }

  // Items of rows [0, rows), at most; as the file says it, unchecked. -1 for what cannot be.
  int64_t ItemsOf(int64_t rows) const {
    if (!list_ || rows == 0) return rows;
    if (fixed_ >= 0) return rows * fixed_;
    const auto at = [this](int64_t row) {
      return large_ ? Values<int64_t>(array_)[row] : int64_t{Values<int32_t>(array_)[row]};
    };
    const int64_t first = at(offset_), last = at(offset_ + rows);
    return first < 0 || last < first ? -1 : last - first;
  }

  // The items of one row begin where those of the row before end.
  bool contiguous() const { return !HasNulls(array_); }

  // Each row has one item, that of row r at place(r).
  bool one_each() const { return !list_ && contiguous(); }
  int64_t place(int64_t row) const { return offset_ + row; }

  // Values that lie behind the item `end` in the leaf's buffer.
  int64_t ValuesBehind(int64_t end) const { return leaf_->offset + leaf_->length - end; }

  Status Broken(const char* why) const {
    return Error(Code::kCorruption, "column '%.200s': %s; write the file again",
                 slot_.column_name().c_str(), why);
  }

 private:
  template <typename Offset>
  bool ListRows(int64_t first, int64_t n, Items* items) const {
    const Offset* const offsets = Values<Offset>(array_) + first;
    bool ascend = offsets[0] >= 0 && offsets[n] <= leaf_->length;
    for (int64_t i = 0; i < n; ++i) {
      ascend &= offsets[i] <= offsets[i + 1];
      items[i] = {FromLeaf(offsets[i]), FromLeaf(offsets[i + 1])};
    }
    return ascend;
  }

  // Unsigned, as offsets are looked at only when all are known: one that is none may wrap around.
  int64_t FromLeaf(int64_t offset) const {
    return static_cast<int64_t>(static_cast<uint64_t>(leaf_->offset) +
                                static_cast<uint64_t>(offset));
  }

  const SlotSpec& slot_;
  const ArrowArray& array_;
  const int64_t offset_;
  const bool list_;
  const ArrowArray* leaf_;
  const ArrowSchema* leaf_type_;
  int64_t fixed_;
  bool large_;
};

// Calls visit(typed null pointer) with the C++ type of a numeric leaf, but for bool.
template <typename Visit>
void WithInteger(char kind, Visit visit) {
  switch (kind) {
    case 'c': return visit(static_cast<const int8_t*>(nullptr));
    case 'C': return visit(static_cast<const uint8_t*>(nullptr));
    case 's': return visit(static_cast<const int16_t*>(nullptr));
    case 'S': return visit(static_cast<const uint16_t*>(nullptr));
    case 'i': return visit(static_cast<const int32_t*>(nullptr));
    case 'I': return visit(static_cast<const uint32_t*>(nullptr));
    case 'l': return visit(static_cast<const int64_t*>(nullptr));
    default: return visit(static_cast<const uint64_t*>(nullptr));
  }
}

// Calls visit(number): number(at) is the value of a numeric leaf at a place, as a double.
template <typename Visit>
void WithNumbers(const ArrowArray& leaf, char kind, Visit visit) {
  const void* const held = leaf.buffers[1];
  if (kind == 'b') {
    const uint8_t* const bits = static_cast<const uint8_t*>(held);
    visit([bits](int64_t at) { return static_cast<double>((bits[at >> 3] >> (at & 7)) & 1); });
  } else if (kind == 'g') {
    const double* const values = static_cast<const double*>(held);
    visit([values](int64_t at) { return values[at]; });
  } else if (kind == 'f') {
    const float* const values = static_cast<const float*>(held);
    visit([values](int64_t at) { return static_cast<double>(values[at]); });
  } else {
    WithInteger(kind, [&](auto* type) {
      const auto* const values = static_cast<decltype(type)>(held);
      visit([values](int64_t at) { return static_cast<double>(values[at]); });
    });
  }
}

// ---- rows

// The text of string `at` of a leaf.
template <typename Offset>
Status TextOf(const Column& column, int64_t at, std::string_view* out) {
  const ArrowArray& leaf = column.leaf();
  const Offset* const offsets = Values<Offset>(leaf);
  const char* const text = static_cast<const char*>(leaf.buffers[2]);
  const Offset from = offsets[at], to = offsets[at + 1];
  if (from < 0 || from > to || to > offsets[leaf.offset + leaf.length] ||
      (text == nullptr && to > from)) {
    return column.Broken("the offsets of its strings leave their bytes");
  }
  *out = std::string_view(text + (text == nullptr ? 0 : from), static_cast<size_t>(to - from));
  return Status::Ok();
}

// The rows of a block on their way from columns to instances.
class Block {
 public:
  Block(const FeedSchema& schema, ParsedChunk* out)
      : out_(out),
        tag_spec_(schema.tags),
        tags_(schema.TagColumnsRead()),
        row_tags_(tags_.empty() ? 0 : kBlockRows),
        per_slot_(schema.per_slot_keys),
        slots_(schema.sparse_slots()),
        width_(schema.dense_width()),
        values_(slots_),
        items_(kBlockRows),
        nulls_(kBlockRows),
        bad_(kBlockRows),
        single_(slots_),
        next_(slots_) {}

  // tags: of the schema's TagColumnsRead.
  Status Add(const std::vector<Column>& columns, const std::vector<Column>& tags, int64_t begin,
             int64_t rows) {
    rows_ = static_cast<size_t>(rows);
    first_ = out_->instances;
    out_->labels.resize(first_ + rows_);
    out_->dense.resize((first_ + rows_) * width_);
    out_->lengths.resize((first_ + rows_) * slots_, 1);  // what single_ slots have
    std::fill(bad_.begin(), bad_.end(), uint8_t{0});
    reasons_.clear();
    any_bad_ = false;
    digits_.clear();
    for (size_t i = 0; i < tags.size(); ++i) {
      PBX_RETURN_IF_ERROR(tags[i].Rows(begin, rows, items_.data(), nulls_.data()));
      PBX_RETURN_IF_ERROR(TakeTags(tags_[i], tags[i]));
    }
    size_t sparse = 0, dense = 0;
    for (const Column& column : columns) {
      if (column.one_each() && OneEach(column, begin, dense, sparse)) {
        dense += column.slot().kind == SlotKind::kDense ? 1 : 0;
        sparse += column.slot().kind == SlotKind::kSparse ? 1 : 0;
        continue;
      }
      PBX_RETURN_IF_ERROR(column.Rows(begin, rows, items_.data(), nulls_.data()));
      switch (column.slot().kind) {
        case SlotKind::kLabel:
          WithNumbers(column.leaf(), column.leaf_kind(),
                      [&](auto number) { Label(column, number); });
          break;
        case SlotKind::kDense:
          WithNumbers(column.leaf(), column.leaf_kind(),
                      [&](auto number) { Dense(column, dense, number); });
          dense += static_cast<size_t>(column.slot().dim);
          break;
        case SlotKind::kSparse:
          single_[sparse] = 0;
          PBX_RETURN_IF_ERROR(Sparse(column, sparse++));
          break;
      }
    }
    Assemble();
    return Status::Ok();
  }

 private:
  __attribute__((format(printf, 3, 4))) void Bad(size_t row, const char* format, ...) {
    any_bad_ = true;
    if (bad_[row]) return;  // one reason a row
    bad_[row] = 1;
    if (out_->first_bad.size() + reasons_.size() >= 2 * kBadRowsKept) return;
    char text[512];
    va_list args;
    va_start(args, format);
    std::vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    reasons_.push_back({out_->lines + row, text, ""});
  }

  Status TakeTags(const TagColumn& tag, const Column& column) {
    const char kind = column.leaf_kind();
    const bool text = std::strchr("uUzZ", kind) != nullptr;
    if (!text) digits_.reserve(kBlockRows * kMaxDigits);  // views into it stay
    for (size_t row = 0; row < rows_; ++row) {
      LineTags* const out = &row_tags_[row];
      std::string_view value;
      if (nulls_[row]) {
        if (tag.tag != Tag::kContent) Bad(row, "%s: a null", tag.name);
      } else if (text) {
        const int64_t at = items_[row].begin;
        PBX_RETURN_IF_ERROR(kind == 'u' || kind == 'z' ? TextOf<int32_t>(column, at, &value)
                                                       : TextOf<int64_t>(column, at, &value));
      } else {
        value = Digits(column, items_[row].begin);
      }
      if (nulls_[row] && tag.tag != Tag::kContent) continue;
      feed::LineError error(true);
      if (tag.tag == Tag::kContent) {
        out->content = value;
      } else if (tag.tag == Tag::kInsId) {
        out->ins_id = value;
        if (value.empty()) Bad(row, "%s: an empty text, expected an id", tag.name);
      } else if (!feed::SetLogKey(value, out, &error)) {
        Bad(row, "%s", error.reason().c_str());
      }
    }
    return Status::Ok();
  }

  std::string_view Digits(const Column& column, int64_t at) {
    const size_t first = digits_.size();
    WithInteger(column.leaf_kind(), [&](auto* type) {
      digits_ += std::to_string(static_cast<decltype(type)>(column.leaf().buffers[1])[at]);
    });
    return std::string_view(digits_).substr(first);
  }

  // A column of one value a row, without asking for each row where its items are. False, with
  // nothing done that counts, where a value is not one that is taken as it is.
  bool OneEach(const Column& column, int64_t begin, size_t dense, size_t sparse) {
    const int64_t first = column.place(begin);
    bool taken = false;
    if (column.slot().kind == SlotKind::kDense && column.slot().dim == 1) {
      WithNumbers(column.leaf(), column.leaf_kind(),
                  [&](auto number) { taken = OneNumberEach(first, dense, number); });
    } else if (column.slot().kind == SlotKind::kSparse &&
               std::strchr("uUzZ", column.leaf_kind()) == nullptr) {
      WithInteger(column.leaf_kind(), [&](auto* type) {
        taken = Whole(column, sparse, first, static_cast<int64_t>(rows_), type);
      });
      single_[sparse] = taken ? 1 : 0;
    }
    return taken;
  }

  template <typename Number>
  bool OneNumberEach(int64_t first, size_t at, Number number) {
    float* out = out_->dense.data() + first_ * width_ + at;
    bool finite = true;
    for (size_t row = 0; row < rows_; ++row, out += width_) {
      const double value = number(first + static_cast<int64_t>(row));
      finite &= std::fabs(value) <= kMost;
      *out = static_cast<float>(value);
    }
    return finite;
  }

  template <typename Number>
  void Label(const Column& column, Number number) {
    const char* const name = column.slot().name.c_str();
    float* const out = out_->labels.data() + first_;
    for (size_t row = 0; row < rows_; ++row) {
      if (nulls_[row]) {
        Bad(row, "slot '%.200s': a null, expected a label in [0, 1]", name);
        continue;
      }
      const double value = number(items_[row].begin);
      if (!(value >= 0 && value <= 1)) {
        Bad(row, "slot '%.200s': %g is not a label in [0, 1]", name, value);
        continue;
      }
      out[row] = static_cast<float>(value) + 0.0f;  // -0 is 0
    }
  }

  template <typename Number>
  void Dense(const Column& column, size_t at, Number number) {
    const SlotSpec& slot = column.slot();
    const char* const name = slot.name.c_str();
    const size_t dim = static_cast<size_t>(slot.dim);
    for (size_t row = 0; row < rows_; ++row) {
      float* const out = out_->dense.data() + (first_ + row) * width_ + at;
      const Items items = items_[row];
      const size_t n = static_cast<size_t>(items.end - items.begin);
      if (!nulls_[row] && n != dim) {
        Bad(row, "slot '%.200s': %zu values, expected %zu", name, n, dim);
        continue;
      }
      for (size_t i = 0; i < dim; ++i) {
        const int64_t item = items.begin + static_cast<int64_t>(i);
        if (nulls_[row] || !Valid(column.leaf(), item)) {
          out[i] = slot.transform.default_value;
          if (!slot.transform.has_default) Bad(row, "slot '%.200s': a null and no default", name);
          continue;
        }
        const double value = number(item);
        if (!(std::fabs(value) <= kMost)) {
          Bad(row, "slot '%.200s': %g is not a finite float", name, value);
          continue;
        }
        out[i] = static_cast<float>(value);
      }
    }
  }

  Status Sparse(const Column& column, size_t slot) {
    size_t most = 0;
    if (column.contiguous()) {
      most += static_cast<size_t>(items_[rows_ - 1].end - items_[0].begin);
    } else {
      for (size_t row = 0; row < rows_; ++row) {
        most += static_cast<size_t>(items_[row].end - items_[row].begin);
      }
    }
    Room(slot, most);
    switch (column.leaf_kind()) {
      case 'u':
      case 'z': return Strings<int32_t>(column, slot);
      case 'U':
      case 'Z': return Strings<int64_t>(column, slot);
      default:
        WithInteger(column.leaf_kind(), [&](auto* type) {
          per_slot_ ? Integers<true>(column, slot, type) : Integers<false>(column, slot, type);
        });
        return Status::Ok();
    }
  }

  template <bool per_slot, typename T>
  void Integers(const Column& column, size_t slot, const T* type) {
    // Mostly there is nothing to leave out.
    const int64_t first = items_[0].begin, n = items_[rows_ - 1].end - first;
    if (!column.contiguous() || !Whole(column, slot, first, n, type)) {
      return Sift<per_slot>(column, slot, type);
    }
    uint32_t* length = out_->lengths.data() + first_ * slots_ + slot;
    for (size_t row = 0; row < rows_; ++row, length += slots_) {
      *length = static_cast<uint32_t>(items_[row].end - items_[row].begin);
    }
  }

  // Takes the n values from `first` on in one go. False where one is to be left out.
  template <typename T>
  bool Whole(const Column& column, size_t slot, int64_t first, int64_t n, const T*) {
    if (HasNulls(column.leaf())) return false;
    const T* const from = Values<T>(column.leaf()) + first;
    uint64_t wrong = 0;  // its top bit, once a value is 0 or negative; SSE2 compares no 64 bits
    for (int64_t i = 0; i < n; ++i) {
      // A negative number keeps its high bits, as an int64 does.
      const uint64_t feasign = static_cast<uint64_t>(static_cast<int64_t>(from[i]));
      wrong |= (feasign - 1) & ~feasign;
      if constexpr (sizeof(T) < 8) wrong |= feasign;
    }
    if (wrong >> 63 != 0) return false;
    if constexpr (sizeof(T) == 8) {
      // Where they are, if what a short list is copied with may be read too.
      if (!per_slot_ && column.ValuesBehind(first + n) >= static_cast<int64_t>(kShort)) {
        next_[slot] = reinterpret_cast<const uint64_t*>(from);
        return true;
      }
    }
    Room(slot, static_cast<size_t>(n));
    uint64_t* const to = values_[slot].data();
    const uint32_t index = static_cast<uint32_t>(slot);
    for (int64_t i = 0; i < n; ++i) {
      const uint64_t feasign = static_cast<uint64_t>(static_cast<int64_t>(from[i]));
      to[i] = per_slot_ ? FeasignInSlot(feasign, index) : feasign;
    }
    return true;
  }

  // Room for n values of a slot, and for what a short list is copied with.
  void Room(size_t slot, size_t n) {
    if (values_[slot].size() < n + kShort) values_[slot].resize((n + kShort) * 3 / 2);
    next_[slot] = values_[slot].data();
  }

  // As Integers, value by value: leaves out nulls and zeros, and finds negative ones.
  template <bool per_slot, typename T>
  void Sift(const Column& column, size_t slot, const T*) {
    const T* const values = Values<T>(column.leaf());
    uint64_t* next = values_[slot].data();
    uint32_t* length = out_->lengths.data() + first_ * slots_ + slot;
    for (size_t row = 0; row < rows_; ++row, length += slots_) {
      uint64_t* const first = next;
      for (int64_t at = items_[row].begin; at < items_[row].end; ++at) {
        if (!Valid(column.leaf(), at)) continue;
        const T value = values[at];
        if constexpr (sizeof(T) < 8 && std::numeric_limits<T>::is_signed) {
          if (value < 0) {
            Bad(row, "slot '%.200s': %lld is not a feasign in [0, 2^64 - 1]",
                column.slot().name.c_str(), static_cast<ll>(value));
            continue;
          }
        }
        const uint64_t feasign = static_cast<uint64_t>(static_cast<int64_t>(value));
        *next = per_slot ? FeasignInSlot(feasign, static_cast<uint32_t>(slot)) : feasign;
        next += feasign != 0;
      }
      *length = static_cast<uint32_t>(next - first);
    }
  }

  template <typename Offset>
  Status Strings(const Column& column, size_t slot) {
    const ArrowArray& leaf = column.leaf();
    uint64_t* next = values_[slot].data();
    uint32_t* length = out_->lengths.data() + first_ * slots_ + slot;
    for (size_t row = 0; row < rows_; ++row, length += slots_) {
      uint64_t* const first = next;
      for (int64_t at = items_[row].begin; at < items_[row].end; ++at) {
        if (!Valid(leaf, at)) continue;
        std::string_view text;
        PBX_RETURN_IF_ERROR(TextOf<Offset>(column, at, &text));
        uint64_t feasign = FeasignOfString(text.data(), text.size());
        if (per_slot_) feasign = FeasignInSlot(feasign, static_cast<uint32_t>(slot));
        *next = feasign;
        next += feasign != 0;
      }
      *length = static_cast<uint32_t>(next - first);
    }
    return Status::Ok();
  }

  // Turns the block's columns into rows; a bad one closes up.
  void Assemble() {
    const bool all_single = std::count(single_.begin(), single_.end(), uint8_t{0}) == 0;
    if (all_single && !any_bad_) return AssembleSingles();
    const uint32_t* length = out_->lengths.data() + first_ * slots_;
    size_t total = 0;
    for (size_t i = 0; i < rows_ * slots_; ++i) total += length[i];
    const size_t used = out_->feasigns.size();
    out_->feasigns.resize(used + total + kShort);
    uint64_t* to = out_->feasigns.data() + used;
    size_t good = first_;
    for (size_t row = 0; row < rows_; ++row, length += slots_) {
      if (any_bad_ && bad_[row]) {
        for (size_t s = 0; s < slots_; ++s) next_[s] += length[s];
        continue;
      }
      for (size_t s = 0; s < slots_; ++s) {
        const uint64_t* const from = next_[s];
        if (length[s] <= kShort) {
          std::memcpy(to, from, kShort * sizeof(uint64_t));
        } else {
          std::copy_n(from, length[s], to);
        }
        to += length[s];
        next_[s] += length[s];
      }
      if (any_bad_) MoveRow(first_ + row, good);
      if (!tags_.empty()) out_->tags.Add(tag_spec_, row_tags_[row]);
      ++good;
    }
    out_->feasigns.resize(static_cast<size_t>(to - out_->feasigns.data()));
    out_->instances = good;
    out_->labels.resize(good);
    out_->dense.resize(good * width_);
    out_->lengths.resize(good * slots_);
    out_->lines += rows_;
    out_->bad_lines += first_ + rows_ - good;
    // Columns found them one after the other; a person looks for the first row.
    std::sort(reasons_.begin(), reasons_.end(),
              [](const BadLine& a, const BadLine& b) { return a.line < b.line; });
    for (const BadLine& reason : reasons_) {
      if (out_->first_bad.size() < kBadRowsKept) out_->first_bad.push_back(reason);
    }
  }

  // Rows of one feasign a slot, a tile of them at a time: what is written lies in the first cache.
  void AssembleSingles() {
    constexpr size_t kTileRows = 64;
    tile_.resize(kTileRows * slots_);
    for (size_t begin = 0; begin < rows_; begin += kTileRows) {
      const size_t n = std::min(kTileRows, rows_ - begin);
      for (size_t s = 0; s < slots_; ++s) {
        const uint64_t* const from = next_[s] + begin;
        uint64_t* const to = tile_.data() + s;
        for (size_t row = 0; row < n; ++row) to[row * slots_] = from[row];
      }
      out_->feasigns.insert(out_->feasigns.end(), tile_.begin(),
                            tile_.begin() + static_cast<ptrdiff_t>(n * slots_));
    }
    out_->instances = first_ + rows_;
    out_->lines += rows_;
  }

  void MoveRow(size_t from, size_t to) {
    if (from == to) return;
    out_->labels[to] = out_->labels[from];
    std::copy_n(out_->dense.data() + from * width_, width_, out_->dense.data() + to * width_);
    std::copy_n(out_->lengths.data() + from * slots_, slots_, out_->lengths.data() + to * slots_);
  }

  static constexpr size_t kMaxDigits = 20;  // of 64 bits, or a sign and 19

  ParsedChunk* const out_;
  const TagSpec tag_spec_;
  const std::vector<TagColumn> tags_;
  std::vector<LineTags> row_tags_;  // of the block
  std::string digits_;              // of ids that are integers
  const bool per_slot_;
  const size_t slots_;  // S
  const size_t width_;  // W
  size_t rows_ = 0;     // of the block
  size_t first_ = 0;    // instance that the block's first row is
  bool any_bad_ = false;
  std::vector<std::vector<uint64_t>> values_;  // (S) feasigns of the block, row after row
  std::vector<Items> items_;                   // of the column at hand
  std::vector<uint8_t> nulls_;                 // of the column at hand
  std::vector<uint8_t> bad_;
  std::vector<BadLine> reasons_;
  std::vector<uint8_t> single_;  // (S) each row has one feasign; its length is not written
  std::vector<uint64_t> tile_;
  std::vector<const uint64_t*> next_;  // (S) feasigns of the block: in values_, or in the column
};

}  // namespace

Status CheckColumns(const FeedSchema& schema, const ArrowSchema& type) {
  PBX_RETURN_IF_ERROR(schema.Check());
  for (const SlotSpec& slot : schema.slots) {
    if (slot.transform.made()) continue;
    const Result<int64_t> place = FindColumn(slot, type);
    PBX_RETURN_IF_ERROR(place.status());
    PBX_RETURN_IF_ERROR(CheckType(slot, *type.children[place.value()]));
  }
  for (const TagColumn& tag : schema.TagColumnsRead()) {
    const Result<int64_t> place = FindColumn(SpecOf(tag), type);
    PBX_RETURN_IF_ERROR(place.status());
    PBX_RETURN_IF_ERROR(CheckTagType(tag, *type.children[place.value()]));
  }
  return Status::Ok();
}

Status ParseColumns(const FeedSchema& schema, const std::vector<ColumnBatch>& batches,
                    ParsedChunk* out) {
  *out = ParsedChunk();
  out->nonzero = true;  // each was looked at
  const FeedSchema read = schema.WithoutMade();
  Block block(read, out);
  std::vector<SlotSpec> tag_specs;
  for (const TagColumn& tag : read.TagColumnsRead()) tag_specs.push_back(SpecOf(tag));
  for (const ColumnBatch& batch : batches) {
    PBX_RETURN_IF_ERROR(CheckColumns(read, *batch.type));
    const int64_t rows = batch.values->length;
    std::vector<Column> columns, tags;
    for (const SlotSpec& spec : tag_specs) {
      const int64_t place = FindColumn(spec, *batch.type).value();
      tags.emplace_back(spec, *batch.type->children[place], *batch.values->children[place],
                        batch.values->offset);
      PBX_RETURN_IF_ERROR(tags.back().CheckBuffers(rows));
    }
    int64_t feasigns = 0;
    for (const SlotSpec& slot : read.slots) {
      const int64_t place = FindColumn(slot, *batch.type).value();
      columns.emplace_back(slot, *batch.type->children[place], *batch.values->children[place],
                           batch.values->offset);
      PBX_RETURN_IF_ERROR(columns.back().CheckBuffers(rows));
      const int64_t items = columns.back().ItemsOf(rows);
      if (slot.kind == SlotKind::kSparse && items >= 0 && items <= columns.back().leaf().length) {
        feasigns += items;
      }
    }
    const size_t expected = out->instances + static_cast<size_t>(rows);
    ReserveHuge(&out->feasigns, out->feasigns.size() + static_cast<size_t>(feasigns) + kShort);
    out->labels.reserve(expected);
    ReserveHuge(&out->dense, expected * read.dense_width());
    ReserveHuge(&out->lengths, expected * read.sparse_slots());
    for (int64_t begin = 0; begin < rows; begin += kBlockRows) {
      PBX_RETURN_IF_ERROR(block.Add(columns, tags, begin, std::min(kBlockRows, rows - begin)));
    }
  }
  Transform(schema, out);
  return Status::Ok();
}

}  // namespace pbx
