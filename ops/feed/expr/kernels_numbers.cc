// Instructions on numbers and truths.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <type_traits>

#include "base/log1p.h"
#include "base/vector_clones.h"
#include "feed/expr/kernels.h"

namespace pbx::expr {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kIntEnd = 9223372036854775808.0;  // 2^63

using Args = const Vector* const*;

// A result that is not finite is null.
#define PBX_ARITHMETIC(name, expression)                                                          \
  PBX_VECTOR_CLONES void name(const double* a, const double* b, const uint8_t* va,                \
                              const uint8_t* vb, double* out, uint8_t* valid, size_t n) {         \
    for (size_t i = 0; i < n; ++i) out[i] = expression;                                           \
    for (size_t i = 0; i < n; ++i) {                                                              \
      valid[i] = static_cast<uint8_t>(va[i] & vb[i] & uint8_t{std::fabs(out[i]) <= kMostNumber}); \
    }                                                                                             \
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
  const double *const low = args[1]->floats.data(), *const high = args[2]->floats.data();
  uint8_t* const valid = out->valid.data();
  MostOf(args[0]->floats.data(), low, args[0]->valid.data(), args[1]->valid.data(),
         out->floats.data(), out->valid.data(), n);
  LeastOf(out->floats.data(), high, out->valid.data(), args[2]->valid.data(), out->floats.data(),
          out->valid.data(), n);
  for (size_t i = 0; i < n; ++i) valid[i] &= uint8_t{low[i] <= high[i]};
}

#define PBX_EACH(name, expression)                                                             \
  PBX_VECTOR_CLONES void name(const double* a, const uint8_t* va, double* out, uint8_t* valid, \
                              size_t n) {                                                      \
    for (size_t i = 0; i < n; ++i) out[i] = expression;                                        \
    for (size_t i = 0; i < n; ++i) {                                                           \
      valid[i] = static_cast<uint8_t>(va[i] & uint8_t{std::fabs(out[i]) <= kMostNumber});      \
    }                                                                                          \
  }
PBX_EACH(NegativeAll, -a[i])
PBX_EACH(AbsAll, std::fabs(a[i]))
PBX_EACH(SqrtAll, std::sqrt(a[i]))
PBX_EACH(Log1pAll, a[i] > -1 ? Log1p(a[i]) : kInfinity)
PBX_EACH(FloorAll, std::floor(a[i]))
PBX_EACH(RoundAll, std::nearbyint(a[i]))  // half to even
#undef PBX_EACH

using Each = void (*)(const double*, const uint8_t*, double*, uint8_t*, size_t);

template <Each all>
void Map(const Instruction&, Args args, Vector* out, size_t n) {
  all(args[0]->floats.data(), args[0]->valid.data(), out->floats.data(), out->valid.data(), n);
}

template <Each all>
void ToWhole(const Instruction&, Args args, Vector* out, size_t n) {
  out->floats.resize(n);
  all(args[0]->floats.data(), args[0]->valid.data(), out->floats.data(), out->valid.data(), n);
  for (size_t i = 0; i < n; ++i) {
    const double value = out->floats[i];
    const bool fits = out->valid[i] && value >= -kIntEnd && value < kIntEnd;
    out->valid[i] = fits;
    out->ints[i] = fits ? static_cast<int64_t>(value) : 0;
  }
}

// The share of values below x, between those of two neighbours.
void Quantile(const Instruction& self, Args args, Vector* out, size_t n) {
  const std::vector<double>& pairs = self.numbers;  // x, share, x, share, …; both ascending
  const size_t last = pairs.size() - 2;
  for (size_t i = 0; i < n; ++i) {
    const double x = args[0]->floats[i];
    size_t at = 0, end = last / 2;  // the neighbours are pair `at` and the next one
    while (end - at > 1) {
      const size_t middle = (at + end) / 2;
      (x >= pairs[2 * middle] ? at : end) = middle;
    }
    const double* const one = pairs.data() + 2 * at;
    out->valid[i] = args[0]->valid[i];
    out->floats[i] = x <= pairs[0] ? pairs[1]
                     : x >= pairs[last]
                         ? pairs[last + 1]
                         : one[1] + (x - one[0]) / (one[2] - one[0]) * (one[3] - one[1]);
  }
}

// A false (or, for `or`, a true) operand decides, even if the other is null.
template <bool decisive>
void Logic(const Instruction&, Args args, Vector* out, size_t n) {
  const uint8_t *const a = args[0]->bools.data(), *const b = args[1]->bools.data();
  const uint8_t *const va = args[0]->valid.data(), *const vb = args[1]->valid.data();
  uint8_t *const to = out->bools.data(), *const valid = out->valid.data();
  for (size_t i = 0; i < n; ++i) {
    const int decides = (va[i] & int{a[i] == decisive}) | (vb[i] & int{b[i] == decisive});
    valid[i] = static_cast<uint8_t>(decides | (va[i] & vb[i]));
    to[i] = static_cast<uint8_t>(decides == int{decisive});
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
  const T *const a = Values<T>(*args[1]).data(), *const b = Values<T>(*args[2]).data();
  const uint8_t *const va = args[1]->valid.data(), *const vb = args[2]->valid.data();
  const uint8_t *const holds = args[0]->bools.data(), *const known = args[0]->valid.data();
  T* const to = Values<T>(*out).data();
  uint8_t* const valid = out->valid.data();
  for (size_t i = 0; i < n; ++i) to[i] = holds[i] ? a[i] : b[i];
  for (size_t i = 0; i < n; ++i) valid[i] = known[i] & (holds[i] ? va[i] : vb[i]);
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
  T* const to = Values<T>(*out).data();
  uint8_t* const valid = out->valid.data();
  std::copy_n(args[0]->valid.begin(), n, valid);
  std::copy_n(Values<T>(*args[0]).begin(), n, to);
  for (size_t arg = 1; arg < self.args.size(); ++arg) {
    const T* const from = Values<T>(*args[arg]).data();
    const uint8_t* const known = args[arg]->valid.data();
    for (size_t i = 0; i < n; ++i) to[i] = valid[i] ? to[i] : from[i];
    for (size_t i = 0; i < n; ++i) valid[i] |= known[i];
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
  const T *const a = Values<T>(*args[0]).data(), *const b = Values<T>(*args[1]).data();
  const uint8_t *const va = args[0]->valid.data(), *const vb = args[1]->valid.data();
  uint8_t *const to = out->bools.data(), *const valid = out->valid.data();
  const Is is{};
  for (size_t i = 0; i < n; ++i) to[i] = is(a[i], b[i]);
  for (size_t i = 0; i < n; ++i) valid[i] = va[i] & vb[i];
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
    if constexpr (std::is_same_v<To, double>) fits = fits && std::fabs(value) <= kMostNumber;
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
    {"negative", "n", 'n', false, Map<NegativeAll>, nullptr},
    {"abs", "n", 'n', false, Map<AbsAll>, nullptr},
    {"log1p", "n", 'n', false, Map<Log1pAll>, nullptr},
    {"sqrt", "n", 'n', false, Map<SqrtAll>, nullptr},
    {"min", "nn", 'n', true, Fold<LeastOf>, nullptr},
    {"max", "nn", 'n', true, Fold<MostOf>, nullptr},
    {"clip", "nnn", 'n', false, Clip, nullptr},
    {"floor", "n", 'i', false, ToWhole<FloorAll>, nullptr},
    {"round", "n", 'i', false, ToWhole<RoundAll>, nullptr},
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

Kernel QuantileKernel() { return Quantile; }

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
