// From trees to a program: types, conversions, and one register for equal parts.
#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include "feed/expr/kernels.h"
#include "feed/expr/program.h"
#include "feed/expr/syntax.h"
#include "feed/expr/types.h"

namespace pbx::expr {
namespace {

constexpr int kFailed = -1;
constexpr int64_t kExact = 9007199254740992;  // 2^53: float64 holds every integer up to it

// Compiles the expression of one slot into a program. Emit and what it calls return a register, or
// kFailed after the first mistake, which is in status().
class Compiler {
 public:
  Compiler(const Zones& zones, const Tables& tables, Program* program)
      : zones_(zones), tables_(tables), program_(*program) {}

  Status Add(const Source& source) {
    text_ = &source.text;
    status_ = Status::Ok();
    Result<Node> parsed = ParseExpression(source.text);
    status_ = parsed.status();
    if (status_.ok()) {
      const Node& node = parsed.value();
      const bool normalizes = IsNormalizer(node.text) && node.kind == NodeKind::kCall;
      program_.outputs.push_back(!source.dense ? Sparse(source, node)
                                 : normalizes  ? Normalized(source.constants, node)
                                               : Emit(node, Of(Kind::kFloat)));
    }
    if (status_.ok()) return status_;
    return Error(Code::kInvalidArgument, "slot '%.200s': %s", source.slot.c_str(),
                 status_.message().c_str());
  }

  // missing(column) reads a column as a text, unless another load reads it already.
  void JoinLoads() {
    const auto& loads = program_.loads;
    for (size_t i = loads.size(); i-- > 0;) {
      const Load text = loads[i];
      const auto other = std::find_if(loads.begin(), loads.end(), [&text](const Load& load) {
        return load.column == text.column && load.at != text.at && !load.type.list;
      });
      if (!(text.type == Of(Kind::kText)) || other == loads.end() || !OnlyMissing(text.at))
        continue;
      for (Instruction& one : program_.instructions) {
        std::replace(one.args.begin(), one.args.end(), text.at, other->at);
      }
      program_.loads.erase(program_.loads.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

 private:
  bool OnlyMissing(int value) const {
    return std::all_of(
        program_.instructions.begin(), program_.instructions.end(), [value](const auto& one) {
          return one.run == MissingKernel() ||
                 std::find(one.args.begin(), one.args.end(), value) == one.args.end();
        });
  }

  int Fail(const Node& node, const std::string& what) {
    if (status_.ok()) status_ = ErrorAt(*text_, node.at, what);
    return kFailed;
  }
  int Mismatch(const Node& node, Type expected, const std::string& found,
               const std::string& step = "") {
    return Fail(node, "expected " + NameOf(expected) + ", found " + found + step);
  }

  int Sparse(const Source& source, const Node& node) {
    const Type type = TypeOf(node);
    Type wanted{source.hash ? Kind::kText : Kind::kInt, type.list, -1};
    if (!source.hash) {
      if (type.kind == Kind::kText) {
        return Mismatch(node, wanted, "a text", ": give the slot hash: true");
      }
      const Node* const computed = ComputedPart(node);
      if (computed != nullptr && FindFunction(computed->text) != nullptr) {
        return Fail(*computed,
                    "expected the ids of a column, found a computed value, which may be "
                    "0, and 0 is no id: give the slot hash: true");
      }
    } else if (type == Of(Kind::kInt)) {
      wanted = type;
    }
    const int values = Emit(node, wanted);
    if (values == kFailed || (type.list && !source.hash)) return values;
    return Instruct("id", type.list ? ListOf(Kind::kInt) : Of(Kind::kId),
                    source.hash ? HashKernel(wanted) : IdKernel(), {values});
  }

  // zscore, minmax and quantile, with the constants of the first rows of a run.
  int Normalized(const std::vector<double>& constants, const Node& node) {
    if (node.args.size() != 1) {
      return Fail(node,
                  node.text + ": expected 1 arguments, found " + std::to_string(node.args.size()));
    }
    const std::string wrong = WrongConstants(node.text, constants);
    if (!wrong.empty()) return Fail(node, node.text + ": " + wrong);
    const int value = Emit(node.args[0], Of(Kind::kFloat));
    if (value == kFailed) return value;
    const auto number = [this](double of) {
      Node literal;
      literal.number = of;
      return Number(literal, Of(Kind::kFloat));
    };
    const auto call = [this](const char* name, const std::vector<int>& args) {
      return Instruct(name, Of(Kind::kFloat), FindFunction(name)->run, args);
    };
    if (node.text == "quantile") {
      return Instruct("quantile", Of(Kind::kFloat), QuantileKernel(), {value}, 0, "", -1,
                      constants);
    }
    const int first = number(constants[0]), second = number(constants[1]);
    if (node.text == "zscore") return call("/", {call("-", {value, first}), second});
    const int within = call("clip", {value, first, second});
    return call("/", {call("-", {within, first}), number(constants[1] - constants[0])});
  }

  // ---- registers

  int Register(const std::string& key, Type type, bool* is_new) {
    const auto [at, added] = known_.try_emplace(key, static_cast<int>(program_.registers.size()));
    *is_new = added;
    if (added) program_.registers.push_back(type);
    return at->second;
  }

  static std::string KeyOf(const std::string& what, Type type) {
    return what + '\0' + std::to_string(static_cast<int>(type.kind)) + (type.list ? "l" : "s") +
           std::to_string(type.zone) + '\0';
  }

  int Instruct(const std::string& name, Type type, Kernel run, std::vector<int> args,
               int64_t number = 0, const std::string& text = "", int zone = -1,
               const std::vector<double>& numbers = {}) {
    std::string key = KeyOf(name, type) + std::to_string(number) + '\0' + text + '\0';
    for (const double one : numbers) key += Exactly(one) + " ";
    for (const int arg : args) key += std::to_string(arg) + ",";
    bool is_new = false;
    const int out = Register(key, type, &is_new);
    if (is_new) {
      program_.instructions.push_back({run, std::move(args), out, number, text, zone});
      program_.instructions.back().numbers = numbers;
      if (name == "lookup") program_.instructions.back().table = tables_.at(text);
    }
    return out;
  }

  int Column(const Node& node, Type want) {
    if (node.text.empty()) return Fail(node, "expected the name of a column, found none");
    if (want.kind == Kind::kBool) {
      return Mismatch(node, want, "the column '" + node.text + "'",
                      ": compare it, such as " + node.text + " == 1");
    }
    bool is_new = false;
    const int out = Register(KeyOf("column " + node.text, want), want, &is_new);
    if (is_new) { program_.loads.push_back({node.text, want, out}); }
    return out;
  }

  static std::string Exactly(double number) {
    char text[40];
    std::snprintf(text, sizeof(text), "%a", number);
    return text;
  }

  int Literal(Constant constant, Type type, const std::string& key) {
    bool is_new = false;
    constant.at = Register(KeyOf("constant " + key, type), type, &is_new);
    if (is_new) program_.constants.push_back(constant);
    return constant.at;
  }

  int Number(const Node& node, Type want) {
    Constant constant{};
    if (want == Of(Kind::kInt)) {
      if (!node.whole) return Mismatch(node, want, "a number with a fraction, or beyond int64");
      constant.number = node.integer;
      return Literal(constant, want, std::to_string(node.integer));
    }
    if (!(want == Of(Kind::kFloat))) return Mismatch(node, want, "a number");
    if (node.whole && (node.integer > kExact || node.integer < -kExact)) {
      return Fail(node,
                  "expected a number that float64 holds exactly, found an integer beyond "
                  "2^53: compare it with int(column)");
    }
    constant.value = node.number;
    return Literal(constant, want, Exactly(node.number));
  }

  int Text(const Node& node, Type want) {
    Constant constant{};
    if (node.text.empty()) {
      return Fail(node,
                  "expected a text with at least one character, found an empty one, which "
                  "is null: use missing(x)");
    }
    if (want.kind == Kind::kTime && !want.list) {
      if (!ScanTime(node.text, ZoneAt(want.zone), &constant.number)) {
        return Mismatch(node, want, "the text '" + node.text + "'",
                        ": write it as '2024-01-31 "
                        "12:00:00'");
      }
      return Literal(constant, want, node.text);
    }
    if (!(want == Of(Kind::kText))) return Mismatch(node, want, "a text");
    constant.text = node.text;
    return Literal(constant, want, node.text);
  }

  // ---- nodes

  // The register of the node's value as the type `want`, which is not kUnknown.
  int Emit(const Node& node, Type want) {
    Constant constant{};
    switch (node.kind) {
      case NodeKind::kNumber: return Number(node, want);
      case NodeKind::kText: return Text(node, want);
      case NodeKind::kBool:
        constant.number = node.number != 0;
        return Convert(node, Literal(constant, Of(Kind::kBool), node.number != 0 ? "1" : "0"),
                       Of(Kind::kBool), want);
      case NodeKind::kNull: constant.null = true; return Literal(constant, want, "null");
      case NodeKind::kColumn: return Column(node, want);
      case NodeKind::kCall: break;
    }
    if (!CheckCall(node)) return kFailed;
    const std::string& name = node.text;
    if (name == "if" || name == "coalesce") return Choice(node, want);
    if (name == "missing") return Missing(node, want);
    if (IsComparison(name)) return Comparison(node, want);
    if (IsConversion(name)) return Conversion(node, want);
    return Call(*FindFunction(name), node, want);
  }

  bool CheckCall(const Node& node) {
    const std::string& name = node.text;
    size_t least = 1, most = 1;
    if (IsNormalizer(name)) {
      Fail(node, name + ": expected it as the whole expr of a dense slot, such as " + name +
                     "(price / 2)");
      return false;
    }
    if (name == "if") {
      least = most = 3;
    } else if (name == "coalesce") {
      least = 2, most = SIZE_MAX;
    } else if (IsComparison(name)) {
      least = most = 2;
    } else if (name != "missing" && !IsConversion(name)) {
      const Function* const function = FindFunction(name);
      if (function == nullptr) return Unknown(node);
      least = most = std::string(function->args).size();
      if (function->more) most = SIZE_MAX;
    }
    if (node.args.size() >= least && node.args.size() <= most) return true;
    const std::string count = std::to_string(least) + (most > least ? " or more" : "");
    Fail(node,
         name + ": expected " + count + " arguments, found " + std::to_string(node.args.size()));
    return false;
  }

  bool Unknown(const Node& node) {
    std::string names;
    for (const std::string& name : FunctionNames()) names += (names.empty() ? "" : ", ") + name;
    Fail(node, "expected a function, found '" + node.text + "': there are " + names);
    return false;
  }

  int Choice(const Node& node, Type want) {
    const bool is_if = node.text == "if";
    bool fits = true;
    Type natural = Of(Kind::kUnknown);
    for (size_t i = is_if ? 1 : 0; i < node.args.size(); ++i) {
      const Type joined = Join(natural, TypeOf(node.args[i]), &fits);
      if (!fits) return Mismatch(node.args[i], natural, NameOf(TypeOf(node.args[i])));
      natural = joined;
    }
    // Branches become what is wanted one by one, so that a column is read as that.
    Type type = want;
    if (natural.kind == Kind::kFloat && want.kind == Kind::kText) type = natural;
    std::vector<int> args;
    if (is_if) args.push_back(Emit(node.args[0], Of(Kind::kBool)));
    for (size_t i = is_if ? 1 : 0; i < node.args.size(); ++i) {
      args.push_back(Emit(node.args[i], type));
    }
    if (!status_.ok()) return kFailed;
    const Kernel run = is_if ? IfKernel(type) : CoalesceKernel(type);
    return Convert(node, Instruct(node.text, type, run, args), type, want);
  }

  int Missing(const Node& node, Type want) {
    const int arg = Emit(node.args[0], Settled(TypeOf(node.args[0])));
    if (arg == kFailed) return arg;
    return Convert(node, Instruct("missing", Of(Kind::kBool), MissingKernel(), {arg}),
                   Of(Kind::kBool), want);
  }

  // What is read where nothing says a type: texts.
  static Type Settled(Type type) {
    if (type.kind == Kind::kUnknown) type.kind = Kind::kText;
    return type;
  }

  int Comparison(const Node& node, Type want) {
    const Node &a = node.args[0], &b = node.args[1];
    Type first = TypeOf(a), second = TypeOf(b);
    if (first.kind == Kind::kInt && b.kind == NodeKind::kNumber && b.whole) second = first;
    if (second.kind == Kind::kInt && a.kind == NodeKind::kNumber && a.whole) first = second;
    bool fits = true;
    const Type type = Join(first, second, &fits);
    if (!fits) return Mismatch(b, first, NameOf(second));
    if (type.kind == Kind::kUnknown) {
      return Fail(node, "expected one side with a type, found two columns: write number(" + a.text +
                            "), int(" + a.text + ") or text(" + a.text + ")");
    }
    if (type.list || type.kind == Kind::kTime) {
      return Fail(node, "expected numbers or texts, found " + NameOf(type));
    }
    const int left = Emit(a, type), right = Emit(b, type);
    if (!status_.ok()) return kFailed;
    const Kernel run = CompareKernel(node.text, type.kind);
    return Convert(node, Instruct(node.text, Of(Kind::kBool), run, {left, right}), Of(Kind::kBool),
                   want);
  }

  // number, int, text, list: the type that a column is read as, or a conversion.
  int Conversion(const Node& node, Type want) {
    const Node& arg = node.args[0];
    Type to = TypeOf(node);
    if (to.list) {
      if (arg.kind != NodeKind::kColumn) return Fail(arg, "list: expected the name of a column");
      to.kind = want.kind == Kind::kInt ? Kind::kInt : Kind::kText;
      return Convert(node, Emit(arg, to), to, want);
    }
    const Type from = TypeOf(arg);
    if (from.kind == Kind::kUnknown || arg.kind == NodeKind::kNumber) {
      return Convert(node, Emit(arg, to), to, want);
    }
    const int made = Emit(arg, from);
    if (made == kFailed) return made;
    if (from == to) return Convert(node, made, to, want);
    const Kernel run = ConvertKernel(from, to);
    if (run == nullptr) {
      return Mismatch(arg, to, NameOf(from),
                      from.kind == Kind::kFloat ? ": use floor(x) or round(x)" : "");
    }
    return Convert(node, Instruct("convert", to, run, {made}), to, want);
  }

  // From the type that a node has to that which is wanted: only what loses nothing.
  int Convert(const Node& node, int made, Type natural, Type want) {
    if (made == kFailed || natural == want) return made;
    const bool widens =
        want.kind == Kind::kFloat && (natural.kind == Kind::kInt || natural.kind == Kind::kBool);
    const bool shows =
        want.kind == Kind::kText && (natural.kind == Kind::kInt || natural.kind == Kind::kBool);
    if ((widens || shows) && !want.list && !natural.list) {
      return Instruct("convert", want, ConvertKernel(natural, want), {made});
    }
    const bool rounds = natural.kind == Kind::kFloat && !want.list;
    const bool scans = natural.kind == Kind::kText && want.kind == Kind::kFloat && !want.list;
    return Mismatch(node, want, NameOf(natural),
                    rounds  ? ": use floor(x) or round(x)"
                    : scans ? ": use number(x)"
                            : "");
  }

  // ---- functions

  int Call(const Function& function, const Node& node, Type want) {
    Kind items = KindOfItems(function, node);
    if (items == Kind::kUnknown)
      items = want.list && want.kind == Kind::kInt ? Kind::kInt : Kind::kText;
    if (function.run == nullptr || (items != Kind::kInt && items != Kind::kText))
      items = Kind::kText;
    Arguments taken;
    if (!TakeLiterals(function, node, want, &taken)) return kFailed;
    for (size_t i = 0; i < node.args.size(); ++i) {
      const Type type = TypeOfArgument(CodeOfArgument(function, i), items, taken.zone);
      if (type.kind != Kind::kUnknown) taken.registers.push_back(Emit(node.args[i], type));
      if (type.kind != Kind::kTime || !status_.ok()) continue;
      int& time = taken.registers.back();
      time = Instruct("hours", Of(Kind::kInt), HoursKernel(), {time});
      if (node.text != "day" && node.text != "month") continue;
      time = Instruct("date", Of(Kind::kInt), DateKernel(), {time});
    }
    if (!status_.ok()) return kFailed;
    Type natural = TypeOf(node);
    if (natural.list) natural.kind = items;
    if (natural.kind == Kind::kTime) natural.zone = taken.zone;
    const bool texts = function.run_texts != nullptr && items == Kind::kText;
    const Kernel run = texts ? function.run_texts : function.run;
    const int made = Instruct(function.name, natural, run, taken.registers, taken.number,
                              taken.text, taken.zone);
    return Convert(node, made, natural, want);
  }

  struct Arguments {
    std::vector<int> registers;
    int64_t number = 0;
    std::string text;
    int zone = -1;
  };

  static Type TypeOfArgument(char code, Kind items, int zone) {
    switch (code) {
      case 'n': return Of(Kind::kFloat);
      case 'b': return Of(Kind::kBool);
      case 't': return Of(Kind::kText);
      case 'd': return {Kind::kTime, false, zone};
      case 'L': return ListOf(items);
      case 'v': return Of(items);
      default: return Of(Kind::kUnknown);  // a literal
    }
  }

  bool TakeLiterals(const Function& function, const Node& node, Type want, Arguments* taken) {
    if (function.value == 'd') {
      if (want.kind != Kind::kTime || want.list) {
        Mismatch(node, want, "a time", ": use hour, weekday, day, month or days_between");
        return false;
      }
      taken->zone = want.zone;
    }
    for (size_t i = 0; i < node.args.size(); ++i) {
      const Node& arg = node.args[i];
      const char code = CodeOfArgument(function, i);
      if (code == '#') {
        if (arg.kind != NodeKind::kNumber || !arg.whole || arg.integer < 0) {
          Fail(arg, std::string(function.name) + ": expected an integer of 0 or more, such as 3");
          return false;
        }
        taken->number = arg.integer;
      } else if (code == 's' || code == 'z') {
        if (arg.kind != NodeKind::kText || arg.text.empty()) {
          Fail(arg, std::string(function.name) + ": expected a text in quotes, such as " +
                        (code == 's' ? "'-'" : "'UTC', '+08:00' or 'Asia/Shanghai'"));
          return false;
        }
        taken->text = code == 's' ? arg.text : "";
        if (code == 'z' && !TakeZone(arg, &taken->zone)) return false;
        if (function.name == std::string("lookup") && !HasTable(arg)) return false;
      }
    }
    return true;
  }

  bool HasTable(const Node& node) {
    if (tables_.count(node.text) != 0) return true;
    std::string names;
    for (const auto& [name, table] : tables_) names += (names.empty() ? "" : ", ") + name;
    Fail(node, "lookup: expected a table of slots.yaml, found '" + node.text + "': there are " +
                   (names.empty() ? "none" : names));
    return false;
  }

  bool TakeZone(const Node& node, int* zone) {
    const auto found = zone_places_.find(node.text);
    if (found != zone_places_.end()) {
      *zone = found->second;
      return true;
    }
    const Result<Zone> made = ZoneOf(node.text, zones_);
    if (!made.ok()) {
      Fail(node,
           "expected a zone such as 'UTC', '+08:00' or 'Asia/Shanghai', found '" + node.text + "'");
      return false;
    }
    *zone = static_cast<int>(program_.zones.size());
    zone_places_[node.text] = *zone;
    program_.zones.push_back(made.value());
    return true;
  }

  const Zone& ZoneAt(int zone) const { return program_.zones[static_cast<size_t>(zone)]; }

  const Zones& zones_;
  const Tables& tables_;
  Program& program_;
  const std::string* text_ = nullptr;
  Status status_;
  std::map<std::string, int> known_;  // registers
  std::map<std::string, int> zone_places_;
};

}  // namespace

Result<Program> Compile(const std::vector<Source>& sources, const Zones& zones,
                        const Tables& tables) {
  Program program;
  Compiler compiler(zones, tables, &program);
  for (const Source& source : sources) PBX_RETURN_IF_ERROR(compiler.Add(source));
  compiler.JoinLoads();
  return program;
}

}  // namespace pbx::expr
