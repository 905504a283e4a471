// MultiSlot text: per slot, in the schema's order, "n v1 .. vn".
#include "feed/line_parser.h"
#include "feed/scan.h"
#include "row/feasign.h"

namespace pbx::feed {
namespace {

using ull = unsigned long long;

class MultiSlotParser : public LineParser {
 public:
  explicit MultiSlotParser(const FeedSchema& schema) : schema_(schema) {
    for (const SlotSpec& slot : schema.slots) {
      steps_.push_back(
          {slot.kind, slot.kind == SlotKind::kDense ? static_cast<size_t>(slot.dim) : 1});
    }
  }

  bool ParseFast(const char* p, const char* end, TokenScratch* scratch, LineValues* out) override {
    const size_t n = scratch->kernels().tokens(p, static_cast<size_t>(end - p), scratch->ends(),
                                               scratch->tokens());
    return schema_.per_slot_keys ? Walk<true>(p, scratch->tokens(), n, out)
                                 : Walk<false>(p, scratch->tokens(), n, out);
  }

  bool Parse(const char* p, const char* end, LineValues* out, LineError* error) override {
    uint32_t sparse = 0;
    size_t dense = 0;
    for (const SlotSpec& slot : schema_.slots) {
      uint64_t n = 0;
      p = ParseCount(slot, SkipBlanks(p, end), end, &n, error);
      if (p == nullptr) return false;
      switch (slot.kind) {
        case SlotKind::kLabel: {
          p = SkipBlanks(p, end);
          const char* const after = TokenEnd(p, end);
          if (!ParseLabel(slot.name, p, after, &out->label, error)) return false;
          p = after;
          break;
        }
        case SlotKind::kDense:
          p = ParseDense(slot, n, p, end, &out->dense[dense], error);
          dense += n;
          break;
        case SlotKind::kSparse:
          p = schema_.per_slot_keys ? ParseSparse<true>(slot, sparse, n, p, end, out, error)
                                    : ParseSparse<false>(slot, sparse, n, p, end, out, error);
          ++sparse;
          break;
      }
      if (p == nullptr) return false;
    }
    if (SkipBlanks(p, end) != end) {
      return error->Set("%zu bytes are left over after the last slot",
                        static_cast<size_t>(end - SkipBlanks(p, end)));
    }
    return true;
  }

 private:
  static const char* ParseCount(const SlotSpec& slot, const char* p, const char* end, uint64_t* n,
                                LineError* error) {
    if (p == end) {
      error->Set("slot '%.200s' is missing: the line ends before it", slot.name.c_str());
      return nullptr;
    }
    const char* const after = ScanUint64(p, end, n);
    if (after == nullptr || !AtTokenEnd(after, end)) {
      error->Token(slot.name, p, end, "a count of values");
      return nullptr;
    }
    const uint64_t expected = slot.kind == SlotKind::kLabel   ? 1
                              : slot.kind == SlotKind::kDense ? static_cast<uint64_t>(slot.dim)
                                                              : *n;
    if (*n != expected) {
      error->Set("slot '%.200s': %llu values, expected %llu", slot.name.c_str(),
                 static_cast<ull>(*n), static_cast<ull>(expected));
      return nullptr;
    }
    if (*n == 0) {
      error->Set("slot '%.200s': 0 values; an empty slot is written '1 0'", slot.name.c_str());
      return nullptr;
    }
    return after;
  }

  static const char* ParseDense(const SlotSpec& slot, uint64_t n, const char* p, const char* end,
                                float* dense, LineError* error) {
    for (uint64_t i = 0; i < n; ++i) {
      p = SkipBlanks(p, end);
      const char* const after = ScanFloat(p, end, &dense[i]);
      if (after == nullptr || !AtTokenEnd(after, end)) return Wrong(slot, n, i, p, end, error);
      p = after;
    }
    return p;
  }

  template <bool per_slot>
  static const char* ParseSparse(const SlotSpec& slot, uint32_t index, uint64_t n, const char* p,
                                 const char* end, LineValues* out, LineError* error) {
    uint64_t* const first = out->feasigns.data() + out->count;
    uint64_t* next = first;
    for (uint64_t i = 0; i < n; ++i) {
      p = SkipBlanks(p, end);
      uint64_t feasign = 0;
      const char* const after = ScanUint64(p, end, &feasign);
      if (after == nullptr || !AtTokenEnd(after, end)) return Wrong(slot, n, i, p, end, error);
      *next = per_slot ? FeasignInSlot(feasign, index) : feasign;
      next += feasign != 0;
      p = after;
    }
    const size_t kept = static_cast<size_t>(next - first);
    out->lengths[index] = static_cast<uint32_t>(kept);
    out->count += kept;
    return p;
  }

  // Value i of n is not what it should be, or not there.
  static const char* Wrong(const SlotSpec& slot, uint64_t n, uint64_t i, const char* p,
                           const char* end, LineError* error) {
    if (p == end) {
      error->Set("slot '%.200s': %llu values were announced, %llu are there", slot.name.c_str(),
                 static_cast<ull>(n), static_cast<ull>(i));
    } else {
      error->Token(slot.name, p, end,
                   slot.kind == SlotKind::kDense ? kFloatExpected : kFeasignExpected);
    }
    return nullptr;
  }

  template <bool per_slot>
  bool Walk(const char* line, const Token* token, size_t tokens, LineValues* out) const {
    const Token* const end = token + tokens;
    uint32_t sparse = 0;
    float* dense = out->dense.data();
    uint64_t* next = out->feasigns.data();
    for (const Step& step : steps_) {
      if (token == end || token->flags != 0) return false;
      const size_t n = token->value;
      if (n == 0 || n > static_cast<size_t>(end - token) - 1) return false;
      if (step.kind != SlotKind::kSparse && n != step.values) return false;
      const Token* const first = token + 1;
      token = first + n;
      switch (step.kind) {
        case SlotKind::kLabel:
          if (!LabelOf(*first, &out->label)) return false;
          break;
        case SlotKind::kDense:
          for (size_t i = 0; i < n; ++i) {
            if (!FloatOf(first[i], dense) && !Rescan(line, first + i, dense)) return false;
            ++dense;
          }
          break;
        case SlotKind::kSparse: {
          uint64_t* const kept = TakeFeasigns<per_slot>(first, n, sparse, next);
          if (kept == nullptr) return false;
          out->lengths[sparse++] = static_cast<uint32_t>(kept - next);
          next = kept;
          break;
        }
      }
    }
    out->count = static_cast<size_t>(next - out->feasigns.data());
    return token == end;
  }

  // A number that takes more than its digits: an exponent, many of them.
  static bool Rescan(const char* line, const Token* token, float* value) {
    const char* const end = line + token->end;
    return ScanFloat(SkipBlanks(line + token[-1].end, end), end, value) == end;
  }

  // Writes n feasigns but for zeros; returns the end, or nullptr where a token is none. Most slots
  // have few: four are looked at whether or not they are there, so that no branch depends on n.
  template <bool per_slot>
  static uint64_t* TakeFeasigns(const Token* token, size_t n, uint32_t slot, uint64_t* next) {
    static_assert(TokenKernels::kSlack >= 4, "tokens beyond the last are read");
    unsigned flags = 0;
    for (size_t at = 0; at < n; at += 4) {
      for (size_t i = at; i < at + 4; ++i) {
        const bool there = i < n;
        flags |= there ? token[i].flags : 0u;
        *next = per_slot ? FeasignInSlot(token[i].value, slot) : token[i].value;
        next += there & (token[i].value != 0);
      }
    }
    return flags == 0 ? next : nullptr;
  }

  struct Step {
    SlotKind kind;
    size_t values;
  };

  const FeedSchema& schema_;
  std::vector<Step> steps_;  // of each slot
};

}  // namespace

std::unique_ptr<LineParser> NewMultiSlotParser(const FeedSchema& schema) {
  return std::make_unique<MultiSlotParser>(schema);
}

}  // namespace pbx::feed
