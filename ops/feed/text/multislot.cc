// MultiSlot text: "n v1 .. vn" for each slot, in the order of the schema.
#include <algorithm>
#include <cstring>

#include "feed/text/line_parser.h"
#include "feed/text/scan.h"
#include "feed/text/transform.h"
#include "row/feasign.h"

namespace pbx::feed {
namespace {

using ull = unsigned long long;

class MultiSlotParser : public LineParser {
 public:
  explicit MultiSlotParser(const FeedSchema& schema) : schema_(schema) {
    for (const SlotSpec& slot : schema.slots) {
      const bool sparse = slot.kind == SlotKind::kSparse;
      if (sparse && !steps_.empty() && steps_.back().kind == SlotKind::kSparse) {
        ++steps_.back().values;
      } else {
        steps_.push_back({slot.kind,
                          slot.kind == SlotKind::kDense ? static_cast<size_t>(slot.dim) : 1,
                          slot.exact});
      }
    }
  }

  bool ParseFast(const TokenKernels& kernels, const char* line, size_t size,
                 const TokenColumns& tokens, LineValues* out) override {
    const size_t n = kernels.tokens(line, size, tokens);
    if (!Walk(line, tokens, n, out)) return false;
    if (schema_.per_slot_keys) KeyPerSlot(out);
    return true;
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
          p = ParseDense(slot, n, p, end, dense, out, error);
          dense += n;
          break;
        case SlotKind::kSparse: {
          const size_t first = out->count;
          p = slot.weighted           ? ParseWeighted(slot, sparse, n, p, end, out, error)
              : slot.transform.hash   ? ParseStrings(slot, sparse, n, p, end, out, error)
              : schema_.per_slot_keys ? ParseSparse<true>(slot, sparse, n, p, end, out, error)
                                      : ParseSparse<false>(slot, sparse, n, p, end, out, error);
          ++sparse;
          if (weighted_ && !slot.weighted) {
            std::fill(out->weights.data() + first, out->weights.data() + out->count, 1.0f);
          }
          break;
        }
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
                                size_t column, LineValues* out, LineError* error) {
    for (uint64_t i = 0; i < n; ++i) {
      p = SkipBlanks(p, end);
      const char* const after = ScanFloat(p, end, &out->dense[column + i]);
      if (after == nullptr || !AtTokenEnd(after, end)) return Wrong(slot, n, i, p, end, error);
      if (slot.exact && i == 0) out->exact[column] = ExactOf(p, after);
      p = after;
    }
    return p;
  }

  const char* ParseStrings(const SlotSpec& slot, uint32_t index, uint64_t n, const char* p,
                           const char* end, LineValues* out, LineError* error) const {
    if (n > static_cast<uint64_t>(end - p)) return Wrong(slot, n, 0, end, end, error);
    for (uint64_t i = 0; i < n; ++i) {
      p = SkipBlanks(p, end);
      const char* const after = TokenEnd(p, end);
      if (after == p) return Wrong(slot, n, i, p, end, error);
      const uint64_t feasign = FeasignOfString(p, static_cast<size_t>(after - p));
      out->feasigns[out->count++] = schema_.Keyed(feasign, index);
      p = after;
    }
    out->lengths[index] = static_cast<uint32_t>(n);
    return p;
  }

  const char* ParseWeighted(const SlotSpec& slot, uint32_t index, uint64_t n, const char* p,
                            const char* end, LineValues* out, LineError* error) const {
    const size_t first = out->count;
    for (uint64_t i = 0; i < n; ++i) {
      p = SkipBlanks(p, end);
      const char* const after = TokenEnd(p, end);
      if (after == p) return Wrong(slot, n, i, p, end, error);
      const char* const id_end = CutWeight(slot, p, after, &out->weights[out->count], error);
      if (id_end == nullptr) return nullptr;
      uint64_t feasign = 0;
      if (slot.transform.hash) {
        feasign = FeasignOfString(p, static_cast<size_t>(id_end - p));
      } else if (ScanUint64(p, id_end, &feasign) != id_end) {
        return Wrong(slot, n, i, p, end, error);
      }
      out->feasigns[out->count] = schema_.Keyed(feasign, index);
      out->count += feasign != 0;
      p = after;
    }
    out->lengths[index] = static_cast<uint32_t>(out->count - first);
    return p;
  }

  template <bool per_slot>
  const char* ParseSparse(const SlotSpec& slot, uint32_t index, uint64_t n, const char* p,
                          const char* end, LineValues* out, LineError* error) const {
    const uint32_t key_slot = schema_.KeySlot(index);
    uint64_t* const first = out->feasigns.data() + out->count;
    uint64_t* next = first;
    for (uint64_t i = 0; i < n; ++i) {
      p = SkipBlanks(p, end);
      uint64_t feasign = 0;
      const char* const after = ScanUint64(p, end, &feasign);
      if (after == nullptr || !AtTokenEnd(after, end)) return Wrong(slot, n, i, p, end, error);
      *next = per_slot ? FeasignInSlot(feasign, key_slot) : feasign;
      next += feasign != 0;
      p = after;
    }
    const size_t kept = static_cast<size_t>(next - first);
    out->lengths[index] = static_cast<uint32_t>(kept);
    out->count += kept;
    return p;
  }

  // Reports that value i of n is malformed or missing.
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

  // Does not apply per-slot keys, which take a separate pass over the feasigns.
  bool Walk(const char* line, const TokenColumns tokens, size_t end, LineValues* out) const {
    size_t at = 0;
    float* dense = out->dense.data();
    uint32_t* lengths = out->lengths.data();
    uint64_t* next = out->feasigns.data();
    for (const Step& step : steps_) {
      if (step.kind == SlotKind::kSparse) {
        next = TakeSlots(tokens, &at, end, step.values, lengths, next);
        if (next == nullptr) return false;
        lengths += step.values;
        continue;
      }
      if (at >= end || tokens.values[at] != step.values || tokens.bytes_odd(at) != 0) return false;
      const size_t first = at + 1;
      at = first + step.values;
      if (at > end) return false;
      if (step.kind == SlotKind::kLabel) {
        if (!ParseLabel(line, tokens, first, &out->label)) return false;
        continue;
      }
      if (step.exact) {
        const char* const value_end = line + tokens.ends[first];
        const char* const value = SkipBlanks(line + tokens.ends[first - 1], value_end);
        out->exact[static_cast<size_t>(dense - out->dense.data())] = ExactOf(value, value_end);
      }
      for (size_t i = first; i < at; ++i, ++dense) {
        if (!FloatOf(line, tokens, i, dense) && !Rescan(line, tokens, i, dense)) return false;
      }
    }
    out->count = static_cast<size_t>(next - out->feasigns.data());
    return at == end;
  }

  void KeyPerSlot(LineValues* out) const {
    uint64_t* feasign = out->feasigns.data();
    for (uint32_t slot = 0; slot < out->lengths.size(); ++slot) {
      const uint32_t key_slot = schema_.KeySlot(slot);
      for (const uint64_t* const end = feasign + out->lengths[slot]; feasign < end; ++feasign) {
        *feasign = FeasignInSlot(*feasign, key_slot);
      }
    }
  }

  // A number with an exponent or many digits.
  static bool Rescan(const char* line, const TokenColumns& tokens, size_t i, float* value) {
    const char* const end = line + tokens.ends[i];
    const char* const begin = SkipBlanks(line + tokens.ends[i - 1], end);
    return ScanFloat(begin, end, value) == end;
  }

  // Reads slots of feasigns from token *from on. May write up to four words beyond the end of the
  // feasigns. Returns this end, or nullptr if a token is malformed.
  static uint64_t* TakeSlots(const TokenColumns tokens, size_t* const from, size_t end,
                             size_t slots, uint32_t* lengths, uint64_t* next) {
    static_assert(TokenKernels::kSlack > 4, "tokens beyond the last are read");
    size_t at = *from;
    for (size_t slot = 0; slot < slots; ++slot) {
      if (at >= end || tokens.marks[at] != 0) return nullptr;  // a count must not be zero either
      const size_t n = tokens.values[at++];
      if (n > end - at) return nullptr;
      const uint64_t* const values = tokens.values + at;
      uint64_t* kept = next + n;
      // Most slots have few feasigns: up to four of them are copied without a branch that depends
      // on n.
      if (n <= 4) {
        uint64_t marks;
        std::memcpy(&marks, tokens.marks + at, sizeof(marks));
        std::memcpy(next, values, 4 * sizeof(*next));
        const size_t alone = n == 1;  // an empty slot is written as one zero
        kept -= alone & (values[0] == 0);
        marks &= ~(alone * TokenColumns::kZero);
        if (marks << (64 - 16 * n) != 0) kept = TakeSlowly(tokens, at, n, next);
      } else {
        kept = TakeSlowly(tokens, at, n, next);
      }
      if (kept == nullptr) return nullptr;
      *lengths++ = static_cast<uint32_t>(kept - next);
      next = kept;
      at += n;
    }
    *from = at;
    return next;
  }

  static uint64_t* TakeSlowly(const TokenColumns& tokens, size_t at, size_t n, uint64_t* next) {
    for (size_t i = at; i < at + n; ++i) {
      if (tokens.bytes_odd(i) != 0) return nullptr;
      *next = tokens.values[i];
      next += *next != 0;
    }
    return next;
  }

  struct Step {
    SlotKind kind;
    size_t values;  // of kSparse: the number of consecutive sparse slots
    bool exact;     // of kDense
  };

  const FeedSchema& schema_;
  const bool weighted_ = schema_.weighted();
  std::vector<Step> steps_;
};

}  // namespace

std::unique_ptr<LineParser> NewMultiSlotParser(const FeedSchema& schema) {
  return std::make_unique<MultiSlotParser>(schema);
}

}  // namespace pbx::feed
