#include "feed/instances/shared_lists.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace pbx::feed {
namespace {

constexpr size_t kPositionBytes = 4;  // per value of a list after Index
constexpr size_t kSample = 256;       // instances that kAuto checks before it checks all

struct List {
  const uint64_t* values = nullptr;
  size_t length = 0;
};

// How a list continues the list before: it is the same, or it has one more value at its beginning
// or at its end.
enum class Step { kNone, kSame, kFirst, kLast };

// prefer: kFirst or kLast. A list that repeats one value grows at both ends.
Step StepOf(List before, List list, Step prefer) {
  if (list.length == 0 || before.length == 0) return Step::kNone;
  const auto same = [&](size_t at, size_t at_before, size_t n) {
    const uint64_t* const values = list.values + at;
    return std::equal(values, values + n, before.values + at_before);
  };
  if (list.length == before.length && same(0, 0, list.length)) return Step::kSame;
  const size_t kept = list.length - 1;
  if (kept == 0 || (kept != before.length && kept + 1 != before.length)) return Step::kNone;
  const bool last = same(0, before.length - kept, kept);
  if (last && prefer == Step::kLast) return Step::kLast;
  if (same(1, 0, kept)) return Step::kFirst;
  return last ? Step::kLast : Step::kNone;
}

// How the lists of a slot continue each other. The lists of a run grow at the same end.
class Growth {
 public:
  // kNone: the list begins a run.
  Step Next(List list) {
    const Step step = StepOf(last_, list, grows_ == Step::kFirst ? Step::kFirst : Step::kLast);
    last_ = list;
    const bool turns = step != Step::kSame && grows_ != Step::kSame && step != grows_;
    if (step == Step::kNone || turns) {
      grows_ = Step::kSame;
      return Step::kNone;
    }
    if (step != Step::kSame) grows_ = step;
    return step;
  }

 private:
  Step grows_ = Step::kSame;  // kSame: the run has one list, which repeats
  List last_;
};

// The number of values of a list that are not stored again.
size_t SavedBy(Step step, List list) {
  if (step == Step::kNone) return 0;
  return list.length - (step == Step::kSame ? 0 : 1);
}

// The lists of a slot. Those that continue each other are windows of one array, a run.
class Windows {
 public:
  // Returns the number of values that are not stored again.
  size_t Add(List list) {
    const Step step = growth_.Next(list);
    if (step == Step::kNone) {
      EndRun();
      run_.assign(list.values, list.values + list.length);
    } else if (step != Step::kSame) {
      const bool first = step == Step::kFirst;
      if (first && !reversed_) std::reverse(run_.begin(), run_.end());
      reversed_ = first;
      run_.push_back(list.values[first ? 0 : list.length - 1]);
    }
    // Every list of a run ends where the run ends so far.
    ends_.push_back(run_.size());
    lengths_.push_back(list.length);
    return SavedBy(step, list);
  }

  // A run that grows at the beginning of its lists is kept in reverse until it ends.
  void EndRun() {
    if (reversed_) std::reverse(run_.begin(), run_.end());
    for (size_t i = 0; i < ends_.size(); ++i) {
      const size_t begin = reversed_ ? run_.size() - ends_[i] : ends_[i] - lengths_[i];
      begins_.push_back(static_cast<uint32_t>(values_.size() + begin));
    }
    values_.insert(values_.end(), run_.begin(), run_.end());
    ends_.clear();
    lengths_.clear();
    run_.clear();
    reversed_ = false;
  }

  const std::vector<uint64_t>& values() const { return values_; }
  const std::vector<uint32_t>& begins() const { return begins_; }

 private:
  std::vector<uint64_t> values_;  // of the runs that have ended
  std::vector<uint32_t> begins_;  // of their lists
  std::vector<uint64_t> run_;
  std::vector<size_t> ends_, lengths_;  // of the lists of the run
  bool reversed_ = false;               // the run grows at the beginning of its lists
  Growth growth_;
};

// Calls visit(slot, list) for each list of the first n instances.
template <typename Visit>
void EachListOf(const ParsedChunk& chunk, size_t slots, size_t n, Visit visit) {
  const uint64_t* at = chunk.feasigns.data();
  const uint32_t* length = chunk.lengths.data();
  for (size_t i = 0; i < n; ++i) {
    for (size_t s = 0; s < slots; ++s, at += *length++) visit(s, List{at, *length});
  }
}

// Slots for which sharing among the first n instances saves more memory than the index of n
// instances takes.
std::vector<uint16_t> Worthwhile(const ParsedChunk& chunk, size_t slots, size_t n) {
  std::vector<size_t> saved(slots);
  std::vector<Growth> growth(slots);
  EachListOf(chunk, slots, n,
             [&](size_t s, List list) { saved[s] += SavedBy(growth[s].Next(list), list); });
  std::vector<uint16_t> chosen;
  for (size_t s = 0; s < slots; ++s) {
    if (saved[s] * kPositionBytes > n * sizeof(uint32_t)) {
      chosen.push_back(static_cast<uint16_t>(s));
    }
  }
  return chosen;
}

}  // namespace

SharedLists ShareLists(Sharing sharing, const std::vector<uint8_t>& slots, size_t sparse_slots,
                       ParsedChunk* chunk) {
  SharedLists shared;
  const size_t n = chunk->instances;
  if (sharing == Sharing::kOff || n == 0 ||
      chunk->feasigns.size() > std::numeric_limits<uint32_t>::max()) {
    return shared;
  }
  if (sharing == Sharing::kOn) {
    for (size_t s = 0; s < sparse_slots; ++s) {
      if (slots[s]) shared.slots.push_back(static_cast<uint16_t>(s));
    }
  } else if (!Worthwhile(*chunk, sparse_slots, std::min(n, kSample)).empty()) {
    shared.slots = Worthwhile(*chunk, sparse_slots, n);
  }
  if (shared.slots.empty()) return shared;

  const size_t count = shared.slots.size();
  std::vector<Windows> windows(count);
  std::vector<Windows*> of_slot(sparse_slots);
  for (size_t d = 0; d < count; ++d) of_slot[shared.slots[d]] = &windows[d];
  std::vector<uint64_t> values;
  EachListOf(*chunk, sparse_slots, n, [&](size_t s, List list) {
    if (of_slot[s] == nullptr) {
      values.insert(values.end(), list.values, list.values + list.length);
      return;
    }
    const size_t saved = of_slot[s]->Add(list);
    shared.lists_saved += saved != 0;
    shared.values_saved += saved;
  });
  shared.begins.resize(n * count);
  for (size_t d = 0; d < count; ++d) {
    Windows& of = windows[d];
    of.EndRun();
    const uint32_t base = static_cast<uint32_t>(values.size());
    shared.bounds.push_back(base);
    for (size_t i = 0; i < n; ++i) shared.begins[i * count + d] = base + of.begins()[i];
    values.insert(values.end(), of.values().begin(), of.values().end());
  }
  shared.bounds.push_back(static_cast<uint32_t>(values.size()));
  values.shrink_to_fit();
  chunk->feasigns = std::move(values);
  return shared;
}

}  // namespace pbx::feed
