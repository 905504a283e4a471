#include <algorithm>

#include "feed/expr/program.h"

namespace pbx::expr {

Evaluator::Evaluator(const Program& program)
    : program_(program), instructions_(program.instructions), vectors_(program.registers.size()) {
  for (const Constant& constant : program.constants) {
    const size_t at = static_cast<size_t>(constant.at);
    Vector& vector = vectors_[at];
    vector.Reset(program.registers[at], kRows);
    if (program.registers[at].list) vector.ends.assign(kRows, 0);  // null: an empty list
    std::fill(vector.valid.begin(), vector.valid.end(), uint8_t{!constant.null});
    std::fill(vector.bools.begin(), vector.bools.end(), uint8_t{constant.number != 0});
    std::fill(vector.ints.begin(), vector.ints.end(), constant.number);
    std::fill(vector.floats.begin(), vector.floats.end(), constant.value);
    std::fill(vector.texts.begin(), vector.texts.end(), std::string_view(constant.text));
  }
  for (Instruction& one : instructions_) {
    if (one.zone >= 0) one.resolved = &program.zones[static_cast<size_t>(one.zone)];
  }
}

void Evaluator::Run(size_t n) {
  for (const Instruction& one : instructions_) {
    const size_t out = static_cast<size_t>(one.out);
    args_.clear();
    for (const int arg : one.args) args_.push_back(&vectors_[static_cast<size_t>(arg)]);
    vectors_[out].Reset(program_.registers[out], n);
    one.run(one, args_.data(), &vectors_[out], n);
  }
}

}  // namespace pbx::expr
