// Instructions on numbers and truths.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <type_traits>

#include "base/vector_clones.h"
#include "feed/expr/kernels.h"

namespace pbx::expr {
namespace {

constexpr double kMost = std::numeric_limits<double>::max();
constexpr double kIntEnd = 9223372036854775808.0;  // 2^63

using Args = const Vector* const*;

// A result that is not finite is null.
#define PBX_ARITHMETIC(name, expression)                                                    \
  PBX_VECTOR_CLONES void name(const double* a, const double* b, const uint8_t* va,          \
                              const uint8_t* vb, double* out, uint8_t* valid, size_t n) {   \
    for (size_t i = 0; i < n; ++i) out[i] = expression;                                     \
    for (size_t i = 0; i < n; ++i) {                                                        \
      valid[i] = static_cast<uint8_t>(va[i] & vb[i] & uint8_t{std::fabs(out[i]) <= kMost}); \
    }                                                                                       \
  }
PBX_ARITHMETIC(AddAll, a[i] + b[i])
PBX_ARITHMETIC(SubtractAll, a[i] - b[i])
PBX_ARITHMETIC(MultiplyAll, a[i] * b[i])
PBX_ARITHMETIC(DivideAll, a[i] / b[i])
PBX_ARITHMETIC(LeastOf, b[i] < a[i] ? b[i] : a[i])
PBX_ARITHMETIC(MostOf, b[i] > a[i] ? b[i] : a[i])
#undef PBX_ARITHMETIC

using Arithmetic = void (*)(const double*, const double*, const uint8_t*, const uint8_t*, double*,
                            uint8_t*, size_t);

template <Arithmetic all>
void Fold(const Instruction& self, Args args, Vector* out, size_t n) {
  const Vector* first = args[0];
  for (size_t i = 1; i < self.args.size(); ++i) {
    all(first->floats.data(), args[i]->floats.data(), first->valid.data(), args[i]->valid.data(),
        out->floats.data(), out->valid.data(), n);
    first = out;
  }
}

void Clip(const Instruction&, Args args, Vector* out, size_t n) {
  const double *low = args[1]->floats.data(), *high = args[2]->floats.data();
  MostOf(args[0]->floats.data(), low, args[0]->valid.data(), args[1]->valid.data(),
         out->floats.data(), out->valid.data(), n);
  LeastOf(out->floats.data(), high, out->valid.data(), args[2]->valid.data(), out->floats.data(),
          out->valid.data(), n);
  for (size_t i = 0; i < n; ++i) out->valid[i] &= low[i] <= high[i];
}

double NegativeOf(double x) { return -x; }
double AbsOf(double x) { return std::fabs(x); }
double Log1pOf(double x) { return std::log1p(x); }
double SqrtOf(double x) { return std::sqrt(x); }

template <double (*of)(double)>
void Map(const Instruction&, Args args, Vector* out, size_t n) {
  const Vector& in = *args[0];
  for (size_t i = 0; i < n; ++i) out->floats[i] = in.valid[i] ? of(in.floats[i]) : 0;
  for (size_t i = 0; i < n; ++i) {
    out->valid[i] = static_cast<uint8_t>(in.valid[i] & uint8_t{std::fabs(out->floats[i]) <= kMost});
  }
}

double FloorOf(double x) { return std::floor(x); }
double RoundOf(double x) { return std::nearbyint(x); }  // half to even

template <double (*of)(double)>
void ToWhole(const Instruction&, Args args, Vector* out, size_t n) {
  const Vector& in = *args[0];
  for (size_t i = 0; i < n; ++i) {
    const double value = of(in.floats[i]);
    const bool fits = in.valid[i] && value >= -kIntEnd && value < kIntEnd;
    out->valid[i] = fits;
    out->ints[i] = fits ? static_cast<int64_t>(value) : 0;
  }
}

// A false (or, for `or`, a true) operand decides, even if the other is null.
template <bool decisive>
void Logic(const Instruction&, Args args, Vector* out, size_t n) {
  const Vector &a = *args[0], &b = *args[1];
  for (size_t i = 0; i < n; ++i) {
    const bool a_decides = a.valid[i] && (a.bools[i] != 0) == decisive;
    const bool b_decides = b.valid[i] && (b.bools[i] != 0) == decisive;
    out->valid[i] = a_decides || b_decides || (a.valid[i] && b.valid[i]);
    out->bools[i] = (a_decides || b_decides) == decisive;
  }
}

void Not(const Instruction&, Args args, Vector* out, size_t n) {
  for (size_t i = 0; i < n; ++i) out->bools[i] = args[0]->bools[i] == 0;
  out->valid = args[0]->valid;
}

// The values of a vector, by their C++ type.
template <typename T>
auto& Values(Vector& v) {
  if constexpr (std::is_same_v<T, double>) return v.floats;
  if constexpr (std::is_same_v<T, int64_t>) return v.ints;
  if constexpr (std::is_same_v<T, uint8_t>) return v.bools;
  if constexpr (std::is_same_v<T, std::string_view>) return v.texts;
}
template <typename T>
const auto& Values(const Vector& v) {
  return Values<T>(const_cast<Vector&>(v));
}

template <typename T>
void CopyRow(const Vector& from, size_t row, Vector* out) {
  const auto& items = Values<T>(from);
  auto& to = Values<T>(*out);
  to.insert(to.end(), items.begin() + static_cast<std::ptrdiff_t>(from.begin(row)),
            items.begin() + static_cast<std::ptrdiff_t>(from.end(row)));
  out->EndRow(to.size());
}

template <typename T>
void If(const Instruction&, Args args, Vector* out, size_t n) {
  const Vector &condition = *args[0], &yes = *args[1], &no = *args[2];
  const auto &a = Values<T>(yes), &b = Values<T>(no);
  auto& to = Values<T>(*out);
  for (size_t i = 0; i < n; ++i) {
    to[i] = condition.bools[i] ? a[i] : b[i];
    out->valid[i] = condition.valid[i] & (condition.bools[i] ? yes.valid[i] : no.valid[i]);
  }
}

template <typename T>
void IfLists(const Instruction&, Args args, Vector* out, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    if (args[0]->valid[i]) {
      CopyRow<T>(args[0]->bools[i] ? *args[1] : *args[2], i, out);
    } else {
      out->EndRow(Values<T>(*out).size());
    }
  }
}

template <typename T>
void Coalesce(const Instruction& self, Args args, Vector* out, size_t n) {
  auto& to = Values<T>(*out);
  std::copy_n(args[0]->valid.begin(), n, out->valid.begin());
  std::copy_n(Values<T>(*args[0]).begin(), n, to.begin());
  for (size_t arg = 1; arg < self.args.size(); ++arg) {
    const auto& from = Values<T>(*args[arg]);
    for (size_t i = 0; i < n; ++i) {
      to[i] = out->valid[i] ? to[i] : from[i];
      out->valid[i] |= args[arg]->valid[i];
    }
  }
}

template <typename T>
void CoalesceLists(const Instruction& self, Args args, Vector* out, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    size_t arg = 0;
    while (arg + 1 < self.args.size() && args[arg]->begin(i) == args[arg]->end(i)) ++arg;
    CopyRow<T>(*args[arg], i, out);
  }
}

void Missing(const Instruction&, Args args, Vector* out, size_t n) {
  const Vector& in = *args[0];
  for (size_t i = 0; i < n; ++i) {
    out->bools[i] = in.ends.empty() ? in.valid[i] == 0 : in.begin(i) == in.end(i);
    out->valid[i] = 1;
  }
}

template <typename T, typename Is>
void Compare(const Instruction&, Args args, Vector* out, size_t n) {
  const auto &a = Values<T>(*args[0]), &b = Values<T>(*args[1]);
  const Is is{};
  for (size_t i = 0; i < n; ++i) out->bools[i] = is(a[i], b[i]);
  for (size_t i = 0; i < n; ++i) out->valid[i] = args[0]->valid[i] & args[1]->valid[i];
}

// Does not read the bytes of nulls.
template <typename Is>
void CompareTexts(const Instruction&, Args args, Vector* out, size_t n) {
  const Vector &a = *args[0], &b = *args[1];
  const Is is{};
  for (size_t i = 0; i < n; ++i) {
    out->valid[i] = a.valid[i] & b.valid[i];
    out->bools[i] = out->valid[i] && is(a.texts[i], b.texts[i]);
  }
}

template <template <typename> class Is>
Kernel CompareAs(Kind kind) {
  if (kind == Kind::kFloat) return Compare<double, Is<double>>;
  if (kind == Kind::kText) return CompareTexts<Is<std::string_view>>;
  return kind == Kind::kBool ? Compare<uint8_t, Is<uint8_t>> : Compare<int64_t, Is<int64_t>>;
}

template <typename From>
void ToFloat(const Instruction&, Args args, Vector* out, size_t n) {
  const auto& from = Values<From>(*args[0]);
  for (size_t i = 0; i < n; ++i) out->floats[i] = static_cast<double>(from[i]);
  out->valid = args[0]->valid;
}

// A text that is no number is null.
template <typename To>
void Scan(const Instruction&, Args args, Vector* out, size_t n) {
  const Vector& in = *args[0];
  for (size_t i = 0; i < n; ++i) {
    To value = 0;
    bool fits = in.valid[i] != 0;
    if (fits) {
      const std::string_view text = in.texts[i];
      const auto [last, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      fits = error == std::errc() && last == text.data() + text.size();
    }
    if constexpr (std::is_same_v<To, double>) fits = fits && std::fabs(value) <= kMost;
    out->valid[i] = fits;
    Values<To>(*out)[i] = fits ? value : 0;
  }
}

}  // namespace

const std::vector<Function> kNumberFunctions = {
    {"+", "nn", 'n', false, Fold<AddAll>, nullptr},
    {"-", "nn", 'n', false, Fold<SubtractAll>, nullptr},
    {"*", "nn", 'n', false, Fold<MultiplyAll>, nullptr},
    {"/", "nn", 'n', false, Fold<DivideAll>, nullptr},
    {"negative", "n", 'n', false, Map<NegativeOf>, nullptr},
    {"abs", "n", 'n', false, Map<AbsOf>, nullptr},
    {"log1p", "n", 'n', false, Map<Log1pOf>, nullptr},
    {"sqrt", "n", 'n', false, Map<SqrtOf>, nullptr},
    {"min", "nn", 'n', true, Fold<LeastOf>, nullptr},
    {"max", "nn", 'n', true, Fold<MostOf>, nullptr},
    {"clip", "nnn", 'n', false, Clip, nullptr},
    {"floor", "n", 'i', false, ToWhole<FloorOf>, nullptr},
    {"round", "n", 'i', false, ToWhole<RoundOf>, nullptr},
    {"and", "bb", 'b', false, Logic<false>, nullptr},
    {"or", "bb", 'b', false, Logic<true>, nullptr},
    {"not", "b", 'b', false, Not, nullptr},
};

Kernel IfKernel(Type type) {
  if (type.list) return type.kind == Kind::kText ? IfLists<std::string_view> : IfLists<int64_t>;
  if (type.kind == Kind::kFloat) return If<double>;
  if (type.kind == Kind::kBool) return If<uint8_t>;
  return type.kind == Kind::kText ? If<std::string_view> : If<int64_t>;
}

Kernel CoalesceKernel(Type type) {
  if (type.list) {
    return type.kind == Kind::kText ? CoalesceLists<std::string_view> : CoalesceLists<int64_t>;
  }
  if (type.kind == Kind::kFloat) return Coalesce<double>;
  if (type.kind == Kind::kBool) return Coalesce<uint8_t>;
  return type.kind == Kind::kText ? Coalesce<std::string_view> : Coalesce<int64_t>;
}

Kernel MissingKernel() { return Missing; }

Kernel CompareKernel(const std::string& mark, Kind kind) {
  if (mark == "==") return CompareAs<std::equal_to>(kind);
  if (mark == "!=") return CompareAs<std::not_equal_to>(kind);
  if (mark == "<") return CompareAs<std::less>(kind);
  if (mark == "<=") return CompareAs<std::less_equal>(kind);
  return mark == ">" ? CompareAs<std::greater>(kind) : CompareAs<std::greater_equal>(kind);
}

Kernel NumberKernel(Kind from, Kind to) {
  if (to == Kind::kFloat && from == Kind::kInt) return ToFloat<int64_t>;
  if (to == Kind::kFloat && from == Kind::kBool) return ToFloat<uint8_t>;
  if (to == Kind::kFloat && from == Kind::kText) return Scan<double>;
  return to == Kind::kInt && from == Kind::kText ? Scan<int64_t> : nullptr;
}

}  // namespace pbx::expr
