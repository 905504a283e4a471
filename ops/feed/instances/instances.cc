#include "feed/instances/instances.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "feed/instances/instances_impl.h"
#include "feed/instances/unique_keys.h"

namespace pbx {
namespace {

constexpr size_t kMaxInt32 = static_cast<size_t>(std::numeric_limits<int32_t>::max());
constexpr size_t kIndexRows = 1024;  // fewest instances per task of Index

template <typename T>
size_t Held(const std::vector<T>& v) {
  return v.capacity() * sizeof(T);
}

template <typename T>
void Free(std::vector<T>* v) {
  std::vector<T>().swap(*v);
}

bool HasZero(const std::vector<uint64_t>& values) {
  uint64_t zeros = 0;  // its top bit is set if a value is 0; SSE2 cannot compare 64 bits
  for (const uint64_t value : values) zeros |= (value - 1) & ~value;
  return zeros >> 63 != 0;
}

// Lowers *slot to `value`. The order of threads does not matter.
void AtomicMin(uint16_t* slot, uint16_t value) {
  uint16_t now = __atomic_load_n(slot, __ATOMIC_RELAXED);
  while (value < now && !__atomic_compare_exchange_n(slot, &now, value, true, __ATOMIC_RELAXED,
                                                     __ATOMIC_RELAXED)) {}
}

}  // namespace

Instances::Instances(size_t sparse_slots, size_t dense_width) : impl_(std::make_unique<Impl>()) {
  impl_->slots = sparse_slots;
  impl_->width = dense_width;
}

Instances::~Instances() = default;

Status Instances::Append(ParsedChunk&& chunk) {
  Impl& self = *impl_;
  if (self.state != Impl::State::kAppending) {
    return Error(Code::kFailedPrecondition,
                 "Append was called after Shuffle or Index; use new Instances");
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
  if (!chunk.tags.Fits(n)) {
    return Error(Code::kInvalidArgument,
                 "chunk of %zu instances has tags for another number of instances", n);
  }
  if (n == 0 && chunk.feasigns.empty()) return Status::Ok();
  if (self.seen > 0 && !(chunk.tags.spec() == self.tags)) {
    return Error(Code::kInvalidArgument, "chunk has other tags than the chunks before it");
  }
  if (n > std::numeric_limits<uint32_t>::max()) {
    return Error(Code::kInvalidArgument, "chunk of %zu instances, expected at most 2^32 - 1", n);
  }
  if (!chunk.nonzero && HasZero(chunk.feasigns)) {
    return Error(Code::kInvalidArgument, "chunk holds feasign 0, which is padding and has no row");
  }
  std::vector<uint64_t> starts = self.StartsOf(chunk);
  if (starts.back() != chunk.feasigns.size()) {
    return Error(Code::kInvalidArgument, "chunk has %zu feasigns, its lengths add up to %llu",
                 chunk.feasigns.size(), static_cast<unsigned long long>(starts.back()));
  }
  PBX_RETURN_IF_ERROR(self.CheckWeights(chunk));
  self.tags = chunk.tags.spec();
  const uint64_t first = self.seen;
  self.seen += n;
  if (self.sample_rate >= 1) {
    self.Hold(std::move(chunk), std::move(starts));
    return Status::Ok();
  }
  ParsedChunk kept = self.Sample(chunk, starts, first);
  starts = self.StartsOf(kept);
  if (kept.instances > 0) self.Hold(std::move(kept), std::move(starts));
  return Status::Ok();
}

std::vector<uint64_t> Instances::Impl::StartsOf(const ParsedChunk& chunk) const {
  std::vector<uint64_t> starts(chunk.instances + 1);
  if (chunk.single) {
    for (size_t i = 0; i <= chunk.instances; ++i) starts[i] = i * slots;
    return starts;
  }
  const uint32_t* lengths = chunk.lengths.data();
  for (size_t i = 0; i < chunk.instances; ++i, lengths += slots) {
    // Sums in 32 bits, eight at a time, unless a length could overflow them: there are fewer than
    // 2^16 slots.
    uint32_t narrow = 0, any = 0;
    for (size_t s = 0; s < slots; ++s) {
      narrow += lengths[s];
      any |= lengths[s];
    }
    uint64_t length = narrow;
    if (any >> 16 != 0) length = std::accumulate(lengths, lengths + slots, uint64_t{0});
    starts[i + 1] = starts[i] + length;
  }
  return starts;
}

void Instances::Impl::Hold(ParsedChunk&& chunk, std::vector<uint64_t>&& starts) {
  Chunk added;
  added.starts = std::move(starts);
  const size_t n = chunk.instances;
  occurrences += chunk.feasigns.size();
  if (sharing != feed::Sharing::kOff) {
    added.shared = feed::ShareLists(sharing, may_share, slots, &chunk);
    shared_counts.lists += added.shared.lists_saved;
    shared_counts.values += added.shared.values_saved;
    shared_counts.index_bytes += Held(added.shared.begins);
    if (!added.shared.slots.empty()) {  // an instance now owns fewer occurrences
      const uint32_t* lengths = chunk.lengths.data();
      for (size_t i = 0; i < n; ++i, lengths += slots) {
        added.starts[i + 1] = feed::EachOwnList(added.shared, lengths, slots, added.starts[i],
                                                [](size_t, size_t, size_t) {});
      }
    }
  }
  const uint32_t number = static_cast<uint32_t>(chunks.size());
  const size_t before = places.size();
  places.resize(before + n);
  for (uint32_t row = 0; row < n; ++row) places[before + row] = {number, row};
  labels.insert(labels.end(), chunk.labels.begin(), chunk.labels.end());
  Free(&chunk.labels);
  added.columns = std::move(chunk);
  chunks.push_back(std::move(added));
}

Status Instances::Shuffle(uint64_t seed) {
  Impl& self = *impl_;
  if (self.state != Impl::State::kAppending) {
    return Error(Code::kFailedPrecondition, "Shuffle was called twice, or after Index");
  }
  self.state = Impl::State::kShuffled;
  Permute(self.places.size(), seed, [&](size_t i, size_t j) {
    std::swap(self.places[i], self.places[j]);
    std::swap(self.labels[i], self.labels[j]);
  });
  return Status::Ok();
}

std::vector<uint32_t> ShuffledOrder(size_t size, uint64_t seed) {
  std::vector<uint32_t> order(size);
  std::iota(order.begin(), order.end(), 0u);
  Permute(size, seed, [&](size_t i, size_t j) { std::swap(order[i], order[j]); });
  return order;
}

Status Instances::Arrange(const uint32_t* order, size_t size) {
  Impl& self = *impl_;
  self.RestorePlaces();
  const size_t n = self.places.size();
  std::vector<Place> of(n);  // by instance number
  std::vector<float> label(n);
  const std::vector<uint32_t> numbers = Numbers();
  for (size_t i = 0; i < n; ++i) {
    of[numbers[i]] = self.places[i];
    label[numbers[i]] = self.labels[i];
  }
  std::vector<bool> taken(n);
  size_t placed = 0;
  while (placed < size && size == n && order[placed] < n && !taken[order[placed]]) {
    taken[order[placed++]] = true;
  }
  if (size != n || placed != n) {
    return Error(Code::kInvalidArgument, "order: expected a permutation of %zu instances", n);
  }
  for (size_t i = 0; i < n; ++i) {
    self.places[i] = of[order[i]];
    self.labels[i] = label[order[i]];
  }
  if (self.state == Impl::State::kAppending) self.state = Impl::State::kShuffled;
  return Status::Ok();
}

Status Instances::Index(ThreadPool* pool) {
  Impl& self = *impl_;
  if (self.state == Impl::State::kIndexed) {
    return Error(Code::kFailedPrecondition, "Index was called twice");
  }
  if (self.tables == 1) {
    std::vector<feed::FeasignSpan> spans;
    spans.reserve(self.chunks.size());
    for (const Chunk& chunk : self.chunks) {
      spans.push_back({chunk.columns.feasigns.data(), chunk.columns.feasigns.size()});
    }
    self.keys = feed::SortedUniqueKeys(spans, pool);
    self.key_bounds = {0, self.keys.size()};
  } else {
    self.KeysByTable(pool);
  }
  if (self.keys.size() > kMaxInt32) {
    return Error(Code::kInvalidArgument,
                 "%zu unique feasigns in one load, expected at most 2^31 - 1; load fewer files",
                 self.keys.size());
  }
  self.lowest_slots.assign(self.keys.size(), std::numeric_limits<uint16_t>::max());
  std::vector<SortedIndex> indexes;
  for (size_t t = 0; t < self.tables; ++t) {
    const size_t begin = self.key_bounds[t], end = self.key_bounds[t + 1];
    indexes.emplace_back(self.keys.data() + begin, end - begin);
  }
  for (Chunk& chunk : self.chunks) {
    chunk.positions.resize(chunk.columns.feasigns.size());
    pool->ParallelRanges(chunk.columns.instances, kIndexRows, [&](size_t begin, size_t end) {
      if (self.tables == 1) {
        self.Find(indexes, 0, chunk.starts[begin], chunk.starts[end], &chunk);
      } else {
        self.FindByTable(indexes, begin, end, &chunk);
      }
      self.NoteLowestSlots(begin, end, chunk);
    });
    for (size_t d = 0; d < chunk.shared.slots.size(); ++d) {
      const size_t s = chunk.shared.slots[d], first = chunk.shared.bounds[d];
      const size_t table = self.tables == 1 ? 0 : self.table_of_slot[s];
      const size_t count = chunk.shared.bounds[d + 1] - first;
      pool->ParallelRanges(count, kIndexRows, [&](size_t begin, size_t end) {
        self.Find(indexes, table, first + begin, first + end, &chunk);
        self.NoteLowest(s, first + begin, first + end, chunk);
      });
    }
    Free(&chunk.columns.feasigns);
  }
  self.state = Impl::State::kIndexed;
  return Status::Ok();
}

void Instances::Impl::Find(const std::vector<SortedIndex>& indexes, size_t table, size_t begin,
                           size_t end, Chunk* chunk) const {
  constexpr size_t kBlock = 1024;
  uint64_t block[kBlock];
  const uint64_t* const feasigns = chunk->columns.feasigns.data();
  int32_t* const positions = chunk->positions.data();
  const int32_t base = static_cast<int32_t>(key_bounds[table]);
  for (size_t at = begin; at < end; at += kBlock) {
    const size_t n = std::min(kBlock, end - at);
    for (size_t i = 0; i < n; ++i) block[i] = KeyOf(feasigns[at + i]);
    indexes[table].FindBatch(block, n, positions + at);
    for (size_t i = 0; i < n && base != 0; ++i) positions[at + i] += base;
  }
}

void Instances::Impl::NoteLowestSlots(size_t begin, size_t end, const Chunk& chunk) {
  const uint32_t* lengths = chunk.columns.lengths.data() + begin * slots;
  for (size_t row = begin; row < end; ++row, lengths += slots) {
    feed::EachOwnList(chunk.shared, lengths, slots, chunk.starts[row],
                      [&](size_t s, size_t at, size_t stop) { NoteLowest(s, at, stop, chunk); });
  }
}

void Instances::Impl::NoteLowest(size_t slot, size_t begin, size_t end, const Chunk& chunk) {
  for (size_t at = begin; at < end; ++at) {
    const size_t key = static_cast<size_t>(chunk.positions[at]);
    AtomicMin(&lowest_slots[key], static_cast<uint16_t>(slot));
  }
}

size_t Instances::size() const { return impl_->places.size(); }
size_t Instances::unique_keys() const { return impl_->keys.size(); }
const std::vector<size_t>& Instances::key_bounds() const { return impl_->key_bounds; }
SharedCounts Instances::shared_counts() const { return impl_->shared_counts; }

Status Instances::ShareLists(const std::vector<size_t>* slots) {
  Impl& self = *impl_;
  if (self.state != Impl::State::kAppending || !self.chunks.empty()) {
    return Error(Code::kFailedPrecondition, "ShareLists was called after Append; call it first");
  }
  if (!self.poolings.empty()) {
    return Error(Code::kFailedPrecondition,
                 "slots that are weighted or pooled by mean or sqrtn cannot share lists");
  }
  self.may_share.assign(self.slots, 0);
  self.sharing = slots == nullptr ? feed::Sharing::kAuto : feed::Sharing::kOn;
  if (slots == nullptr) return Status::Ok();
  for (const size_t slot : *slots) {
    if (slot >= self.slots) {
      return Error(Code::kInvalidArgument, "sparse slot %zu shares lists, but there are %zu", slot,
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
                 Held(impl_->lowest_slots) + Held(impl_->chunks) + Held(impl_->file_labels);
  for (const Chunk& chunk : impl_->chunks) {
    bytes += Held(chunk.columns.dense) + Held(chunk.columns.feasigns) +
             Held(chunk.columns.weights) + Held(chunk.columns.lengths) + Held(chunk.starts) +
             Held(chunk.positions) + Held(chunk.donors) + Held(chunk.shared.begins) +
             chunk.columns.tags.held();
  }
  return bytes;
}

Result<std::vector<InstanceRange>> Instances::Split(const std::vector<size_t>& max_rows,
                                                    size_t batch_size) const {
  const Impl& self = *impl_;
  PBX_RETURN_IF_ERROR(self.CheckIndexed("Split"));
  if (batch_size == 0) return Error(Code::kInvalidArgument, "batch_size is 0, expected at least 1");
  std::vector<size_t> ends;
  for (size_t at = 0, n = size(); at < n; ends.push_back(at)) at += std::min(batch_size, n - at);
  return SplitAt(max_rows, ends);
}

Result<std::vector<InstanceRange>> Instances::SplitAt(const std::vector<size_t>& max_rows,
                                                      const std::vector<size_t>& ends) const {
  const Impl& self = *impl_;
  PBX_RETURN_IF_ERROR(self.CheckIndexed("SplitAt"));
  if (!std::is_sorted(ends.begin(), ends.end()) || (ends.empty() ? 0 : ends.back()) != size()) {
    return Error(Code::kInvalidArgument, "ends of batches: expected ascending ones up to %zu",
                 size());
  }
  if (max_rows.size() != self.tables) {
    return Error(Code::kInvalidArgument, "rows of %zu tables, but there are %zu", max_rows.size(),
                 self.tables);
  }
  std::vector<InstanceRange> ranges;
  const size_t n = size();
  if (n == 0) return ranges;
  bool fits = true;
  for (size_t t = 0; t < self.tables; ++t) {
    fits = fits && self.key_bounds[t + 1] - self.key_bounds[t] <= max_rows[t];
  }
  if (fits) {
    ranges.push_back({0, n});
    return ranges;
  }
  // The last range with each key; ranges are numbered from 1.
  std::vector<uint32_t> seen_in(unique_keys());
  uint32_t range = 1;
  std::vector<size_t> rows(self.tables);  // of the range, per table
  const auto count_new = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      self.EachPosition(i, [&](int32_t position) {
        const size_t key = static_cast<size_t>(position);
        if (seen_in[key] == range) return;
        seen_in[key] = range;
        size_t t = 0;
        while (key >= self.key_bounds[t + 1]) ++t;
        ++rows[t];
      });
    }
  };
  const auto table_over = [&] {  // T: none exceeds its limit
    size_t t = 0;
    while (t < self.tables && rows[t] <= max_rows[t]) ++t;
    return t;
  };
  size_t begin = 0, at = 0;
  for (const size_t end : ends) {
    count_new(at, end);
    if (table_over() < self.tables && at > begin) {  // this batch begins the next range
      ranges.push_back({begin, at});
      begin = at;
      ++range;
      rows.assign(self.tables, 0);
      count_new(at, end);
    }
    if (const size_t t = table_over(); t < self.tables) {
      return Error(Code::kInvalidArgument,
                   "the batch of instances [%zu, %zu) alone needs %zu rows, the pass table holds "
                   "%zu; raise its budget or lower the batch size",
                   at, end, rows[t], max_rows[t]);
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

Result<std::vector<uint32_t>> Instances::KeyCounts(const uint8_t* counted) const {
  const Impl& self = *impl_;
  PBX_RETURN_IF_ERROR(self.CheckIndexed("KeyCounts"));
  std::vector<uint32_t> counts(self.keys.size(), 0);
  for (size_t i = 0; i < size(); ++i) {
    if (counted != nullptr && counted[i] == 0) continue;
    self.EachPosition(i, [&](int32_t position) {
      uint32_t& count = counts[static_cast<size_t>(position)];
      count += count != UINT32_MAX ? 1 : 0;
    });
  }
  return counts;
}

// Checks the range and fills the offsets of its segments.
Status Instances::Impl::StartBatch(size_t begin, size_t end, std::vector<int32_t>* offsets) const {
  PBX_RETURN_IF_ERROR(CheckIndexed("PackBatch"));
  PBX_RETURN_IF_ERROR(CheckRange(begin, end));
  size_t total = 0;
  for (size_t i = begin; i < end; ++i) total += FedOccurrences(i);
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
    const uint32_t* const own = Lengths(places[i]);
    const uint32_t* const donor = replaced.empty() ? own : Lengths(DonorOf(places[i]));
    for (size_t s = 0; s < slots; ++s) {
      const uint32_t length = !replaced.empty() && replaced[s] != 0 ? donor[s] : own[s];
      *out++ = next += static_cast<int32_t>(length);
    }
  }
  return Status::Ok();
}

Status Instances::PackBatch(size_t begin, size_t end, const int32_t* row_of_position, int32_t stamp,
                            Batch* out) const {
  const Impl& self = *impl_;
  const size_t n = end - begin;
  if (self.tables > 1) {
    PBX_RETURN_IF_ERROR(PackTable(0, begin, end, row_of_position, stamp, out));
  } else {
    PBX_RETURN_IF_ERROR(self.StartBatch(begin, end, &out->offsets));
    out->ids.resize(static_cast<size_t>(out->offsets.back()));
    int32_t* id = out->ids.data();
    for (size_t i = begin; i < end; ++i) {
      self.EachFed(i, [&](int32_t position) { *id++ = row_of_position[position]; });
    }
    // The plan has every occurrence, so that a push sums the same numbers in the same order with
    // and without sharing.
    self.MakePlan(0, begin, end, stamp, out);
    self.JoinRepeats(0, begin, end, out);
  }

  out->size = n;
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
    self.EachFed(
        i, [&](int32_t position) { *out++ = FeasignOf(self.keys[static_cast<size_t>(position)]); });
  }
  return Status::Ok();
}

}  // namespace pbx
