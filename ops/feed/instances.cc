#include "feed/instances.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/hash.h"
#include "base/sorted_index.h"
#include "feed/shared_lists.h"
#include "feed/unique_keys.h"
#include "row/feasign.h"
#include "row/plan.h"

namespace pbx {
namespace {

constexpr size_t kMaxInt32 = static_cast<size_t>(std::numeric_limits<int32_t>::max());
constexpr size_t kIndexRows = 1024;  // instances a task of Index takes, at least

// splitmix64: Mix is its finaliser.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() { return Mix(state_ += 0x9e3779b97f4a7c15ULL); }

  // Uniform in [0, bound), bound >= 1: draws of just enough bits, again until one fits.
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

// A chunk as it was appended. Index replaces the feasigns by positions.
struct Chunk {
  ParsedChunk columns;
  std::vector<uint64_t> starts;    // (n + 1) instance i holds occurrences [starts[i], starts[i+1])
  feed::SharedLists shared;        // and has some of those before it
  std::vector<int32_t> positions;  // (nnz), after Index
};

// Where an instance lies. Shuffling permutes places; the columns stay where they are.
struct Place {
  uint32_t chunk;
  uint32_t row;
};

template <typename T>
size_t Held(const std::vector<T>& v) {
  return v.capacity() * sizeof(T);
}

template <typename T>
void Free(std::vector<T>* v) {
  std::vector<T>().swap(*v);
}

// Without a branch a value: a column from the cache comes at the speed of memory.
bool HasZero(const std::vector<uint64_t>& values) {
  uint64_t zeros = 0;
  for (const uint64_t value : values) zeros |= value == 0 ? 1 : 0;
  return zeros != 0;
}

// Lowers *slot to `value`; the order in which threads come does not matter.
void AtomicMin(uint16_t* slot, uint16_t value) {
  uint16_t now = __atomic_load_n(slot, __ATOMIC_RELAXED);
  while (value < now && !__atomic_compare_exchange_n(slot, &now, value, true, __ATOMIC_RELAXED,
                                                     __ATOMIC_RELAXED)) {}
}

}  // namespace

struct Instances::Impl {
  enum class State { kAppending, kShuffled, kIndexed };

  size_t slots = 0;  // S
  size_t width = 0;  // W
  State state = State::kAppending;
  std::vector<Chunk> chunks;
  std::vector<Place> places;           // (N)
  std::vector<float> labels;           // (N)
  size_t occurrences = 0;              // nnz
  std::vector<uint64_t> keys;          // (U)
  std::vector<uint16_t> lowest_slots;  // (U)
  feed::Sharing sharing = feed::Sharing::kOff;
  std::vector<uint8_t> may_share;  // (S)
  SharedCounts shared_counts;

  const uint32_t* Lengths(Place place) const {
    return chunks[place.chunk].columns.lengths.data() + place.row * slots;
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
      feed::EachList(chunk.shared, row, Lengths(places[i]), slots, chunk.starts[row],
                     [&](size_t, size_t begin, size_t end) { visit_all(begin, end); });
    }
  }

  Status CheckIndexed(const char* call) const {
    if (state == State::kIndexed) return Status::Ok();
    return Error(Code::kFailedPrecondition, "%s before Index; call Index first", call);
  }

  Status CheckRange(size_t begin, size_t end) const {
    if (begin <= end && end <= places.size()) return Status::Ok();
    return Error(Code::kInvalidArgument, "instances [%zu, %zu) are not within [0, %zu)", begin, end,
                 places.size());
  }

  void IndexRows(const SortedIndex& index, size_t begin, size_t end, Chunk* chunk);
  Status StartBatch(size_t begin, size_t end, std::vector<int32_t>* offsets) const;
};

Instances::Instances(size_t sparse_slots, size_t dense_width) : impl_(std::make_unique<Impl>()) {
  impl_->slots = sparse_slots;
  impl_->width = dense_width;
}

Instances::~Instances() = default;

Status Instances::Append(ParsedChunk&& chunk) {
  Impl& self = *impl_;
  if (self.state != Impl::State::kAppending) {
    return Error(Code::kFailedPrecondition, "Append after Shuffle or Index; use new Instances");
  }
  const size_t n = chunk.instances;
  if (chunk.labels.size() != n || chunk.dense.size() != n * self.width ||
      chunk.lengths.size() != n * self.slots) {
    return Error(
        Code::kInvalidArgument,
        "chunk of %zu instances has %zu labels, %zu dense values and %zu lengths; expected "
        "%zu, %zu and %zu",
        n, chunk.labels.size(), chunk.dense.size(), chunk.lengths.size(), n, n * self.width,
        n * self.slots);
  }
  if (n == 0 && chunk.feasigns.empty()) return Status::Ok();
  if (n > std::numeric_limits<uint32_t>::max()) {
    return Error(Code::kInvalidArgument, "chunk of %zu instances, expected at most 2^32 - 1", n);
  }
  if (HasZero(chunk.feasigns)) {
    return Error(Code::kInvalidArgument, "chunk holds feasign 0, which is padding and has no row");
  }
  Chunk added;
  added.starts.resize(n + 1);
  const uint32_t* lengths = chunk.lengths.data();
  for (size_t i = 0; i < n; ++i, lengths += self.slots) {
    uint64_t length = 0;
    for (size_t s = 0; s < self.slots; ++s) length += lengths[s];
    added.starts[i + 1] = added.starts[i] + length;
  }
  if (added.starts.back() != chunk.feasigns.size()) {
    return Error(Code::kInvalidArgument, "chunk has %zu feasigns, its lengths add up to %llu",
                 chunk.feasigns.size(), static_cast<unsigned long long>(added.starts.back()));
  }
  self.occurrences += chunk.feasigns.size();
  if (self.sharing != feed::Sharing::kOff) {
    added.shared = feed::ShareLists(self.sharing, self.may_share, self.slots, &chunk);
    self.shared_counts.lists += added.shared.lists_saved;
    self.shared_counts.values += added.shared.values_saved;
    self.shared_counts.index_bytes += Held(added.shared.begins);
    if (!added.shared.slots.empty()) {  // an instance holds fewer now
      lengths = chunk.lengths.data();
      for (size_t i = 0; i < n; ++i, lengths += self.slots) {
        added.starts[i + 1] = feed::EachList(added.shared, i, lengths, self.slots, added.starts[i],
                                             [](size_t, size_t, size_t) {});
      }
    }
  }
  const uint32_t number = static_cast<uint32_t>(self.chunks.size());
  const size_t before = self.places.size();
  self.places.resize(before + n);
  for (uint32_t row = 0; row < n; ++row) self.places[before + row] = {number, row};
  self.labels.insert(self.labels.end(), chunk.labels.begin(), chunk.labels.end());
  Free(&chunk.labels);
  added.columns = std::move(chunk);
  self.chunks.push_back(std::move(added));
  return Status::Ok();
}

Status Instances::Shuffle(uint64_t seed) {
  Impl& self = *impl_;
  if (self.state != Impl::State::kAppending) {
    return Error(Code::kFailedPrecondition, "Shuffle a second time or after Index");
  }
  self.state = Impl::State::kShuffled;
  Random random(seed);
  for (size_t i = self.places.size(); i > 1; --i) {
    const size_t j = random.Below(i);
    std::swap(self.places[i - 1], self.places[j]);
    std::swap(self.labels[i - 1], self.labels[j]);
  }
  return Status::Ok();
}

std::vector<uint32_t> ShuffledOrder(size_t size, uint64_t seed) {
  std::vector<uint32_t> order(size);
  std::iota(order.begin(), order.end(), 0u);
  Random random(seed);
  for (size_t i = size; i > 1; --i) std::swap(order[i - 1], order[random.Below(i)]);
  return order;
}

Status Instances::Arrange(const uint32_t* order, size_t size) {
  Impl& self = *impl_;
  if (self.state != Impl::State::kAppending) {
    return Error(Code::kFailedPrecondition, "Arrange after Shuffle or Index");
  }
  const size_t n = self.places.size();
  std::vector<Place> places;
  std::vector<float> labels;
  std::vector<bool> taken(n);
  places.reserve(n);
  labels.reserve(n);
  for (size_t i = 0; i < size && size == n; ++i) {
    if (order[i] >= n || taken[order[i]]) break;
    taken[order[i]] = true;
    places.push_back(self.places[order[i]]);
    labels.push_back(self.labels[order[i]]);
  }
  if (size != n || places.size() != n) {
    return Error(Code::kInvalidArgument, "order: expected a permutation of %zu instances", n);
  }
  self.state = Impl::State::kShuffled;
  self.places = std::move(places);
  self.labels = std::move(labels);
  return Status::Ok();
}

Status Instances::Index(ThreadPool* pool) {
  Impl& self = *impl_;
  if (self.state == Impl::State::kIndexed) {
    return Error(Code::kFailedPrecondition, "Index a second time");
  }
  std::vector<feed::FeasignSpan> spans;
  spans.reserve(self.chunks.size());
  for (const Chunk& chunk : self.chunks) {
    spans.push_back({chunk.columns.feasigns.data(), chunk.columns.feasigns.size()});
  }
  self.keys = feed::SortedUniqueKeys(spans, pool);
  if (self.keys.size() > kMaxInt32) {
    return Error(Code::kInvalidArgument,
                 "%zu unique feasigns in one load, expected at most 2^31 - 1; load fewer files",
                 self.keys.size());
  }
  self.lowest_slots.assign(self.keys.size(), std::numeric_limits<uint16_t>::max());
  const SortedIndex index(self.keys.data(), self.keys.size());
  for (Chunk& chunk : self.chunks) {
    chunk.positions.resize(chunk.columns.feasigns.size());
    pool->ParallelRanges(chunk.columns.instances, kIndexRows, [&](size_t begin, size_t end) {
      self.IndexRows(index, begin, end, &chunk);
    });
    Free(&chunk.columns.feasigns);
  }
  self.state = Impl::State::kIndexed;
  return Status::Ok();
}

void Instances::Impl::IndexRows(const SortedIndex& index, size_t begin, size_t end, Chunk* chunk) {
  constexpr size_t kBlock = 1024;
  uint64_t block[kBlock];
  const uint64_t* const feasigns = chunk->columns.feasigns.data();
  int32_t* const positions = chunk->positions.data();
  const size_t last = chunk->starts[end];
  for (size_t at = chunk->starts[begin]; at < last; at += kBlock) {
    const size_t n = std::min(kBlock, last - at);
    for (size_t i = 0; i < n; ++i) block[i] = KeyOf(feasigns[at + i]);
    index.FindBatch(block, n, positions + at);
  }
  const uint32_t* lengths = chunk->columns.lengths.data() + begin * slots;
  for (size_t row = begin; row < end; ++row, lengths += slots) {
    const size_t own = chunk->starts[row];
    feed::EachList(chunk->shared, row, lengths, slots, own, [&](size_t s, size_t at, size_t stop) {
      if (at < own) return;  // whoever owns the list has said it
      for (; at < stop; ++at) {
        AtomicMin(&lowest_slots[static_cast<size_t>(positions[at])], static_cast<uint16_t>(s));
      }
    });
  }
}

size_t Instances::size() const { return impl_->places.size(); }
size_t Instances::unique_keys() const { return impl_->keys.size(); }
SharedCounts Instances::shared_counts() const { return impl_->shared_counts; }

Status Instances::ShareLists(const std::vector<size_t>* slots) {
  Impl& self = *impl_;
  if (self.state != Impl::State::kAppending || !self.chunks.empty()) {
    return Error(Code::kFailedPrecondition, "ShareLists after Append; call it first");
  }
  self.may_share.assign(self.slots, 0);
  self.sharing = slots == nullptr ? feed::Sharing::kAuto : feed::Sharing::kOn;
  if (slots == nullptr) return Status::Ok();
  for (const size_t slot : *slots) {
    if (slot >= self.slots) {
      return Error(Code::kInvalidArgument, "sparse slot %zu shares lists, there are %zu", slot,
                   self.slots);
    }
    self.may_share[slot] = 1;
  }
  return Status::Ok();
}

size_t Instances::occurrences() const { return impl_->occurrences; }
const std::vector<float>& Instances::labels() const { return impl_->labels; }

size_t Instances::bytes() const {
  size_t bytes = Held(impl_->places) + Held(impl_->labels) + Held(impl_->keys) +
                 Held(impl_->lowest_slots) + Held(impl_->chunks);
  for (const Chunk& chunk : impl_->chunks) {
    bytes += Held(chunk.columns.dense) + Held(chunk.columns.feasigns) +
             Held(chunk.columns.lengths) + Held(chunk.starts) + Held(chunk.positions) +
             Held(chunk.shared.begins);
  }
  return bytes;
}

Result<std::vector<InstanceRange>> Instances::Split(size_t max_rows, size_t batch_size) const {
  const Impl& self = *impl_;
  PBX_RETURN_IF_ERROR(self.CheckIndexed("Split"));
  if (batch_size == 0) return Error(Code::kInvalidArgument, "batch_size is 0, expected at least 1");
  std::vector<InstanceRange> ranges;
  const size_t n = size();
  if (n == 0) return ranges;
  if (unique_keys() <= max_rows) {
    ranges.push_back({0, n});
    return ranges;
  }
  std::vector<uint32_t> seen_in(unique_keys());  // number of the last range, from 1, with the key
  uint32_t range = 1;
  const auto count_new = [&](size_t begin, size_t end) {
    size_t rows = 0;
    for (size_t i = begin; i < end; ++i) {
      self.EachPosition(i, [&](int32_t position) {
        uint32_t& seen = seen_in[static_cast<size_t>(position)];
        rows += seen != range;
        seen = range;
      });
    }
    return rows;
  };
  size_t begin = 0, rows = 0;
  for (size_t at = 0; at < n;) {
    const size_t end = at + std::min(batch_size, n - at);
    rows += count_new(at, end);
    if (rows > max_rows && at > begin) {  // this batch begins a range of its own
      ranges.push_back({begin, at});
      begin = at;
      ++range;
      rows = count_new(at, end);
    }
    if (rows > max_rows) {
      return Error(Code::kInvalidArgument,
                   "the batch of instances [%zu, %zu) alone needs %zu rows, the pass table holds "
                   "%zu; raise its budget or lower the batch size",
                   at, end, rows, max_rows);
    }
    at = end;
  }
  ranges.push_back({begin, n});
  return ranges;
}

Result<RangeKeys> Instances::SelectRange(InstanceRange range) const {
  const Impl& self = *impl_;
  PBX_RETURN_IF_ERROR(self.CheckIndexed("SelectRange"));
  PBX_RETURN_IF_ERROR(self.CheckRange(range.begin, range.end));
  std::vector<uint8_t> used(unique_keys());
  for (size_t i = range.begin; i < range.end; ++i) {
    self.EachPosition(i, [&](int32_t position) { used[static_cast<size_t>(position)] = 1; });
  }
  size_t count = 0;
  for (const uint8_t u : used) count += u;
  RangeKeys selected;
  selected.keys.reserve(count);
  selected.slots.reserve(count);
  selected.positions.reserve(count);
  for (size_t position = 0; position < used.size(); ++position) {
    if (!used[position]) continue;
    selected.keys.push_back(self.keys[position]);
    selected.slots.push_back(self.lowest_slots[position]);
    selected.positions.push_back(static_cast<int32_t>(position));
  }
  return selected;
}

// Checks the range and fills the offsets of its segments.
Status Instances::Impl::StartBatch(size_t begin, size_t end, std::vector<int32_t>* offsets) const {
  PBX_RETURN_IF_ERROR(CheckIndexed("PackBatch"));
  PBX_RETURN_IF_ERROR(CheckRange(begin, end));
  size_t total = 0;
  for (size_t i = begin; i < end; ++i) {
    const uint32_t* const length = Lengths(places[i]);
    for (size_t s = 0; s < slots; ++s) total += length[s];
  }
  const size_t segments = (end - begin) * slots;
  if (total > kMaxInt32 || segments > kMaxInt32 - 1) {
    return Error(Code::kInvalidArgument,
                 "a batch of %zu instances has %zu feasigns in %zu segments, expected at most "
                 "2^31 - 1 of each; lower the batch size",
                 end - begin, total, segments);
  }
  offsets->resize(segments + 1);
  int32_t* out = offsets->data();
  int32_t next = 0;
  *out++ = 0;
  for (size_t i = begin; i < end; ++i) {
    const uint32_t* const length = Lengths(places[i]);
    for (size_t s = 0; s < slots; ++s) *out++ = next += static_cast<int32_t>(length[s]);
  }
  return Status::Ok();
}

Status Instances::PackBatch(size_t begin, size_t end, const int32_t* row_of_position, int32_t stamp,
                            Batch* out) const {
  const Impl& self = *impl_;
  PBX_RETURN_IF_ERROR(self.StartBatch(begin, end, &out->offsets));
  const size_t n = end - begin;
  out->size = n;
  out->ids.resize(static_cast<size_t>(out->offsets.back()));
  int32_t* id = out->ids.data();
  for (size_t i = begin; i < end; ++i) {
    self.EachPosition(i, [&](int32_t position) { *id++ = row_of_position[position]; });
  }
  BuildPlan(out->ids.data(), out->offsets.data(), n * self.slots, stamp, &out->plan);

  out->dense.resize(n * self.width);
  out->show_click.resize(n * 2);
  for (size_t i = 0; i < n; ++i) {
    const Place place = self.places[begin + i];
    std::copy_n(self.chunks[place.chunk].columns.dense.data() + place.row * self.width, self.width,
                out->dense.data() + i * self.width);
    out->show_click[2 * i] = 1;
    out->show_click[2 * i + 1] = self.labels[begin + i];
  }
  out->labels.assign(self.labels.data() + begin, self.labels.data() + end);
  return Status::Ok();
}

Status Instances::PackFeasigns(size_t begin, size_t end, std::vector<uint64_t>* feasigns,
                               std::vector<int32_t>* offsets) const {
  const Impl& self = *impl_;
  PBX_RETURN_IF_ERROR(self.StartBatch(begin, end, offsets));
  feasigns->resize(static_cast<size_t>(offsets->back()));
  uint64_t* out = feasigns->data();
  for (size_t i = begin; i < end; ++i) {
    self.EachPosition(
        i, [&](int32_t position) { *out++ = FeasignOf(self.keys[static_cast<size_t>(position)]); });
  }
  return Status::Ok();
}

}  // namespace pbx
