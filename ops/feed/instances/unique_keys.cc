#include "feed/instances/unique_keys.h"

#include <algorithm>
#include <array>
#include <memory>

#include "row/feasign.h"

namespace pbx::feed {
namespace {

constexpr size_t kSpanSize = size_t{1} << 20;       // feasigns per task of the first two steps
constexpr size_t kPartitionSize = size_t{1} << 17;  // keys: two buffers of 1 MB fit into L2
constexpr int kMaxPartitionBits = 11;               // writing to more streams is slow
constexpr int kDigitBits = 11;

using Keys = std::unique_ptr<uint64_t[]>;  // a std::vector would be zeroed first

// Drops most repeats of the few feasigns that make up most of a click log, before they cost memory
// and sorting. The result depends on the span alone, so counting and writing agree.
class RecentFilter {
 public:
  bool Seen(uint64_t key) {
    uint64_t& place = recent_[key % kPlaces];
    const bool seen = place == key;
    place = key;
    return seen;
  }

 private:
  static constexpr size_t kPlaces = 2048;   // 16 KB
  std::array<uint64_t, kPlaces> recent_{};  // key 0 is feasign 0, which never occurs
};

// Calls keep(key) for the keys of a span that pass the filter.
template <typename Keep>
void EachKey(FeasignSpan span, Keep keep) {
  RecentFilter filter;
  for (size_t i = 0; i < span.size; ++i) {
    const uint64_t key = KeyOf(span.feasigns[i]);
    if (!filter.Seen(key)) keep(key);
  }
}

std::vector<FeasignSpan> CutSpans(const std::vector<FeasignSpan>& spans) {
  std::vector<FeasignSpan> cut;
  for (const FeasignSpan& span : spans) {
    for (size_t at = 0; at < span.size; at += kSpanSize) {
      cut.push_back({span.feasigns + at, std::min(kSpanSize, span.size - at)});
    }
  }
  return cut;
}

// Sorts keys that share their top `used_bits` bits and drops repeats. Returns the number of keys
// left. Two passes over the next 22 bits leave groups of equal digits, nearly always of one key. A
// group is sorted by comparison, so that keys made to collide cost n log n, not n^2.
size_t SortUnique(uint64_t* keys, uint64_t* scratch, size_t n, int used_bits) {
  const int shift = 64 - used_bits - 2 * kDigitBits;
  constexpr uint64_t kMask = (uint64_t{1} << kDigitBits) - 1;
  for (int pass = 0; pass < 2; ++pass) {
    const int digit = shift + pass * kDigitBits;
    std::array<size_t, kMask + 1> place{};
    for (size_t i = 0; i < n; ++i) ++place[keys[i] >> digit & kMask];
    size_t next = 0;
    for (size_t& p : place) {
      const size_t count = p;
      p = next;
      next += count;
    }
    for (size_t i = 0; i < n; ++i) scratch[place[keys[i] >> digit & kMask]++] = keys[i];
    std::swap(keys, scratch);
  }
  size_t kept = 0;
  for (size_t begin = 0, end = 0; begin < n; begin = end) {
    bool equal = true;
    for (end = begin + 1; end < n && keys[end] >> shift == keys[begin] >> shift; ++end) {
      equal = equal && keys[end] == keys[begin];
    }
    if (!equal) std::sort(keys + begin, keys + end);
    for (size_t i = begin; i < end; ++i) {
      if (i == begin || keys[i] != keys[i - 1]) keys[kept++] = keys[i];  // kept <= i
    }
  }
  return kept;
}

}  // namespace

std::vector<uint64_t> SortedUniqueKeys(const std::vector<FeasignSpan>& spans, ThreadPool* pool) {
  const std::vector<FeasignSpan> tasks = CutSpans(spans);
  size_t total = 0;
  for (const FeasignSpan& span : tasks) total += span.size;
  int bits = 0;
  while (bits < kMaxPartitionBits && total >> bits > kPartitionSize) ++bits;
  const size_t partitions = size_t{1} << bits;
  // Shifting by 64 is undefined, so one partition is a special case.
  const auto partition_of = [bits](uint64_t key) { return bits == 0 ? 0 : key >> (64 - bits); };

  // (tasks, partitions) where each task writes its keys of each partition.
  std::vector<size_t> places(tasks.size() * partitions);
  pool->ParallelFor(tasks.size(), [&](size_t task) {
    size_t* const counts = &places[task * partitions];
    EachKey(tasks[task], [&](uint64_t key) { ++counts[partition_of(key)]; });
  });
  std::vector<size_t> starts(partitions + 1);
  size_t next = 0;
  for (size_t p = 0; p < partitions; ++p) {
    starts[p] = next;
    for (size_t task = 0; task < tasks.size(); ++task) {
      const size_t count = places[task * partitions + p];
      places[task * partitions + p] = next;
      next += count;
    }
  }
  starts[partitions] = next;

  const Keys keys(new uint64_t[next]);
  pool->ParallelFor(tasks.size(), [&](size_t task) {
    size_t* const place = &places[task * partitions];
    EachKey(tasks[task], [&](uint64_t key) { keys[place[partition_of(key)]++] = key; });
  });

  std::vector<size_t> sizes(partitions);
  pool->ParallelFor(partitions, [&](size_t p) {
    const size_t n = starts[p + 1] - starts[p];
    const Keys scratch(new uint64_t[n]);
    sizes[p] = SortUnique(keys.get() + starts[p], scratch.get(), n, bits);
  });

  size_t unique = 0;
  std::vector<size_t> ends(partitions);
  for (size_t p = 0; p < partitions; ++p) ends[p] = unique += sizes[p];
  std::vector<uint64_t> result(unique);
  pool->ParallelFor(partitions, [&](size_t p) {
    std::copy_n(keys.get() + starts[p], sizes[p], result.data() + (ends[p] - sizes[p]));
  });
  return result;
}

}  // namespace pbx::feed
