// Json: a parsed JSON text, as Python's json.dumps writes it: also Infinity, -Infinity and NaN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace pbx {

struct Json {
  enum class Kind : uint8_t { kNull, kFalse, kTrue, kNumber, kText, kList, kObject };

  // InvalidArgument with the offset of the mistake. Of two members with one name, the last counts.
  static Result<Json> Parse(std::string_view text);

  // The member with a name that is not null. Null: there is none, or this is no object.
  const Json* Find(std::string_view name) const;

  Kind kind = Kind::kNull;
  std::string text;                // kText: in UTF-8; kNumber: as it is written
  std::vector<Json> items;         // kList; kObject: the values
  std::vector<std::string> names;  // kObject
};

// Reads the members of an object. A member that is missing or of another kind makes `status` an
// error, which the caller checks once at the end; the value is then 0, or empty.
class JsonReader {
 public:
  // what: the object, for messages.
  explicit JsonReader(std::string what) : what_(std::move(what)) {}

  bool Bool(const Json& object, std::string_view name);
  int64_t Integer(const Json& object, std::string_view name, int64_t least, int64_t most);
  uint64_t Unsigned(const Json& object, std::string_view name);
  double Number(const Json& object, std::string_view name);
  const std::string& Text(const Json& object, std::string_view name);
  const std::vector<Json>& List(const Json& object, std::string_view name);
  const Json& Object(const Json& object, std::string_view name);
  // Of a list.
  std::vector<std::string> Texts(const Json& object, std::string_view name);

  // The values themselves.
  double AsNumber(const Json& value, std::string_view name);
  // An integer of 64 bits exactly, else the nearest double.
  long double AsExact(const Json& value, std::string_view name);
  int64_t AsInteger(const Json& value, std::string_view name, int64_t least, int64_t most);

  void Fail(std::string_view name, const char* expected);
  const Status& status() const { return status_; }

 private:
  const Json& Member(const Json& object, std::string_view name, const char* expected);

  std::string what_;
  Status status_;
};

}  // namespace pbx
