#include "feed/expr/types.h"

#include <algorithm>
#include <cmath>

namespace pbx::expr {

// The type that a node has whatever it is used for; kUnknown for a column or null, or a list of
// them.
Type TypeOf(const Node& node) {
  switch (node.kind) {
    case NodeKind::kNumber: return Of(Kind::kFloat);
    case NodeKind::kText: return Of(Kind::kText);
    case NodeKind::kBool: return Of(Kind::kBool);
    case NodeKind::kNull:
    case NodeKind::kColumn: return Of(Kind::kUnknown);
    case NodeKind::kCall: break;
  }
  const std::string& name = node.text;
  if (IsComparison(name) || name == "missing") return Of(Kind::kBool);
  if (name == "number") return Of(Kind::kFloat);
  if (name == "int") return Of(Kind::kInt);
  if (name == "text") return Of(Kind::kText);
  if (name == "list") return ListOf(Kind::kUnknown);
  if (name == "if" || name == "coalesce") {
    bool fits = true;
    Type joined = Of(Kind::kUnknown);
    for (size_t i = name == "if" ? 1 : 0; i < node.args.size(); ++i) {
      joined = Join(joined, TypeOf(node.args[i]), &fits);
    }
    return joined;  // Emit reports branches that do not fit
  }
  const Function* const function = FindFunction(name);
  if (function == nullptr) return Of(Kind::kUnknown);
  switch (function->value) {
    case 'n': return Of(Kind::kFloat);
    case 'i': return Of(Kind::kInt);
    case 'b': return Of(Kind::kBool);
    case 't': return Of(Kind::kText);
    case 'd': return Of(Kind::kTime);
    default: return ListOf(name == "split" ? Kind::kText : KindOfItems(*function, node));
  }
}

// The type of the items of the lists that a function reads; kUnknown if nothing says it.
Kind KindOfItems(const Function& function, const Node& node) {
  for (size_t i = 0; i < node.args.size(); ++i) {
    const char code = CodeOfArgument(function, i);
    if (code != 'L' && code != 'v') continue;
    const Node& arg = node.args[i];
    const Kind kind = TypeOf(arg).kind;
    if (code == 'v' && arg.kind == NodeKind::kNumber) return Kind::kInt;
    if (kind != Kind::kUnknown) return kind;
  }
  return Kind::kUnknown;
}

char CodeOfArgument(const Function& function, size_t arg) {
  const std::string codes = function.args;
  return codes[std::min(arg, codes.size() - 1)];
}

// Whether values of a node may be computed integers, of which 0 is no feasign.
const Node* ComputedPart(const Node& node) {
  if (node.kind != NodeKind::kCall) return nullptr;
  const std::string& name = node.text;
  const bool passes = name == "if" || name == "coalesce" || name == "first" || name == "last" ||
                      name == "intersection" || name == "list";
  if (name == "int") return nullptr;
  if (!passes) return &node;
  const size_t begin = name == "if" ? 1 : 0;
  const size_t end = name == "first" || name == "last" ? 1 : node.args.size();
  for (size_t i = begin; i < end && i < node.args.size(); ++i) {
    if (const Node* found = ComputedPart(node.args[i])) return found;
  }
  return nullptr;
}

bool IsNormalizer(const std::string& name) {
  return name == "zscore" || name == "minmax" || name == "quantile";
}

std::string WrongConstants(const std::string& name, const std::vector<double>& constants) {
  if (constants.empty()) {
    return "it has no constants: a run takes them from its first rows; elsewhere, give the slot "
           "constants: [...] in slots.yaml";
  }
  bool fits = true;
  for (const double one : constants) fits = fits && std::isfinite(one);
  if (name == "quantile") {
    fits = fits && constants.size() % 2 == 0;
    for (size_t i = 2; fits && i < constants.size(); i += 2) {
      fits = constants[i - 2] < constants[i] && constants[i - 1] <= constants[i + 1];
    }
    return fits ? "" : "expected constants [x, share, ...], both ascending";
  }
  fits = fits && constants.size() == 2;
  if (name == "zscore") {
    return fits && constants[1] > 0 ? "" : "expected constants [mean, deviation above 0]";
  }
  return fits && constants[0] < constants[1] ? "" : "expected constants [low, high above low]";
}

}  // namespace pbx::expr
