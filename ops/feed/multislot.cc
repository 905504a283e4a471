// MultiSlot text: per slot, in the schema's order, "n v1 .. vn".
#include "feed/line_parser.h"
#include "feed/scan.h"
#include "feed/transform.h"
#include "row/feasign.h"

namespace pbx::feed {
namespace {

using ull = unsigned long long;

class MultiSlotParser : public LineParser {
 public:
  explicit MultiSlotParser(const FeedSchema& schema) : schema_(schema) {}

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
          p = slot.transform.hash     ? ParseStrings(slot, sparse, n, p, end, out, error)
              : schema_.per_slot_keys ? ParseSparse<true>(slot, sparse, n, p, end, out, error)
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

  const char* ParseStrings(const SlotSpec& slot, uint32_t index, uint64_t n, const char* p,
                           const char* end, LineValues* out, LineError* error) const {
    if (n > static_cast<uint64_t>(end - p)) return Wrong(slot, n, 0, end, end, error);
    for (uint64_t i = 0; i < n; ++i) {
      p = SkipBlanks(p, end);
      const char* const after = TokenEnd(p, end);
      if (after == p) return Wrong(slot, n, i, p, end, error);
      const uint64_t feasign = FeasignOfString(p, static_cast<size_t>(after - p));
      out->feasigns[out->count++] = schema_.per_slot_keys ? FeasignInSlot(feasign, index) : feasign;
      p = after;
    }
    out->lengths[index] = static_cast<uint32_t>(n);
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

  const FeedSchema& schema_;
};

}  // namespace

std::unique_ptr<LineParser> NewMultiSlotParser(const FeedSchema& schema) {
  return std::make_unique<MultiSlotParser>(schema);
}

}  // namespace pbx::feed
