// The instructions of programs, by the names of functions.
#pragma once

#include <string>

#include "feed/expr/program.h"

namespace pbx::expr {

// What an argument or the value of a function is.
//   n float   i integer   b truth   t text   ? any type, the same as that of the value
//   d time; the kernel takes its hours or its date
//   L list of integers or texts   v an integer or text, like the items of the list
//   z literal zone   # literal integer >= 0   s literal text
struct Function {
  const char* name;
  const char* args;  // the last may repeat if `more`
  char value;
  bool more;
  // Of numbers, or of what is not text; then of texts. Null: there is none.
  Kernel run;
  Kernel run_texts;
};

// Null for an unknown name.
const Function* FindFunction(const std::string& name);
// The names of all functions that are written as calls.
std::vector<std::string> FunctionNames();

// Of parts of the table.
extern const std::vector<Function> kNumberFunctions;
extern const std::vector<Function> kTextFunctions;

// if and coalesce, by the type of the value.
Kernel IfKernel(Type type);
Kernel CoalesceKernel(Type type);
Kernel MissingKernel();
// ==, !=, <, <=, >, >= for values of one kind.
Kernel CompareKernel(const std::string& mark, Kind kind);
// From a type to another; null if there is none. NumberKernel: to a number.
Kernel NumberKernel(Kind from, Kind to);
Kernel ConvertKernel(Type from, Type to);
// By the instruction's numbers.
Kernel QuantileKernel();
// From texts, lists of them, or the texts of integers, to feasigns.
Kernel HashKernel(Type from);
// From integers, as they are, to kId.
Kernel IdKernel();
// The hours of a time since 0001-01-01, and from these the date for `day` and `month`.
Kernel HoursKernel();
Kernel DateKernel();

}  // namespace pbx::expr
