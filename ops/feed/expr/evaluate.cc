#include <algorithm>

#include "feed/expr/program.h"

namespace pbx::expr {
namespace {

constexpr size_t kFewRows = 64;  // that are evaluated row by row

bool IsText(Type type) { return type.kind == Kind::kText && !type.list; }

template <typename T>
void Gather(const std::vector<T>& from, const uint16_t* places, size_t n, std::vector<T>* to) {
  const T* const values = from.data();
  T* const out = to->data();
  for (size_t i = 0; i < n; ++i) out[i] = values[places[i]];
}

template <typename T>
void GatherLists(const Vector& from, const std::vector<T>& items, const uint16_t* places, size_t n,
                 std::vector<T>* to, Vector* out) {
  for (size_t i = 0; i < n; ++i) {
    to->insert(to->end(), items.begin() + static_cast<std::ptrdiff_t>(from.begin(places[i])),
               items.begin() + static_cast<std::ptrdiff_t>(from.end(places[i])));
    out->EndRow(to->size());
  }
}

// Sets row i of *out to row places[i] of a vector.
void Pick(const Vector& from, Type type, const uint16_t* places, size_t n, Vector* out) {
  out->Reset(type, n);
  if (type.list && type.kind == Kind::kText) {
    return GatherLists(from, from.texts, places, n, &out->texts, out);
  }
  if (type.list) return GatherLists(from, from.ints, places, n, &out->ints, out);
  if (type.kind != Kind::kId) Gather(from.valid, places, n, &out->valid);
  switch (type.kind) {
    case Kind::kBool: return Gather(from.bools, places, n, &out->bools);
    case Kind::kFloat: return Gather(from.floats, places, n, &out->floats);
    case Kind::kText: return Gather(from.texts, places, n, &out->texts);
    default: return Gather(from.ints, places, n, &out->ints);
  }
}

}  // namespace

Evaluator::Evaluator(const Program& program)
    : program_(program),
      vectors_(program.registers.size()),
      group_of_(program.registers.size(), kConstant),
      outputs_(program.outputs.size()) {
  for (const Load& load : program.loads) {
    group_of_[static_cast<size_t>(load.at)] = IsText(load.type) ? GroupOf({load.at}) : kEachRow;
  }
  for (Instruction one : program.instructions) {
    if (one.zone >= 0) one.resolved = &program.zones[static_cast<size_t>(one.zone)];
    const int group = GroupOfArguments(one);
    group_of_[static_cast<size_t>(one.out)] = group;
    (group == kConstant ? constants_ : instructions_).push_back(std::move(one));
    if (group < 0) continue;
    for (const int text : groups_[static_cast<size_t>(group)].texts) {
      Group& of_text = groups_[static_cast<size_t>(GroupOf({text}))];
      if (of_text.codes == nullptr) of_text.codes = std::make_unique<TextCodes>();
    }
  }
  picked_.resize(program.registers.size() * (groups_.size() + 1));
}

int Evaluator::GroupOf(const std::vector<int>& texts) {
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (groups_[i].texts == texts) return static_cast<int>(i);
  }
  groups_.emplace_back().texts = texts;
  return static_cast<int>(groups_.size()) - 1;
}

int Evaluator::GroupOfArguments(const Instruction& one) {
  std::vector<int> texts;
  for (const int arg : one.args) {
    const int group = group_of_[static_cast<size_t>(arg)];
    if (group == kConstant) continue;
    if (group == kEachRow) return kEachRow;
    const std::vector<int>& more = groups_[static_cast<size_t>(group)].texts;
    texts.insert(texts.end(), more.begin(), more.end());
  }
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  if (texts.empty()) return kConstant;
  return texts.size() > 2 ? kEachRow : GroupOf(texts);
}

void Evaluator::Fill(size_t n) {
  if (n <= filled_) return;
  filled_ = n;
  for (const Constant& constant : program_.constants) {
    const size_t at = static_cast<size_t>(constant.at);
    Vector& vector = vectors_[at];
    vector.Reset(program_.registers[at], n);
    if (program_.registers[at].list) vector.ends.assign(n, 0);  // null: an empty list
    std::fill(vector.valid.begin(), vector.valid.end(), uint8_t{!constant.null});
    std::fill(vector.bools.begin(), vector.bools.end(), uint8_t{constant.number != 0});
    std::fill(vector.ints.begin(), vector.ints.end(), constant.number);
    std::fill(vector.floats.begin(), vector.floats.end(), constant.value);
    std::fill(vector.texts.begin(), vector.texts.end(), std::string_view(constant.text));
  }
  for (const Instruction& one : constants_) Execute(one, kConstant, n);
}

void Evaluator::Combine(Group* group, size_t n) {
  const size_t most = n / 4;
  group->size = 0;
  if (n < kFewRows) return;
  if (group->texts.size() == 1) {
    const Vector& texts = vectors_[static_cast<size_t>(group->texts[0])];
    if (group->codes == nullptr || !group->codes->Take(texts, n, most)) return;
    group->size = group->codes->count();
    group->places = group->codes->codes();
    return;
  }
  const Group& first = groups_[static_cast<size_t>(GroupOf({group->texts[0]}))];
  const Group& second = groups_[static_cast<size_t>(GroupOf({group->texts[1]}))];
  if (first.size * second.size == 0 || first.size * second.size > most) return;
  group->size = first.size * second.size;
  group->rows.resize(n);
  for (size_t i = 0; i < n; ++i) {
    group->rows[i] = static_cast<uint16_t>(first.places[i] * second.size + second.places[i]);
  }
  group->places = group->rows.data();
  for (std::vector<uint16_t>& of : group->of_texts) of.resize(group->size);
  for (size_t i = 0; i < group->size; ++i) {
    group->of_texts[0][i] = static_cast<uint16_t>(i / second.size);
    group->of_texts[1][i] = static_cast<uint16_t>(i % second.size);
  }
}

int Evaluator::Narrow(int group) const {
  return group >= 0 && groups_[static_cast<size_t>(group)].size == 0 ? kEachRow : group;
}

const Vector* Evaluator::At(int value, int group, size_t n) {
  const size_t at = static_cast<size_t>(value);
  const int own = Narrow(group_of_[at]);
  if (own < 0) return &vectors_[at];
  const Group& of = groups_[static_cast<size_t>(own)];
  const bool column = of.codes != nullptr && of.texts[0] == value;
  if (column && group == kEachRow) return &vectors_[at];
  const Vector& from = column ? of.codes->distinct() : vectors_[at];
  if (own == group) return &from;
  Picked& picked = picked_[at * (groups_.size() + 1) + static_cast<size_t>(group + 1)];
  if (picked.block == block_) return &picked.vector;
  picked.block = block_;
  const uint16_t* places = of.places;
  if (group != kEachRow) {
    const Group& pair = groups_[static_cast<size_t>(group)];
    places = pair.of_texts[pair.texts[0] == of.texts[0] ? 0 : 1].data();
  }
  Pick(from, program_.registers[at], places, n, &picked.vector);
  return &picked.vector;
}

void Evaluator::Execute(const Instruction& one, int group, size_t n) {
  const size_t out = static_cast<size_t>(one.out);
  args_.clear();
  for (const int arg : one.args) args_.push_back(At(arg, group, n));
  vectors_[out].Reset(program_.registers[out], n);
  one.run(one, args_.data(), &vectors_[out], n);
}

void Evaluator::Run(size_t n) {
  ++block_;
  Fill(n);
  for (Group& group : groups_) Combine(&group, n);
  for (const Instruction& one : instructions_) {
    const int group = Narrow(group_of_[static_cast<size_t>(one.out)]);
    Execute(one, group, group < 0 ? n : groups_[static_cast<size_t>(group)].size);
  }
  for (size_t i = 0; i < outputs_.size(); ++i) {
    outputs_[i] = At(program_.outputs[i], kEachRow, n);
  }
}

}  // namespace pbx::expr
