// Access to the values of a column of an Arrow batch, row by row.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/status.h"
#include "feed/columns/arrow_abi.h"
#include "feed/columns/column_types.h"
#include "feed/text/schema.h"

namespace pbx::feed {

// An array of the type null has no buffers, and each of its values is null.
inline bool HasNulls(const ArrowArray& array) {
  return array.n_buffers == 0 || (array.null_count != 0 && array.buffers[0] != nullptr);
}

inline bool Valid(const ArrowArray& array, int64_t at) {  // at: includes the array's offset
  if (array.n_buffers == 0) return false;
  return !HasNulls(array) ||
         ((static_cast<const uint8_t*>(array.buffers[0])[at >> 3] >> (at & 7)) & 1);
}

template <typename T>
const T* Values(const ArrowArray& array) {
  return static_cast<const T*>(array.buffers[1]);
}

// Items [begin, end) of the leaf array of a column, the values of one row. Indexes include the
// leaf's offset.
struct Items {
  int64_t begin;
  int64_t end;
};

// A column of a batch: the items of each row. A scalar is a list of one item.
class Column {
 public:
  // offset: the struct array's offset, where the rows of the batch begin in each child.
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
  const ArrowSchema& leaf_type() const { return *leaf_type_; }
  char leaf_kind() const { return leaf_type_->format[0]; }
  bool is_string() const { return IsString(*leaf_type_); }

  // Corruption if buffers that the types need are missing. rows: the number of rows of the batch.
  Status CheckBuffers(int64_t rows) const {
    const bool strings = IsString(*leaf_type_), nulls = IsNull(*leaf_type_);
    const int64_t of_leaf = nulls ? 0 : strings ? 3 : 2, of_list = fixed_ >= 0 ? 1 : 2;
    const bool counted = nulls == (leaf_->n_buffers == 0) && leaf_->n_buffers >= of_leaf &&
                         (!list_ || array_.n_buffers >= of_list);
    const bool there = counted && (nulls || leaf_->length == 0 || leaf_->buffers[1] != nullptr) &&
                       (!list_ || fixed_ >= 0 || rows == 0 || array_.buffers[1] != nullptr);
    const bool long_enough = rows <= array_.length + array_.offset - offset_;
    if (there && long_enough && leaf_->offset >= 0 && offset_ >= 0) return Status::Ok();
    return Broken("its buffers do not fit its type");
  }

  // Sets the items of rows [begin, begin + n), and which of these rows are null. A null row has no
  // items.
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
    if (!fits) return Broken("the offsets of its lists are outside of their values");
    if (n > 0) std::memset(is_null, 0, static_cast<size_t>(n));
    if (!HasNulls(array_)) return Status::Ok();
    for (int64_t i = 0; i < n; ++i) {
      if (Valid(array_, first + i)) continue;
      is_null[i] = 1;
      items[i].end = items[i].begin;
    }
    return Status::Ok();
  }

  // An upper bound of the number of items of rows [0, rows), computed from unchecked offsets. -1 if
  // the offsets are impossible.
  int64_t ItemsOf(int64_t rows) const {
    if (!list_ || rows == 0) return rows;
    if (fixed_ >= 0) return rows * fixed_;
    const auto at = [this](int64_t row) {
      return large_ ? Values<int64_t>(array_)[row] : int64_t{Values<int32_t>(array_)[row]};
    };
    const int64_t first = at(offset_), last = at(offset_ + rows);
    return first < 0 || last < first ? -1 : last - first;
  }

  // Whether the items of each row begin where those of the row before end.
  bool contiguous() const { return !HasNulls(array_); }

  // Whether each row has exactly one item. The item of row r is at place(r).
  bool one_each() const { return !list_ && contiguous(); }
  int64_t place(int64_t row) const { return offset_ + row; }

  // The number of values after item `end` in the leaf's buffer.
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

  // Adds as unsigned numbers, because offsets are checked only after all were added, and an invalid
  // offset may overflow.
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

// Calls visit(typed null pointer) with the C++ type of a numeric leaf that is not bool.
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

// Calls visit(number), where number(at) is the value at index `at` of a numeric leaf, as a double.
template <typename Visit>
void WithNumbers(const ArrowArray& leaf, char kind, Visit visit) {
  const void* const held = kind == 'n' ? nullptr : leaf.buffers[1];  // of nulls, none is read
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

// The value at index `at` of a numeric leaf: a long double holds every double and 64-bit integer.
inline long double NumberAt(const ArrowArray& leaf, char kind, int64_t at) {
  long double value = 0;
  if (kind == 'l') {
    value = static_cast<long double>(Values<int64_t>(leaf)[at]);
  } else if (kind == 'L') {
    value = static_cast<long double>(Values<uint64_t>(leaf)[at]);
  } else {
    WithNumbers(leaf, kind, [&](auto number) { value = static_cast<long double>(number(at)); });
  }
  return value;
}

// The text of string `at` of a leaf.
template <typename Offset>
Status TextOf(const Column& column, int64_t at, std::string_view* out) {
  const ArrowArray& leaf = column.leaf();
  const Offset* const offsets = Values<Offset>(leaf);
  const char* const text = static_cast<const char*>(leaf.buffers[2]);
  const Offset from = offsets[at], to = offsets[at + 1];
  if (from < 0 || from > to || to > offsets[leaf.offset + leaf.length] ||
      (text == nullptr && to > from)) {
    return column.Broken("the offsets of its strings are outside of their bytes");
  }
  *out = std::string_view(text + (text == nullptr ? 0 : from), static_cast<size_t>(to - from));
  return Status::Ok();
}

}  // namespace pbx::feed
