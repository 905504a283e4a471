// Types and functions by name, for the compiler.
#pragma once

#include <string>
#include <vector>

#include "feed/expr/kernels.h"
#include "feed/expr/syntax.h"
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

// The type that a node has whatever it is used for; kUnknown for a column or null, or a list of
// them.
Type TypeOf(const Node& node);
// The type of the items of the lists that a function reads; kUnknown if nothing says it.
Kind KindOfItems(const Function& function, const Node& node);
char CodeOfArgument(const Function& function, size_t arg);  // as in Function::args

// A part of which the values of a node may be, and which is computed; null if there is none. A
// computed integer may be 0, which is no feasign.
const Node* ComputedPart(const Node& node);

bool IsNormalizer(const std::string& name);
// What is wrong with the constants of a normalizer; empty if nothing is.
std::string WrongConstants(const std::string& name, const std::vector<double>& constants);

}  // namespace pbx::expr
