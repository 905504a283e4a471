// Types and functions by name, for the compiler.
#pragma once

#include <string>

#include "feed/expr/vector.h"

namespace pbx::expr {

inline Type Of(Kind kind) { return {kind, false, -1}; }
inline Type ListOf(Kind kind) { return {kind, true, -1}; }

inline std::string NameOf(Type type) {
  static constexpr const char* kNames[] = {"a value",  "a truth value", "an integer",
                                           "a number", "a text",        "a time"};
  std::string one = kNames[static_cast<size_t>(type.kind)];
  if (!type.list) return one;
  if (type.kind == Kind::kUnknown) return "a list";
  return "a list of " + one.substr(one.find(' ') + 1) + "s";
}

inline bool IsComparison(const std::string& name) {
  return name == "==" || name == "!=" || name[0] == '<' || name[0] == '>';
}

inline bool IsConversion(const std::string& name) {
  return name == "number" || name == "int" || name == "text" || name == "list";
}

// The type of two values that become one; kUnknown if neither has one. *fits: whether there is one.
inline Type Join(Type a, Type b, bool* fits) {
  if (a.kind == Kind::kUnknown || b.kind == Kind::kUnknown) {
    Type joined = a.kind == Kind::kUnknown ? b : a;
    joined.list = a.list || b.list;
    return joined;
  }
  *fits = *fits && a.list == b.list;
  if (a.kind == b.kind) return a;
  const auto number = [](Type t) { return t.kind == Kind::kInt || t.kind == Kind::kFloat; };
  *fits = *fits && number(a) && number(b) && !a.list;
  return Of(Kind::kFloat);
}

}  // namespace pbx::expr
