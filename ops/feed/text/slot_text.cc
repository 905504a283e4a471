// Tokens "value:slot" (feasign_slot) or "slot:value" (slot_value), in any order on the line.
#include <algorithm>
#include <cstring>

#include "feed/text/line_parser.h"
#include "feed/text/scan.h"
#include "feed/text/transform.h"
#include "row/feasign.h"

namespace pbx::feed {
namespace {

// Finds a slot by its name on the line, without making a std::string.
class NameTable {
 public:
  explicit NameTable(const std::vector<SlotSpec>& slots) : slots_(slots) {
    size_t size = 16;
    while (size < slots.size() * 2) size *= 2;
    places_.assign(size, kNone);
    for (size_t i = 0; i < slots.size(); ++i) {
      size_t at = Place(slots[i].name.data(), slots[i].name.size());
      while (places_[at] != kNone) at = (at + 1) & (size - 1);
      places_[at] = static_cast<uint32_t>(i);
    }
  }

  static constexpr uint32_t kNone = UINT32_MAX;

  bool Is(uint32_t slot, const char* name, size_t size) const {
    const std::string& here = slots_[slot].name;
    return here.size() == size && std::memcmp(here.data(), name, size) == 0;
  }

  // Index of the slot in the schema, or kNone.
  uint32_t Find(const char* name, size_t size) const {
    for (size_t at = Place(name, size); places_[at] != kNone;
         at = (at + 1) & (places_.size() - 1)) {
      if (Is(places_[at], name, size)) return places_[at];
    }
    return kNone;
  }

 private:
  size_t Place(const char* name, size_t size) const {
    return HashBytes(name, size, 0) & (places_.size() - 1);
  }

  const std::vector<SlotSpec>& slots_;
  std::vector<uint32_t> places_;
};

// One token, cut at its colon.
struct Token {
  const char* name;
  const char* name_end;
  const char* value;
  const char* value_end;
};

class SlotTextParser : public LineParser {
 public:
  explicit SlotTextParser(const FeedSchema& schema)
      : schema_(schema),
        names_(schema.slots),
        column_(schema.slots.size()),
        filled_(schema.slots.size()),
        ends_(schema.sparse_slots()),
        follower_(schema.slots.size()) {
    size_t sparse = 0, dense = 0;
    for (size_t i = 0; i < schema.slots.size(); ++i) {
      const SlotSpec& slot = schema.slots[i];
      if (slot.kind == SlotKind::kSparse) column_[i] = sparse++;
      if (slot.kind == SlotKind::kDense) {
        column_[i] = dense;
        dense += static_cast<size_t>(slot.dim);
      }
    }
  }

  // For lines in which each token has exactly one ':'. If each ':' is replaced by a blank, names
  // and values alternate. The names are converted to numbers too, which is useless, but this is
  // still twice as fast.
  bool ParseFast(const TokenKernels& kernels, const char* line, size_t size,
                 const TokenColumns& tokens, LineValues* out) override {
    char* const blank = blanked_.data() + TokenKernels::kReach;
    size_t colons = 0;
    for (size_t i = 0; i < size; ++i) {
      const bool colon = line[i] == ':';
      blank[i] = colon ? ' ' : line[i];
      colons += colon;
    }
    const size_t n = kernels.tokens(blank, size, tokens);
    if (n != 2 * colons) return false;
    Begin(out);
    LineError unsaid(false);
    const bool value_first = schema_.format == Format::kFeasignSlot;
    for (size_t i = 0; i < n; i += 2) {
      const size_t after = tokens.size(i + 1);
      // A size of 127 may stand for a longer token. Exactly one byte, the ':', is between name and
      // value.
      if (tokens.size(i) >= 127 || after >= 127 ||
          tokens.ends[i + 1] - after != tokens.ends[i] + 1 || line[tokens.ends[i]] != ':') {
        return false;
      }
      const size_t name = value_first ? i + 1 : i;
      const char* const name_end = blank + tokens.ends[name];
      const size_t name_size = tokens.size(name);
      const uint32_t slot = Find(name_end - name_size, name_size);
      if (slot == NameTable::kNone) {
        const char* const begin = line + tokens.ends[i] - tokens.size(i);
        if (!CheckUnknown(begin, line + tokens.ends[i + 1], &unsaid)) return false;
      } else if (!AddFast(slot, blank, tokens, value_first ? i : i + 1, out)) {
        return false;
      }
    }
    return Finish(out, &unsaid);
  }

  bool Parse(const char* p, const char* end, LineValues* out, LineError* error) override {
    Begin(out);
    for (p = SkipBlanks(p, end); p < end; p = SkipBlanks(p, end)) {
      const char* const after = TokenEnd(p, end);
      Token token;
      if (!Cut(p, after, &token)) {
        return error->wanted() && error->Set("'%s' has no ':'", Printable(p, after, 40).c_str());
      }
      const size_t name_size = static_cast<size_t>(token.name_end - token.name);
      const uint32_t slot = Find(token.name, name_size);
      if (slot == NameTable::kNone ? !CheckUnknown(p, after, error)
                                   : !Add(slot, token, out, error)) {
        return false;
      }
      p = after;
    }
    return Finish(out, error);
  }

 private:
  void Begin(LineValues* out) {
    std::fill(out->lengths.begin(), out->lengths.end(), 0u);
    std::fill(filled_.begin(), filled_.end(), 0u);
    found_.clear();
  }

  bool Finish(LineValues* out, LineError* error) {
    for (size_t i = 0; i < filled_.size(); ++i) {
      if (filled_[i] == 0 && schema_.slots[i].kind == SlotKind::kDense &&
          schema_.slots[i].transform.has_default) {
        SetDefault(schema_.slots[i], column_[i], out);
      } else if (!CheckFilled(i, error)) {
        return false;
      }
    }
    SortBySlot(out);
    return true;
  }

  // Most lines name slots in the same order. So two slots are compared first: the one that followed
  // the last slot in an earlier line, and the last slot itself.
  uint32_t Find(const char* name, size_t size) {
    if (last_ != NameTable::kNone) {
      if (names_.Is(last_, name, size)) return last_;
      const uint32_t next = follower_[last_];
      if (names_.Is(next, name, size)) return last_ = next;
    }
    const uint32_t found = names_.Find(name, size);
    if (found == NameTable::kNone) return found;
    if (last_ != NameTable::kNone) follower_[last_] = found;
    return last_ = found;
  }

  // A name may contain a ':', a value cannot, unless a slot is weighted: then it is the other way
  // around.
  bool Cut(const char* p, const char* end, Token* token) const {
    const size_t size = static_cast<size_t>(end - p);
    const bool value_first = schema_.format == Format::kFeasignSlot;
    const bool at_first = value_first != weighted_;
    const void* found = at_first ? std::memchr(p, ':', size) : memrchr(p, ':', size);
    if (found == nullptr) return false;
    const char* const colon = static_cast<const char*>(found);
    *token = value_first ? Token{colon + 1, end, p, colon} : Token{p, colon, colon + 1, end};
    return true;
  }

  // An unknown slot is ignored, except a name with a control byte: it may be a known name with a
  // stray byte, whose value would be lost silently.
  static bool CheckUnknown(const char* p, const char* end, LineError* error) {
    for (const char* at = p; at < end; ++at) {
      if (static_cast<unsigned char>(*at) >= 0x20) continue;
      return error->wanted() &&
             error->Set("'%s' holds a control byte", Printable(p, end, 40).c_str());
    }
    return true;
  }

  bool Add(uint32_t index, const Token& token, LineValues* out, LineError* error) {
    const SlotSpec& slot = schema_.slots[index];
    const char* const end = token.value_end;
    ++filled_[index];
    switch (slot.kind) {
      case SlotKind::kLabel: return ParseLabel(slot.name, token.value, end, &out->label, error);
      case SlotKind::kDense: {
        float value = 0;
        if (ScanFloat(token.value, end, &value) != end) {
          return error->Token(slot.name, token.value, end, kFloatExpected);
        }
        if (slot.exact && filled_[index] == 1) {
          out->exact[column_[index]] = ExactOf(token.value, end);
        }
        // Surplus values are only counted; CheckFilled reports them.
        if (filled_[index] <= static_cast<uint32_t>(slot.dim)) {
          out->dense[column_[index] + filled_[index] - 1] = value;
        }
        return true;
      }
      case SlotKind::kSparse: {
        uint64_t feasign = 0;
        float weight = 1;
        const char* const id_end =
            slot.weighted ? CutWeight(slot, token.value, end, &weight, error) : end;
        if (id_end == nullptr) return false;
        if (slot.transform.hash) {
          feasign = FeasignOfString(token.value, static_cast<size_t>(id_end - token.value));
        } else if (ScanUint64(token.value, id_end, &feasign) != id_end) {
          return error->Token(slot.name, token.value, end, kFeasignExpected);
        }
        AddFeasign(index, feasign, weight, out);
        return true;
      }
    }
    return false;
  }

  void AddFeasign(uint32_t index, uint64_t feasign, float weight, LineValues* out) {
    if (feasign == 0) return;
    const uint32_t column = static_cast<uint32_t>(column_[index]);
    found_.push_back({schema_.Keyed(feasign, column), column, weight});
    ++out->lengths[column];
  }

  // Like Add, for token i. False: not decided; call Add.
  bool AddFast(uint32_t index, const char* line, const TokenColumns& tokens, size_t i,
               LineValues* out) {
    const SlotSpec& slot = schema_.slots[index];
    ++filled_[index];
    switch (slot.kind) {
      case SlotKind::kLabel: return ParseLabel(line, tokens, i, &out->label);
      case SlotKind::kDense: {
        if (filled_[index] > static_cast<uint32_t>(slot.dim)) return false;
        if (slot.exact && filled_[index] == 1) {
          const char* const value_end = line + tokens.ends[i];
          out->exact[column_[index]] = ExactOf(value_end - tokens.size(i), value_end);
        }
        return FloatOf(line, tokens, i, &out->dense[column_[index] + filled_[index] - 1]);
      }
      case SlotKind::kSparse:
        if (tokens.bytes_odd(i) != 0) return false;  // kernels do not read strings
        AddFeasign(index, tokens.values[i], 1, out);
        return true;
    }
    return false;
  }

  bool CheckFilled(size_t index, LineError* error) const {
    const SlotSpec& slot = schema_.slots[index];
    if (slot.kind == SlotKind::kSparse) return true;
    const uint32_t expected = slot.kind == SlotKind::kLabel ? 1 : static_cast<uint32_t>(slot.dim);
    if (filled_[index] == expected) return true;
    return error->Set("%s slot '%.200s': %u values, expected %u",
                      slot.kind == SlotKind::kLabel ? "label" : "dense", slot.name.c_str(),
                      filled_[index], expected);
  }

  // The sort is stable: within a slot feasigns keep the order of the line.
  void SortBySlot(LineValues* out) {
    size_t next = 0;
    for (size_t s = 0; s < ends_.size(); ++s) {
      ends_[s] = next;
      next += out->lengths[s];
    }
    for (const Found& found : found_) {
      const size_t at = ends_[found.slot]++;
      out->feasigns[at] = found.feasign;
      if (weighted_) out->weights[at] = found.weight;
    }
    out->count = next;
  }

  struct Found {
    uint64_t feasign;
    uint32_t slot;  // number among the sparse slots
    float weight;
  };

  const FeedSchema& schema_;
  const bool weighted_ = schema_.weighted();
  const NameTable names_;
  std::vector<size_t> column_;    // per slot: its sparse index, or its first dense column
  std::vector<uint32_t> filled_;  // per slot: number of its values on the line
  std::vector<size_t> ends_;      // per sparse slot: where its next feasign goes
  std::vector<Found> found_;
  std::vector<uint32_t> follower_;  // per slot: the slot that followed it when it was last seen
  uint32_t last_ = NameTable::kNone;
  // A line with each ':' replaced by a blank, with readable bytes around it.
  std::vector<char> blanked_ =
      std::vector<char>(TokenKernels::kMaxLine + 2 * TokenKernels::kReach, ' ');
};

}  // namespace

std::unique_ptr<LineParser> NewSlotTextParser(const FeedSchema& schema) {
  return std::make_unique<SlotTextParser>(schema);
}

}  // namespace pbx::feed
