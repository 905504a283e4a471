#include "store/mem_tier.h"

#include <algorithm>
#include <utility>

namespace pbx {
namespace {

constexpr size_t kMaxRanges = 64;
// With this many rows, the shares of ranges differ by 2 % at most.
constexpr size_t kMinRangeRows = 32768;
constexpr size_t kMinParallelKeys = 16384;

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// The number of ranges and rows, and where each array lies in the block of memory.
struct Shape {
  Shape(size_t wanted_rows, size_t row_bytes)
      : ranges(std::clamp<size_t>(wanted_rows / kMinRangeRows, 1, kMaxRanges)),
        range_rows(wanted_rows / ranges),
        range_buckets(range_rows * 13 / 10 / MemBucket::kSlots + 1),
        range_regions(MemArena::RegionsOf(range_buckets)),
        numbers_at(ranges * range_buckets * sizeof(MemBucket)),
        regions_at(numbers_at + ranges * range_buckets * 8 * sizeof(uint32_t)),
        rows_at(RoundUp(regions_at + ranges * range_regions * sizeof(MemArena::Region), 64)),
        end(rows_at + ranges * range_rows * row_bytes) {}

  // Whole pages, and the MemRange objects.
  size_t bytes() const { return RoundUp(end, Buffer::kSmallPage) + ranges * MemRange::kBytes; }

  size_t ranges, range_rows, range_buckets, range_regions;
  size_t numbers_at, regions_at, rows_at, end;
};

}  // namespace

Result<std::unique_ptr<MemTier>> MemTier::Open(uint32_t row_bytes, uint64_t budget_bytes,
                                               KeyRange keys) {
  if (budget_bytes < kMinBudgetBytes) {
    return Error(Code::kInvalidArgument, "mem.budget_bytes: %llu, expected at least %llu",
                 static_cast<unsigned long long>(budget_bytes),
                 static_cast<unsigned long long>(kMinBudgetBytes));
  }
  if (keys.low > keys.high) {
    return Error(Code::kInvalidArgument, "MEM tier: the first key, %llu, is above the last, %llu",
                 static_cast<unsigned long long>(keys.low),
                 static_cast<unsigned long long>(keys.high));
  }
  size_t rows = std::min<size_t>(budget_bytes / row_bytes, MemArena::kNoRow - 1);
  while (rows > 0 && Shape(rows, row_bytes).bytes() > budget_bytes) {
    const size_t above = Shape(rows, row_bytes).bytes() - budget_bytes;
    rows -= std::min(rows, above / (row_bytes + 32) + 1);
  }
  if (rows == 0) {
    return Error(Code::kInvalidArgument,
                 "mem.budget_bytes: %llu is too little for a row of %u bytes",
                 static_cast<unsigned long long>(budget_bytes), row_bytes);
  }
  const Shape shape(rows, row_bytes);
  std::unique_ptr<MemTier> tier(new MemTier(budget_bytes));
  Result<Buffer> memory = Buffer::Allocate(shape.end);
  if (!memory.ok()) return memory.status();
  tier->memory_ = std::move(memory.value());
  tier->max_rows_ = shape.ranges * shape.range_rows;
  tier->range_buckets_ = shape.range_buckets;
  char* const start = tier->memory_.data();
  MemArena& arena = tier->arena_;
  arena.space = MemKeySpace(keys.low, keys.high, shape.ranges * shape.range_buckets);
  arena.buckets = reinterpret_cast<MemBucket*>(start);
  arena.row_numbers = reinterpret_cast<uint32_t*>(start + shape.numbers_at);
  arena.regions = reinterpret_cast<MemArena::Region*>(start + shape.regions_at);
  arena.rows = start + shape.rows_at;
  arena.row_bytes = row_bytes;
  arena.region_share =
      (shape.range_rows * MemArena::kRegionBuckets + shape.range_buckets - 1) / shape.range_buckets;
  tier->ranges_.reserve(shape.ranges);
  for (size_t i = 0; i < shape.ranges; ++i) {
    tier->ranges_.emplace_back(&arena, i * shape.range_buckets, shape.range_buckets,
                               i * shape.range_regions, static_cast<uint32_t>(i * shape.range_rows),
                               static_cast<uint32_t>((i + 1) * shape.range_rows));
  }
  return Result<std::unique_ptr<MemTier>>(std::move(tier));
}

// Calls work(range, begin, end) for each range that has keys [begin, end) of the batch.
template <typename Work>
void MemTier::ForRanges(const uint64_t* keys, size_t n, ThreadPool* pool, const Work& work) const {
  struct Part {
    size_t range, begin, end;
  };
  std::vector<Part> parts;
  for (size_t begin = 0; begin < n;) {
    const size_t range = arena_.space.Home(keys[begin]) / range_buckets_;
    const size_t bound = (range + 1) * range_buckets_;
    const uint64_t* end = std::partition_point(
        keys + begin, keys + n, [&](uint64_t key) { return arena_.space.Home(key) < bound; });
    parts.push_back({range, begin, static_cast<size_t>(end - keys)});
    begin = parts.back().end;
  }
  const auto run = [&](size_t i) { work(&ranges_[parts[i].range], parts[i].begin, parts[i].end); };
  if (pool != nullptr && n >= kMinParallelKeys) {
    pool->ParallelFor(parts.size(), run);
  } else {
    for (size_t i = 0; i < parts.size(); ++i) run(i);
  }
}

template <bool kRemove>
void MemTier::Lookup(const uint64_t* keys, size_t n, char* rows, uint8_t* found, ThreadPool* pool) {
  ForRanges(keys, n, pool, [&](MemRange* range, size_t begin, size_t end) {
    const auto known = std::count(found + begin, found + end, 0);
    hits_ += range->Lookup<kRemove>(keys + begin, end - begin, rows + begin * arena_.row_bytes,
                                    found + begin);
    keys_asked_ += static_cast<uint64_t>(known);
  });
}

void MemTier::Find(const uint64_t* keys, size_t n, uint8_t* found) const {
  ForRanges(keys, n, nullptr, [&](const MemRange* range, size_t begin, size_t end) {
    range->Find(keys + begin, end - begin, found + begin);
  });
}

Status MemTier::Read(const uint64_t* keys, size_t n, char* rows, uint8_t* found) {
  Lookup<false>(keys, n, rows, found, nullptr);
  return Status::Ok();
}

Status MemTier::Take(const uint64_t* keys, size_t n, char* rows, uint8_t* found, ThreadPool* pool) {
  Lookup<true>(keys, n, rows, found, pool);
  return Status::Ok();
}

// Called before anything is written. A range with too few rows borrows from others, in an order
// that depends only on the batch.
Status MemTier::CheckRoom(const uint64_t* keys, size_t n) {
  std::vector<size_t> needed(ranges_.size());
  bool enough = true;
  for (size_t i = 0; i < ranges_.size(); ++i) needed[i] = ranges_[i].dirty();
  ForRanges(keys, n, nullptr, [&](MemRange* range, size_t begin, size_t end) {
    enough &= range->dirty() + (end - begin) <= std::min(range->owned(), range->slots());
  });
  if (enough) return Status::Ok();
  ForRanges(keys, n, nullptr, [&](MemRange* range, size_t begin, size_t end) {
    needed[static_cast<size_t>(range - ranges_.data())] = range->Needed(keys + begin, end - begin);
  });
  size_t dirty = 0, crowded = 0;
  for (size_t i = 0; i < ranges_.size(); ++i) {
    dirty += needed[i];
    if (needed[i] > ranges_[i].slots()) crowded = std::max(crowded, needed[i]);
  }
  if (dirty > max_rows_) {
    return Error(Code::kOutOfSpace,
                 "mem.budget_bytes: %zu rows are not on disk, and %llu bytes hold %zu; raise "
                 "it, or give the table an SSD folder",
                 dirty, static_cast<unsigned long long>(budget_), max_rows_);
  }
  if (crowded != 0) {
    return Error(Code::kOutOfSpace,
                 "mem.budget_bytes: %zu rows that are not on disk fall into one of %zu ranges of "
                 "keys, and %llu bytes hold %zu there; raise it, or give the table an SSD folder",
                 crowded, ranges_.size(), static_cast<unsigned long long>(budget_),
                 ranges_[0].slots());
  }
  for (size_t i = 0; i < ranges_.size(); ++i) {
    for (size_t step = 1; needed[i] > ranges_[i].owned(); ++step) {
      const size_t from = (i + step) % ranges_.size();
      const size_t owned = ranges_[from].owned();
      const size_t spare = owned - std::min(owned, needed[from]);
      ranges_[from].Lend(std::min(spare, needed[i] - ranges_[i].owned()), &ranges_[i]);
    }
  }
  return Status::Ok();
}

Status MemTier::Put(const uint64_t* keys, MemRows rows, size_t n, bool dirty, ThreadPool* pool) {
  if (dirty) PBX_RETURN_IF_ERROR(CheckRoom(keys, n));
  ForRanges(keys, n, pool, [&](MemRange* range, size_t begin, size_t end) {
    range->Insert(keys + begin, rows.From(begin, arena_.row_bytes), end - begin, dirty);
  });
  return Status::Ok();
}

Status MemTier::Write(const uint64_t* keys, const char* rows, size_t n) {
  return Put(keys, {rows, nullptr}, n, true, nullptr);
}

Status MemTier::Insert(const uint64_t* keys, const char* const* row_pointers, size_t n, bool clean,
                       ThreadPool* pool) {
  return Put(keys, {nullptr, row_pointers}, n, !clean, pool);
}

Status MemTier::Visit(const std::function<Status(uint64_t key, const char* row)>& visit) {
  std::vector<std::pair<uint64_t, uint32_t>> rows;
  for (const MemRange& range : ranges_) {
    rows.clear();
    range.List(&rows);
    std::sort(rows.begin(), rows.end());
    for (const auto& [key, row] : rows) PBX_RETURN_IF_ERROR(visit(key, arena_.Row(row)));
  }
  return Status::Ok();
}

size_t MemTier::Sweep(const std::function<bool(uint64_t key, char* row)>& keep) {
  constexpr size_t kAtOnce = 4096;
  std::vector<char> taken(kAtOnce * arena_.row_bytes);
  std::vector<uint8_t> found;
  std::vector<std::pair<uint64_t, uint32_t>> rows;
  std::vector<uint64_t> gone;
  size_t swept = 0;
  for (MemRange& range : ranges_) {
    rows.clear();
    gone.clear();
    range.List(&rows);
    for (const auto& [key, row] : rows) {
      if (!keep(key, arena_.Row(row))) gone.push_back(key);
    }
    std::sort(gone.begin(), gone.end());
    for (size_t i = 0; i < gone.size(); i += kAtOnce) {
      const size_t n = std::min(kAtOnce, gone.size() - i);
      found.assign(n, 0);
      swept += range.Lookup<true>(gone.data() + i, n, taken.data(), found.data());
    }
  }
  return swept;
}

size_t MemTier::rows() const {
  size_t rows = 0;
  for (const MemRange& range : ranges_) rows += range.live();
  return rows;
}

size_t MemTier::dirty_rows() const {
  size_t rows = 0;
  for (const MemRange& range : ranges_) rows += range.dirty();
  return rows;
}

// The pages of the index and of rows that were used at some time.
size_t MemTier::bytes() const {
  const size_t size = RoundUp(memory_.size(), Buffer::kSmallPage);
  const size_t page = size < Buffer::kHugePage ? Buffer::kSmallPage : Buffer::kHugePage;
  const size_t index = static_cast<size_t>(arena_.rows - memory_.data());
  size_t end = std::min(size, RoundUp(index, page));
  size_t bytes = end + ranges_.size() * MemRange::kBytes;
  for (const MemRange& range : ranges_) {
    const size_t first = index + range.first_row() * arena_.row_bytes;
    const size_t last = index + range.next_row() * arena_.row_bytes;
    const size_t begin = std::max(end, first / page * page);
    if (first == last || last <= begin) continue;
    end = std::min(size, RoundUp(last, page));
    bytes += end - begin;
  }
  return bytes;
}

MemCounters MemTier::counters() const {
  MemCounters counters{keys_asked_, hits_, 0, 0};
  for (const MemRange& range : ranges_) {
    counters.evicted += range.evicted();
    counters.not_admitted += range.not_admitted();
  }
  return counters;
}

}  // namespace pbx
