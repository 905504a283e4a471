// A program computes the values of all slots with expressions from the columns of a block of rows.
// Each instruction makes one vector from others; equal parts of expressions are computed once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "feed/expr/times.h"
#include "feed/expr/vector.h"

namespace pbx::expr {

struct Instruction;
// Sets n rows of *out, which Reset has given its type.
using Kernel = void (*)(const Instruction& self, const Vector* const* args, Vector* out, size_t n);

struct Instruction {
  Kernel run = nullptr;
  std::vector<int> args = {};  // registers
  int out = -1;
  int64_t number = 0;     // a literal argument
  std::string text = {};  // the same
  int zone = -1;
  const Zone* resolved = nullptr;  // of `zone`; set by the evaluator
};

// A column that is read as a type.
struct Load {
  std::string column;
  Type type;
  int at;  // register
};

struct Constant {
  int at;  // register
  bool null = false;
  int64_t number = 0;  // kBool, kInt, kTime
  double value = 0;    // kFloat
  std::string text = {};
};

struct Program {
  std::vector<Type> registers;
  std::vector<Load> loads;
  std::vector<Constant> constants;
  std::vector<Instruction> instructions;  // each after those whose registers it reads
  std::vector<int> outputs;               // the register of each source, in order
  std::vector<Zone> zones;
};

// The expression of a slot.
struct Source {
  std::string slot;
  std::string text;
  bool dense;  // the output is kFloat; otherwise kInt or a list of kInt, the feasigns
  bool hash;   // sparse: the texts of values are hashed
};

// InvalidArgument names the slot, its expression, the place of the mistake, what was expected and
// what was found.
Result<Program> Compile(const std::vector<Source>& sources, const Zones& zones);

// Evaluates a program block by block. Of one thread; the program must outlive it.
class Evaluator {
 public:
  explicit Evaluator(const Program& program);

  // The vector of load i, to be filled before Run.
  Vector* input(size_t load) { return &vectors_[static_cast<size_t>(program_.loads[load].at)]; }
  void Run(size_t n);  // n <= kRows
  const Vector& output(size_t source) const {
    return vectors_[static_cast<size_t>(program_.outputs[source])];
  }

 private:
  const Program& program_;
  std::vector<Instruction> instructions_;
  std::vector<Vector> vectors_;  // by register
  std::vector<const Vector*> args_;
};

}  // namespace pbx::expr
