// Batch: the raw fields of some instances, as the caller of the serving library sets them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "library/fields.h"

namespace pbx {

class Batch {
 public:
  void Clear();
  void Next() { ++instances_; }  // begins an instance
  size_t instances() const { return instances_; }

  // Begins a field of the instance, of which the n values added next are the values.
  void BeginField(const char* name, size_t n, bool list);
  void AddText(const char* text, size_t bytes);
  void AddDigits(const std::string& digits);
  void AddReal(double value);

  // The instances as lines of text, valid until the next call. InvalidArgument and NotFound name
  // the instance and the field.
  //   ignored  counts fields that no slot reads; null: such a field is NotFound
  //   what     an instance, for errors
  //   stamps   takes their times and labels; null: no field is one
  Result<std::string_view> Lines(const Fields& fields, std::atomic<uint64_t>* ignored,
                                 const char* what, Stamps* stamps);

 private:
  struct Field {
    size_t instance, name, name_bytes;  // the name in texts_
    size_t first, n;                    // its values
    bool list;
  };
  struct Value {
    FieldValue::Kind kind;
    size_t text, bytes;  // in texts_
    double real;
  };

  size_t Keep(const char* text, size_t bytes);
  Status SetCell(const Fields& fields, const Field& field, std::atomic<uint64_t>* ignored,
                 Stamps* stamps);

  size_t instances_ = 0;
  std::string texts_;
  std::vector<Field> set_;
  std::vector<Value> values_;
  // Of the last call of Lines, kept for their memory.
  std::vector<std::string> cells_;
  std::vector<FieldValue> given_;
  std::string lines_;
};

}  // namespace pbx
