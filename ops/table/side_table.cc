#include "table/side_table.h"

#include <algorithm>
#include <cstring>

#include "base/hash.h"
#include "base/prefetch.h"

namespace pbx {
namespace {

constexpr size_t kAhead = 32;              // distance of prefetching rows
constexpr size_t kChunkFloats = 64 << 10;  // least work per thread
constexpr size_t kChunkKeys = 4096;
constexpr char kZeroKey[] = "-";

// Prefetches the first and last cache line of a row; for a longer row the processor's own
// prefetcher does the rest.
PBX_INLINE void PrefetchRow(const float* row, size_t dim) {
  Prefetch(row);
  Prefetch(row + dim - 1);
}

void StoreMin(std::atomic<size_t>* least, size_t value) {
  size_t seen = least->load(std::memory_order_relaxed);
  while (value < seen && !least->compare_exchange_weak(seen, value)) {}
}

}  // namespace

Result<std::shared_ptr<SideTable>> SideTable::Make(const SideTableConfig& config,
                                                   std::vector<SideRows> parts) {
  if (config.dim < 1 || config.threads < 1) {
    return Error(Code::kInvalidArgument, "side table '%s': dim %zu, threads %d, expected 1 or more",
                 config.name.c_str(), config.dim, config.threads);
  }
  std::shared_ptr<SideTable> table(new SideTable(config));
  PBX_RETURN_IF_ERROR(table->CheckParts(parts));
  const size_t row_bytes = config.dim * sizeof(float);
  table->rows_ = config.keyed ? 1 : 0;
  for (const SideRows& part : parts) table->rows_ += part.size(config.dim);
  if (table->rows_ > kMaxRows) {
    return Error(Code::kInvalidArgument, "side table '%s': %zu rows, expected at most %zu",
                 config.name.c_str(), table->rows_, kMaxRows);
  }
  if (config.keyed) PBX_RETURN_IF_ERROR(table->IndexKeys(parts));
  Result<Buffer> buffer = Buffer::Allocate(table->rows_ * row_bytes);
  if (!buffer.ok()) return buffer.status();
  table->values_ = std::move(buffer.value());  // zeroed; row 0 of a keyed table stays zero
  char* at = table->values_.data() + (config.keyed ? row_bytes : 0);
  for (SideRows& part : parts) {
    const size_t bytes = part.values.size() * sizeof(float);
    if (bytes != 0) std::memcpy(at, part.values.data(), bytes);
    at += bytes;
    part = SideRows();  // otherwise all rows would be in memory twice
  }
  return table;
}

Status SideTable::CheckParts(const std::vector<SideRows>& parts) const {
  for (const SideRows& part : parts) {
    const size_t rows = part.size(config_.dim);
    if (rows * config_.dim == part.values.size() &&
        part.key_ends.size() == (config_.keyed ? rows : 0)) {
      continue;
    }
    return Error(
        Code::kInvalidArgument,
        "side table '%s': %zu values and %zu keys, expected rows of %zu values with %s key",
        config_.name.c_str(), part.values.size(), part.key_ends.size(), config_.dim,
        config_.keyed ? "one" : "no");
  }
  return Status::Ok();
}

size_t SideTable::Place(std::string_view key) const {
  const size_t mask = index_.size() - 1;
  size_t at = HashBytes(key.data(), key.size(), 0) & mask;
  while (index_[at] != 0 && keys_.key(index_[at] - 1) != key) at = (at + 1) & mask;
  return at;
}

Status SideTable::IndexKeys(const std::vector<SideRows>& parts) {
  size_t size = 16;
  while (size < rows_ * 2) size *= 2;
  index_.assign(size, 0);
  keys_.key_ends.reserve(rows_);
  const auto add = [this](std::string_view key) {
    uint32_t& entry = index_[Place(key)];
    if (entry != 0) return false;
    keys_.key_bytes.append(key);
    keys_.key_ends.push_back(keys_.key_bytes.size());
    entry = static_cast<uint32_t>(keys_.key_ends.size());
    return true;
  };
  add(kZeroKey);
  for (const SideRows& part : parts) {
    for (size_t i = 0; i < part.key_ends.size(); ++i) {
      const std::string_view key = part.key(i);
      if (add(key)) continue;
      size_t before = index_[Place(key)] - 1;  // row of the same key; 0 is the row of zeros
      std::string first = "row 0 of every input table";
      for (const SideRows& other : parts) {
        if (before == 0) break;
        if (before <= other.key_ends.size()) {
          first = other.Where(before - 1);
          break;
        }
        before -= other.key_ends.size();
      }
      return Error(Code::kInvalidArgument,
                   "%s: key '%.200s' occurs twice, expected once: %s has it too",
                   part.Where(i).c_str(), std::string(key).c_str(), first.c_str());
    }
  }
  return Status::Ok();
}

Status SideTable::Gather(const int64_t* ids, size_t n, Stray stray, float* out) const {
  const size_t dim = config_.dim;
  const float* const rows = values();
  std::atomic<size_t> first_stray{n};
  const auto is_row = [&](int64_t id) { return static_cast<uint64_t>(id) < rows_; };
  const auto copy = [&](size_t begin, size_t end) {
    uint64_t strays = 0;
    for (size_t i = begin; i < end; ++i) {
      if (i + kAhead < end && is_row(ids[i + kAhead])) {
        PrefetchRow(rows + static_cast<size_t>(ids[i + kAhead]) * dim, dim);
      }
      size_t row = static_cast<size_t>(ids[i]);
      if (!is_row(ids[i])) {
        if (strays++ == 0) StoreMin(&first_stray, i);
        if (stray == Stray::kIsError) return;
        row = 0;
      }
      std::memcpy(out + i * dim, rows + row * dim, dim * sizeof(float));
    }
    if (strays != 0) strays_.fetch_add(strays, std::memory_order_relaxed);
  };
  if (rows_ == 0) {
    if (n != 0) first_stray = 0;
  } else {
    pool_.ParallelRanges(n, std::max<size_t>(1, kChunkFloats / dim), copy);
  }
  const size_t at = first_stray;
  if (at == n || (stray == Stray::kIsRow0 && rows_ != 0)) return Status::Ok();
  return Error(Code::kInvalidArgument,
               "side table '%s': id %lld at position %zu, expected a row in [0, %zu) of the open "
               "pass; is it from another pass or table?",
               config_.name.c_str(), static_cast<long long>(ids[at]), at, rows_);
}

size_t SideTable::RowsOf(const std::vector<std::string_view>& keys, int64_t* out) const {
  std::atomic<size_t> misses{0};
  pool_.ParallelRanges(keys.size(), kChunkKeys, [&](size_t begin, size_t end) {
    size_t missed = 0;
    for (size_t i = begin; i < end; ++i) {
      const uint32_t entry = index_[Place(keys[i])];
      if (entry == 0) ++missed;
      out[i] = entry == 0 ? 0 : entry - 1;
    }
    misses += missed;
  });
  return misses;
}

}  // namespace pbx
