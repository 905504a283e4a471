// Which instances are kept and in which order: sampling, merging, shuffling, page views, and slots
// whose values are replaced.
#include <algorithm>
#include <cmath>
#include <utility>

#include "feed/instances/instances_impl.h"
#include "feed/instances/side_columns.h"

namespace pbx {
namespace {

constexpr uint32_t kRankedCmatches[] = {222, 223};

// An instance to be sorted.
struct Item {
  uint64_t sort;
  Place place;
  float label;
};

bool InFileOrder(const Item& a, const Item& b) {
  return a.place.chunk != b.place.chunk ? a.place.chunk < b.place.chunk : a.place.row < b.place.row;
}

bool BySort(const Item& a, const Item& b) { return a.sort < b.sort; }

// The sort key of the group with this key. With one seed, different keys give different sort keys.
uint64_t Scatter(uint64_t seed, uint64_t key) { return Mix(Mix(seed + 1) ^ key); }

uint64_t HashOf(std::string_view text) { return HashBytes(text.data(), text.size(), 0); }

// Adds instance `row` of a chunk to *to, with this label.
void AddRow(const ParsedChunk& from, const std::vector<uint64_t>& starts, size_t row, float label,
            size_t slots, size_t width, ParsedChunk* to) {
  ++to->instances;
  to->labels.push_back(label);
  const auto add = [](auto begin, size_t n, auto* column) {
    column->insert(column->end(), begin, begin + static_cast<std::ptrdiff_t>(n));
  };
  add(from.dense.data() + row * width, width, &to->dense);
  add(from.lengths.data() + row * slots, slots, &to->lengths);
  to->AddFeasigns(from, starts[row], starts[row + 1] - starts[row]);
  to->tags.AddRow(from.tags, row);
}

int32_t RankOf(const LogKey& key, size_t max_rank) {
  const auto* const end = std::end(kRankedCmatches);
  const bool ranked = std::find(std::begin(kRankedCmatches), end, key.cmatch) != end;
  return ranked && key.rank >= 1 && key.rank <= max_rank ? static_cast<int32_t>(key.rank) : -1;
}

Status CheckTag(bool there, const char* call, const char* tag, const char* setting) {
  if (there) return Status::Ok();
  return Error(Code::kFailedPrecondition, "%s: the instances have no %s: %s is missing", call, tag,
               setting);
}

constexpr char kIds[] = "set_parse_ins_id(True) or set_parse_logkey(True)";
constexpr char kLogKeys[] = "set_parse_logkey(True)";

}  // namespace

Status Instances::SetSampling(double rate, uint64_t seed) {
  if (!(rate >= 0 && rate <= 1)) {
    return Error(Code::kInvalidArgument, "sample rate %g, expected one in [0, 1]", rate);
  }
  impl_->sample_rate = rate;
  impl_->sample_seed = seed;
  return Status::Ok();
}

ParsedChunk Instances::Impl::Sample(const ParsedChunk& chunk, const std::vector<uint64_t>& starts,
                                    uint64_t first) const {
  ParsedChunk kept;
  const uint64_t bound = static_cast<uint64_t>(std::ldexp(sample_rate, 64));  // the rate is below 1
  for (size_t row = 0; row < chunk.instances; ++row) {
    const uint64_t hash = tags.ins_id ? HashOf(chunk.tags.ins_ids[row]) : first + row;
    if (Scatter(sample_seed, hash) >= bound) continue;
    AddRow(chunk, starts, row, chunk.labels[row], slots, width, &kept);
  }
  return kept;
}

Result<size_t> Instances::MergeByInsId(size_t merge_size, const std::vector<size_t>& dense_dims) {
  Impl& self = *impl_;
  if (self.state != Impl::State::kAppending) {
    return Error(Code::kFailedPrecondition,
                 "MergeByInsId was called after Shuffle, Arrange or Index");
  }
  size_t width = 0;
  for (const size_t dim : dense_dims) width += dim;
  if (width != self.width) {
    return Error(Code::kInvalidArgument, "dense slots of %zu values, expected %zu", width,
                 self.width);
  }
  const size_t n = size();
  if (n == 0) return size_t{0};
  PBX_RETURN_IF_ERROR(CheckTag(self.tags.ins_id, "set_merge_by_lineid", "ins_id", kIds));
  if (n > std::numeric_limits<uint32_t>::max()) {
    return Error(Code::kInvalidArgument, "%zu instances to merge, expected at most 2^32 - 1", n);
  }
  std::vector<uint32_t> order(n);
  for (size_t i = 0; i < n; ++i) order[i] = static_cast<uint32_t>(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return self.InsIdOf(a) < self.InsIdOf(b); });
  std::vector<std::vector<uint32_t>> groups;
  for (const uint32_t i : order) {
    if (groups.empty() || self.InsIdOf(groups.back()[0]) != self.InsIdOf(i)) groups.emplace_back();
    groups.back().push_back(i);
  }
  std::sort(groups.begin(), groups.end(), [](const auto& a, const auto& b) { return a[0] < b[0]; });
  ParsedChunk merged;
  size_t dropped = 0;
  for (const std::vector<uint32_t>& group : groups) {
    const bool sized = merge_size == 0 || group.size() == merge_size;
    if (!sized || !self.Merge(group, dense_dims, &merged)) dropped += group.size();
  }
  self.chunks.clear();
  self.places.clear();
  self.labels.clear();
  self.occurrences = 0;
  self.shared_counts = {};
  std::vector<uint64_t> starts = self.StartsOf(merged);
  PBX_RETURN_IF_ERROR(self.CheckWeights(merged));
  if (merged.instances > 0) self.Hold(std::move(merged), std::move(starts));
  return dropped;
}

bool Instances::Impl::Merge(const std::vector<uint32_t>& group,
                            const std::vector<size_t>& dense_dims, ParsedChunk* merged) const {
  std::vector<uint32_t> lengths(slots);
  std::vector<const ParsedChunk*> lists(slots);
  std::vector<size_t> begins(slots);
  bool twice = false;  // two instances have the same slot: the id is dropped
  for (const uint32_t i : group) {
    const ParsedChunk& from = chunks[places[i].chunk].columns;
    EachList(places[i], [&](size_t s, size_t begin, size_t end) {
      if (begin == end) return;
      twice = twice || lengths[s] != 0;
      lengths[s] = static_cast<uint32_t>(end - begin);
      lists[s] = &from;
      begins[s] = begin;
    });
  }
  if (twice) return false;
  for (size_t s = 0; s < slots; ++s) {
    if (lists[s] != nullptr) merged->AddFeasigns(*lists[s], begins[s], lengths[s]);
  }
  merged->lengths.insert(merged->lengths.end(), lengths.begin(), lengths.end());
  float label = 0;
  size_t at = merged->dense.size();
  const auto dense_of = [&](uint32_t i) {
    return chunks[places[i].chunk].columns.dense.data() + places[i].row * width;
  };
  merged->dense.insert(merged->dense.end(), dense_of(group[0]), dense_of(group[0]) + width);
  for (const uint32_t i : group) {
    if (labels[i] != 0) label = labels[i];
    const float* from = dense_of(i);
    float* to = merged->dense.data() + at;
    for (const size_t dim : dense_dims) {
      if (std::any_of(from, from + dim, [](float v) { return v != 0; })) {
        std::copy_n(from, dim, to);
      }
      from += dim;
      to += dim;
    }
  }
  ++merged->instances;
  merged->labels.push_back(label);
  merged->tags.AddRow(chunks[places[group[0]].chunk].columns.tags, places[group[0]].row);
  return true;
}

uint64_t Instances::Impl::FirstFeasign(Place place, size_t slot) const {
  const Chunk& chunk = chunks[place.chunk];
  uint64_t first = 0;
  EachList(place, [&](size_t s, size_t begin, size_t end) {
    if (s != slot || begin == end) return;
    first = state == State::kIndexed ? FeasignOf(keys[static_cast<size_t>(chunk.positions[begin])])
                                     : chunk.columns.feasigns[begin];
  });
  return first;
}

Status Instances::ArrangeBy(Order order, uint64_t seed, size_t slot) {
  Impl& self = *impl_;
  self.RestorePlaces();
  const bool viewed = order == Order::kSearchId || order == Order::kPageViews;
  const size_t n = size();
  if (order == Order::kInsId && n > 0) {
    PBX_RETURN_IF_ERROR(CheckTag(self.tags.ins_id, "shuffle by ins_id", "ins_id", kIds));
  }
  if (viewed && n > 0) {
    PBX_RETURN_IF_ERROR(CheckTag(self.tags.log_key, "order by search id", "log key", kLogKeys));
  }
  if (order == Order::kSlot && slot >= self.slots) {
    return Error(Code::kInvalidArgument, "shuffle by slot %zu, but there are %zu sparse slots",
                 slot, self.slots);
  }
  std::vector<Item> items(n);
  for (size_t i = 0; i < n; ++i) items[i] = {0, self.places[i], self.labels[i]};
  if (!std::is_sorted(items.begin(), items.end(), InFileOrder)) {
    std::sort(items.begin(), items.end(), InFileOrder);
  }
  for (size_t i = 0; i < n; ++i) {
    Item& item = items[i];
    const TagColumns& tags = self.chunks[item.place.chunk].columns.tags;
    const size_t row = item.place.row;
    switch (order) {
      case Order::kFile:
      case Order::kShuffled: break;
      case Order::kInsId: item.sort = Scatter(seed, HashOf(tags.ins_ids[row])); break;
      case Order::kSearchId: item.sort = Scatter(seed, tags.log_keys[row].search_id); break;
      case Order::kPageViews: item.sort = tags.log_keys[row].search_id; break;
      case Order::kSlot: {
        const uint64_t feasign = self.FirstFeasign(item.place, slot);
        // An instance without a feasign is a group by itself, with its number as key.
        item.sort = Scatter(seed, feasign != 0 ? feasign : Mix(~static_cast<uint64_t>(i)));
        break;
      }
    }
  }
  if (order == Order::kShuffled) {
    Permute(n, seed, [&](size_t i, size_t j) { std::swap(items[i], items[j]); });
  } else if (order != Order::kFile) {
    std::stable_sort(items.begin(), items.end(), BySort);
  }
  for (size_t i = 0; i < n; ++i) {
    self.places[i] = items[i].place;
    self.labels[i] = items[i].label;
  }
  if (self.state == Impl::State::kAppending) self.state = Impl::State::kShuffled;
  return Status::Ok();
}

Status Instances::ArrangePlaces(const uint32_t* order, size_t size) {
  Impl& self = *impl_;
  PBX_RETURN_IF_ERROR(ArrangeBy(Order::kFile, 0));
  const size_t n = self.places.size();
  if (size > 0 && *std::max_element(order, order + size) >= n) {
    return Error(Code::kInvalidArgument, "order: expected numbers below %zu", n);
  }
  const std::vector<Place> of = std::move(self.places);
  self.file_labels = std::move(self.labels);
  self.places.clear();
  self.labels.clear();
  for (size_t i = 0; i < size; ++i) {
    self.places.push_back(of[order[i]]);
    self.labels.push_back(self.file_labels[order[i]]);
  }
  return Status::Ok();
}

void Instances::Impl::RestorePlaces() {
  if (file_labels.empty()) return;
  places.clear();
  for (uint32_t number = 0; number < chunks.size(); ++number) {
    const uint32_t rows = static_cast<uint32_t>(chunks[number].columns.instances);
    for (uint32_t row = 0; row < rows; ++row) places.push_back({number, row});
  }
  labels = std::move(file_labels);
  file_labels.clear();
}

void Instances::Impl::AppendTo(Place place, float label, ParsedChunk* to) const {
  const ParsedChunk& from = chunks[place.chunk].columns;
  ++to->instances;
  to->labels.push_back(label);
  const auto add = [](const auto& values, size_t begin, size_t end, auto* column) {
    const auto first = values.begin();
    column->insert(column->end(), first + static_cast<std::ptrdiff_t>(begin),
                   first + static_cast<std::ptrdiff_t>(end));
  };
  add(from.dense, place.row * width, (place.row + 1) * width, &to->dense);
  add(from.lengths, place.row * slots, (place.row + 1) * slots, &to->lengths);
  EachList(place,
           [&](size_t, size_t begin, size_t end) { to->AddFeasigns(from, begin, end - begin); });
}

Result<ParsedChunk> Instances::Gather(const uint32_t* numbers, size_t size) const {
  const Impl& self = *impl_;
  if (self.state == Impl::State::kIndexed) {
    return Error(Code::kFailedPrecondition, "Gather was called after Index; call it before");
  }
  const std::vector<uint64_t> firsts = self.FirstNumbers();
  std::vector<float> by_number = self.file_labels;
  if (by_number.empty()) {
    by_number.resize(self.labels.size());
    const std::vector<uint32_t> placed = Numbers();
    for (size_t i = 0; i < placed.size(); ++i) by_number[placed[i]] = self.labels[i];
  }
  ParsedChunk gathered;
  for (size_t i = 0; i < size; ++i) {
    if (numbers[i] >= by_number.size()) {
      return Error(Code::kInvalidArgument, "instance %u, but there are %zu", numbers[i],
                   by_number.size());
    }
    const auto chunk = std::upper_bound(firsts.begin(), firsts.end(), numbers[i]) - 1;
    self.AppendTo(
        {static_cast<uint32_t>(chunk - firsts.begin()), static_cast<uint32_t>(numbers[i] - *chunk)},
        by_number[numbers[i]], &gathered);
  }
  return gathered;
}

Result<std::vector<size_t>> Instances::PageViewStarts() const {
  const Impl& self = *impl_;
  const size_t n = size();
  std::vector<size_t> starts;
  if (n > 0) {
    PBX_RETURN_IF_ERROR(CheckTag(self.tags.log_key, "page views", "log key", kLogKeys));
  }
  for (size_t i = 0; i < n; ++i) {
    if (i == 0 || self.LogKeyOf(i).search_id != self.LogKeyOf(i - 1).search_id) starts.push_back(i);
  }
  starts.push_back(n);
  return starts;
}

Status Instances::RankOffsets(size_t begin, size_t end, size_t max_rank,
                              std::vector<int32_t>* out) const {
  const Impl& self = *impl_;
  PBX_RETURN_IF_ERROR(self.CheckRange(begin, end));
  const size_t width = 2 * max_rank + 1;
  out->assign((end - begin) * width, -1);
  if (begin == end) return Status::Ok();
  PBX_RETURN_IF_ERROR(CheckTag(self.tags.log_key, "set_rank_offset", "log key", kLogKeys));
  for (size_t first = begin; first < end;) {
    size_t last = first + 1;
    const uint64_t view = self.LogKeyOf(first).search_id;
    while (last < end && self.LogKeyOf(last).search_id == view) ++last;
    for (size_t i = first; i < last; ++i) {
      const int32_t own = RankOf(self.LogKeyOf(i), max_rank);
      if (own < 0) continue;
      int32_t* const row = out->data() + (i - begin) * width;
      row[0] = own;
      for (size_t k = first; k < last; ++k) {
        const int32_t rank = RankOf(self.LogKeyOf(k), max_rank);
        if (rank < 0) continue;
        row[2 * rank - 1] = rank;
        row[2 * rank] = static_cast<int32_t>(k - begin);
      }
    }
    first = last;
  }
  return Status::Ok();
}

Status Instances::ReplaceSlots(const std::vector<size_t>& slots, size_t pool_size, uint64_t seed) {
  Impl& self = *impl_;
  PBX_RETURN_IF_ERROR(self.CheckIndexed("ReplaceSlots"));
  for (const size_t slot : slots) {
    if (slot >= self.slots) {
      return Error(Code::kInvalidArgument, "slot %zu, but there are %zu sparse slots", slot,
                   self.slots);
    }
  }
  if (pool_size == 0 && !slots.empty()) {
    return Error(Code::kInvalidArgument, "a pool of 0 instances, expected at least 1");
  }
  self.replaced.clear();
  for (Chunk& chunk : self.chunks) std::vector<Place>().swap(chunk.donors);
  if (slots.empty() || size() == 0) return Status::Ok();
  const feed::Donors drawn = feed::DrawDonors(size(), pool_size, seed);
  const std::vector<uint64_t> firsts = self.FirstNumbers();
  std::vector<Place> pool;
  for (const uint32_t number : drawn.pool) {
    const auto chunk = std::upper_bound(firsts.begin(), firsts.end(), number) - 1;
    pool.push_back(
        {static_cast<uint32_t>(chunk - firsts.begin()), static_cast<uint32_t>(number - *chunk)});
  }
  const uint32_t* of = drawn.of.data();
  for (Chunk& chunk : self.chunks) {
    chunk.donors.resize(chunk.columns.instances);
    for (Place& donor : chunk.donors) donor = pool[*of++];
  }
  self.replaced.assign(self.slots, 0);
  for (const size_t slot : slots) self.replaced[slot] = 1;
  return Status::Ok();
}

Status Instances::FeedFrom(const std::vector<size_t>& slots, const uint32_t* donors, size_t size) {
  Impl& self = *impl_;
  PBX_RETURN_IF_ERROR(self.CheckIndexed("FeedFrom"));
  bool fits = size == self.places.size();
  for (size_t i = 0; fits && i < size; ++i) fits = donors[i] < size;
  for (const size_t slot : slots) fits = fits && slot < self.slots;
  if (!fits) {
    return Error(Code::kInvalidArgument, "donors: expected one of %zu instances for each of them",
                 self.places.size());
  }
  for (Chunk& chunk : self.chunks) chunk.donors.resize(chunk.columns.instances);
  for (size_t i = 0; i < size; ++i) {
    self.chunks[self.places[i].chunk].donors[self.places[i].row] = self.places[donors[i]];
  }
  self.replaced.assign(self.slots, 0);
  for (const size_t slot : slots) self.replaced[slot] = 1;
  return Status::Ok();
}

// (chunks) the number of the first instance of each chunk, in file order.
std::vector<uint64_t> Instances::Impl::FirstNumbers() const {
  std::vector<uint64_t> firsts;
  uint64_t next = 0;
  for (const Chunk& chunk : chunks) {
    firsts.push_back(next);
    next += chunk.columns.instances;
  }
  return firsts;
}

std::vector<uint32_t> Instances::Numbers() const {
  const std::vector<uint64_t> firsts = impl_->FirstNumbers();
  std::vector<uint32_t> numbers;
  numbers.reserve(size());
  for (const Place place : impl_->places) {
    numbers.push_back(static_cast<uint32_t>(firsts[place.chunk] + place.row));
  }
  return numbers;
}

const TagSpec& Instances::tags() const { return impl_->tags; }
std::string_view Instances::ins_id(size_t i) const { return impl_->InsIdOf(i); }
std::string_view Instances::content(size_t i) const {
  return impl_->TagsOf(i).contents[impl_->places[i].row];
}
const LogKey& Instances::log_key(size_t i) const { return impl_->LogKeyOf(i); }

}  // namespace pbx
