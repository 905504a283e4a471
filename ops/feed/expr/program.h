// A program computes the values of all slots with expressions from the columns of a block of rows.
// Each instruction makes one vector from others; equal parts of expressions are computed once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "feed/expr/text_codes.h"
#include "feed/expr/times.h"
#include "feed/expr/vector.h"

namespace pbx::expr {

// The value of each key. Never changes.
using Table = std::map<std::string, std::string, std::less<>>;
using Tables = std::map<std::string, std::shared_ptr<const Table>>;  // by name

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
  const Zone* resolved = nullptr;           // of `zone`; set by the evaluator
  std::vector<double> numbers = {};         // constants of a normalizer
  std::shared_ptr<const Table> table = {};  // of a lookup
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
  bool dense;  // the output is kFloat; otherwise kId or a list of kInt, the feasigns
  bool hash;   // sparse: the texts of values are hashed
  // Of a normalizer: zscore [mean, deviation], minmax [low, high], quantile [x, share, ...].
  std::vector<double> constants = {};
};

// InvalidArgument names the slot, its expression, the place of the mistake, what was expected and
// what was found.
Result<Program> Compile(const std::vector<Source>& sources, const Zones& zones,
                        const Tables& tables = {});

// Evaluates a program block by block. Of one thread; the program must outlive it.
//
// Values that depend only on one or two columns of texts are computed once for each combination of
// texts that a block has, if these are few.
class Evaluator {
 public:
  explicit Evaluator(const Program& program);

  // The vector of load i, to be filled before Run.
  Vector* input(size_t load) { return &vectors_[static_cast<size_t>(program_.loads[load].at)]; }
  void Run(size_t n);  // n <= kRows
  const Vector& output(size_t source) const { return *outputs_[source]; }

 private:
  static constexpr int kEachRow = -1;
  static constexpr int kConstant = -2;

  // The registers that depend on the same one or two columns of texts, and on nothing else.
  struct Group {
    std::vector<int> texts;             // registers of the columns
    std::unique_ptr<TextCodes> codes;   // of one column; null: no register but its own
    size_t size = 0;                    // combinations in the block; 0: too many
    const uint16_t* places = nullptr;   // (n) the combination of each row
    std::vector<uint16_t> rows;         // of two columns: what `places` points to
    std::vector<uint16_t> of_texts[2];  // of two: (size) the text of each combination
  };
  struct Picked {
    uint64_t block = 0;
    Vector vector;
  };

  int GroupOf(const std::vector<int>& texts);
  int GroupOfArguments(const Instruction& one);
  void Fill(size_t n);  // constants
  void Combine(Group* group, size_t n);
  int Narrow(int group) const;  // kEachRow in place of a group with too many combinations
  // The n values of a register for the combinations of a group, or for each row.
  const Vector* At(int value, int group, size_t n);
  void Execute(const Instruction& one, int group, size_t n);

  const Program& program_;
  std::vector<Instruction> instructions_;
  std::vector<Instruction> constants_;  // instructions of constants only
  std::vector<Group> groups_;
  std::vector<Vector> vectors_;  // by register, for the combinations of its group
  std::vector<int> group_of_;    // by register
  std::vector<Picked> picked_;   // (registers, groups + 1) values for another group
  std::vector<const Vector*> outputs_;
  std::vector<const Vector*> args_;
  size_t filled_ = 0;   // rows of constants
  uint64_t block_ = 0;  // number of the last one
};

}  // namespace pbx::expr
