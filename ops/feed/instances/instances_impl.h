// How Instances store their columns, for instances.cc, arrange.cc and tables.cc.
#pragma once

#include <limits>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/sorted_index.h"
#include "feed/instances/instances.h"
#include "feed/instances/shared_lists.h"
#include "row/feasign.h"
#include "row/pooling.h"

namespace pbx {

// splitmix64, whose finaliser is Mix.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() { return Mix(state_ += 0x9e3779b97f4a7c15ULL); }

  // Uniform in [0, bound), bound >= 1. Draws numbers of just enough bits until one is below bound.
  uint64_t Below(uint64_t bound) {
    uint64_t mask = bound - 1;
    for (int shift = 1; shift < 64; shift *= 2) mask |= mask >> shift;
    for (;;) {
      const uint64_t draw = Next() & mask;
      if (draw < bound) return draw;
    }
  }

 private:
  uint64_t state_;
};

// The Fisher-Yates shuffle of n items. Calls swap(i, j).
template <typename Swap>
void Permute(size_t n, uint64_t seed, Swap swap) {
  Random random(seed);
  for (size_t i = n; i > 1; --i) swap(i - 1, random.Below(i));
}

// Where an instance is stored. Shuffling permutes places; the columns do not move.
struct Place {
  uint32_t chunk;
  uint32_t row;
};

// An appended chunk. Index replaces its feasigns by positions.
struct Chunk {
  ParsedChunk columns;
  std::vector<uint64_t> starts;    // (n + 1) instance i owns occurrences [starts[i], starts[i+1])
  feed::SharedLists shared;        // the lists that instances share
  std::vector<int32_t> positions;  // (nnz), after Index
  std::vector<Place> donors;       // (n) where the values of replaced slots come from; may be empty
};

struct Instances::Impl {
  enum class State { kAppending, kShuffled, kIndexed };

  size_t slots = 0;  // S
  size_t width = 0;  // W
  State state = State::kAppending;
  std::vector<Chunk> chunks;
  std::vector<Place> places;           // (N)
  std::vector<float> labels;           // (N)
  std::vector<float> file_labels;      // by number, once ArrangePlaces was called
  size_t occurrences = 0;              // nnz
  std::vector<uint64_t> keys;          // (U)
  std::vector<uint16_t> lowest_slots;  // (U)
  feed::Sharing sharing = feed::Sharing::kOff;
  std::vector<uint8_t> may_share;  // (S)
  SharedCounts shared_counts;
  std::vector<uint8_t> table_of_slot;       // (S); empty: one table
  size_t tables = 1;                        // T
  std::vector<size_t> key_bounds = {0, 0};  // (T + 1)
  TagSpec tags;                             // the tags that all chunks have
  std::vector<ListPooling> poolings;        // (S); empty: no ids have factors
  std::vector<uint8_t> replaced;            // (S) 1: the slot comes from donors; empty: none

  // For instances appended later; see SetSampling.
  double sample_rate = 1;
  uint64_t sample_seed = 0;
  uint64_t seen = 0;  // instances before sampling

  // Calls visit(slot, begin, end) for each list of the instance at this place.
  template <typename Visit>
  void EachList(Place place, Visit visit) const {
    const Chunk& chunk = chunks[place.chunk];
    feed::EachList(chunk.shared, place.row, Lengths(place), slots, chunk.starts[place.row], visit);
  }

  // Calls visit(position) for each occurrence of instance i.
  template <typename Visit>
  void EachPosition(size_t i, Visit visit) const {
    const Chunk& chunk = chunks[places[i].chunk];
    const size_t row = places[i].row;
    const auto visit_all = [&](size_t begin, size_t end) {
      for (size_t at = begin; at < end; ++at) visit(chunk.positions[at]);
    };
    if (chunk.shared.slots.empty()) {
      visit_all(chunk.starts[row], chunk.starts[row + 1]);
    } else {
      EachList(places[i], [&](size_t, size_t begin, size_t end) { visit_all(begin, end); });
    }
  }

  // The same, but with the values that a batch gets: replaced slots come from the donor.
  template <typename Visit>
  void EachFed(size_t i, Visit visit) const {
    if (replaced.empty()) return EachPosition(i, visit);
    EachFedList(i, [&](size_t, const int32_t* positions, size_t n) {
      for (size_t k = 0; k < n; ++k) visit(positions[k]);
    });
  }

  // Calls visit(slot, positions, n) for each list that a batch gets.
  template <typename Visit>
  void EachFedList(size_t i, Visit visit) const {
    EachFedSpan(i, [&](size_t s, const Chunk& chunk, size_t first, size_t n) {
      visit(s, chunk.positions.data() + first, n);
    });
  }

  // Calls visit(slot, chunk, first, n) for each list that a batch gets: occurrences [first, first +
  // n) of a chunk.
  template <typename Visit>
  void EachFedSpan(size_t i, Visit visit) const {
    const Place own = places[i];
    if (replaced.empty()) {
      const Chunk& chunk = chunks[own.chunk];
      EachList(own,
               [&](size_t s, size_t begin, size_t end) { visit(s, chunk, begin, end - begin); });
      return;
    }
    const Place donor = DonorOf(own);
    std::vector<size_t> begins(slots);  // where the donor's lists begin
    EachList(donor, [&](size_t s, size_t begin, size_t) { begins[s] = begin; });
    EachList(own, [&](size_t s, size_t begin, size_t end) {
      const Place from = replaced[s] != 0 ? donor : own;
      const size_t first = replaced[s] != 0 ? begins[s] : begin;
      const size_t length = replaced[s] != 0 ? Lengths(donor)[s] : end - begin;
      visit(s, chunks[from.chunk], first, length);
    });
  }

  size_t FedOccurrences(size_t i) const {
    const uint32_t* const own = Lengths(places[i]);
    const uint32_t* const donor = replaced.empty() ? own : Lengths(DonorOf(places[i]));
    size_t count = 0;
    for (size_t s = 0; s < slots; ++s) {
      count += !replaced.empty() && replaced[s] != 0 ? donor[s] : own[s];
    }
    return count;
  }

  Place DonorOf(Place place) const { return chunks[place.chunk].donors[place.row]; }

  const uint32_t* Lengths(Place place) const {
    return chunks[place.chunk].columns.lengths.data() + place.row * slots;
  }

  const TagColumns& TagsOf(size_t i) const { return chunks[places[i].chunk].columns.tags; }
  const LogKey& LogKeyOf(size_t i) const { return TagsOf(i).log_keys[places[i].row]; }
  std::string_view InsIdOf(size_t i) const { return TagsOf(i).ins_ids[places[i].row]; }

  std::vector<uint64_t> StartsOf(const ParsedChunk& chunk) const;
  void Hold(ParsedChunk&& chunk, std::vector<uint64_t>&& starts);
  // Appends a copy of the instance at a place, with this label and without tags.
  void AppendTo(Place place, float label, ParsedChunk* to) const;
  // The instances of a chunk that the sampling keeps. first: the number of its first instance.
  ParsedChunk Sample(const ParsedChunk& chunk, const std::vector<uint64_t>& starts,
                     uint64_t first) const;
  // Merges the instances of one id, in the given order, and appends the result to *merged. False if
  // two of them have feasigns in the same slot.
  bool Merge(const std::vector<uint32_t>& group, const std::vector<size_t>& dense_dims,
             ParsedChunk* merged) const;
  std::vector<uint64_t> FirstNumbers() const;
  // Undoes ArrangePlaces: all instances, in file order.
  void RestorePlaces();
  uint64_t FirstFeasign(Place place, size_t slot) const;  // 0: none

  Status CheckIndexed(const char* call) const {
    if (state == State::kIndexed) return Status::Ok();
    return Error(Code::kFailedPrecondition, "%s was called before Index; call Index first", call);
  }

  Status CheckWeights(const ParsedChunk& chunk) const;

  Status CheckRange(size_t begin, size_t end) const {
    if (begin <= end && end <= places.size()) return Status::Ok();
    return Error(Code::kInvalidArgument, "instances [%zu, %zu) are not within [0, %zu)", begin, end,
                 places.size());
  }

  // Defined in tables.cc, for several tables: find the keys, and the positions of the keys that
  // instances [begin, end) of a chunk own. indexes: (T) one index over the keys of each table.
  void KeysByTable(ThreadPool* pool);
  void FindByTable(const std::vector<SortedIndex>& indexes, size_t begin, size_t end,
                   Chunk* chunk) const;

  // Finds the positions of occurrences [begin, end) of a chunk, whose slots belong to one table.
  void Find(const std::vector<SortedIndex>& indexes, size_t table, size_t begin, size_t end,
            Chunk* chunk) const;
  // For the lists that instances [begin, end) own.
  void NoteLowestSlots(size_t begin, size_t end, const Chunk& chunk);
  // For occurrences [begin, end), which are of this slot.
  void NoteLowest(size_t slot, size_t begin, size_t end, const Chunk& chunk);
  Status StartBatch(size_t begin, size_t end, std::vector<int32_t>* offsets) const;
  // Makes the plan of a table's part of a packed batch, with the factors of its ids if a slot of
  // the table needs them.
  void MakePlan(size_t table, size_t begin, size_t end, int32_t stamp, SparseBatch* out) const;
  // Removes lists that repeat the list of the instance before. They are removed from the ids of one
  // table's part of a packed batch.
  void JoinRepeats(size_t table, size_t begin, size_t end, SparseBatch* out) const;
};

}  // namespace pbx
