// MultiSlot text: per slot, in the schema's order, "n v1 .. vn".
#include <algorithm>
#include <cstring>

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

  bool ParseFast(const TokenKernels& kernels, const char* line, size_t size,
                 const TokenColumns& tokens, LineValues* out) override {
    const size_t n = kernels.tokens(line, size, tokens);
    return schema_.per_slot_keys ? Walk<true>(line, tokens, n, out)
                                 : Walk<false>(line, tokens, n, out);
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
  bool Walk(const char* line, const TokenColumns tokens, size_t end, LineValues* out) const {
    size_t at = 0;
    uint32_t sparse = 0;
    float* dense = out->dense.data();
    uint64_t* next = out->feasigns.data();
    for (const Step& step : steps_) {
      if (at >= end || tokens.odd[at] != 0) return false;
      const uint64_t n = tokens.values[at];
      if (n == 0 || n >= end - at) return false;
      ++at;
      if (step.kind == SlotKind::kSparse) {
        uint64_t* const kept = TakeFeasigns<per_slot>(tokens, at, n, sparse, next);
        if (kept == nullptr) return false;
        out->lengths[sparse++] = static_cast<uint32_t>(kept - next);
        next = kept;
      } else if (n != step.values) {
        return false;
      } else if (step.kind == SlotKind::kLabel) {
        if (!ParseLabel(line, tokens, at, &out->label)) return false;
      } else {
        for (size_t i = at; i < at + n; ++i, ++dense) {
          if (!FloatOf(line, tokens, i, dense) && !Rescan(line, tokens, i, dense)) return false;
        }
      }
      at += n;
    }
    out->count = static_cast<size_t>(next - out->feasigns.data());
    return at == end;
  }

  // A number that takes more than its digits: an exponent, many of them.
  static bool Rescan(const char* line, const TokenColumns& tokens, size_t i, float* value) {
    const char* const end = line + tokens.ends[i];
    const char* const begin = SkipBlanks(line + tokens.ends[i - 1], end);
    return ScanFloat(begin, end, value) == end;
  }

  // Writes n feasigns but for zeros, and up to four words more; returns the end, or nullptr where a
  // token is none. Most slots have few: no branch depends on n while it is at most four.
  template <bool per_slot>
  static uint64_t* TakeFeasigns(const TokenColumns& tokens, size_t at, size_t n, uint32_t slot,
                                uint64_t* next) {
    static_assert(TokenKernels::kSlack >= 4, "tokens beyond the last are read");
    const uint64_t* const values = tokens.values + at;
    if (n > 4 || per_slot) {
      for (size_t i = 0; i < n; ++i) {
        if (tokens.odd[at + i] != 0) return nullptr;
        *next = per_slot ? FeasignInSlot(values[i], slot) : values[i];
        next += values[i] != 0;
      }
      return next;
    }
    uint64_t odd;
    std::memcpy(&odd, tokens.odd + at, sizeof(odd));
    if (odd << (64 - 16 * n) != 0) return nullptr;
    std::memcpy(next, values, 4 * sizeof(*next));
    // An empty slot is one zero. Others are rare.
    if (((values[1] == 0) & (n > 1)) | ((values[2] == 0) & (n > 2)) | ((values[3] == 0) & (n > 3)) |
        ((values[0] == 0) & (n > 1))) {
      return std::remove(next, next + n, uint64_t{0});
    }
    return next + (values[0] == 0 ? 0 : n);
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
