#include "store/hbm_tier.h"

#include <cstring>
#include <utility>

#include "base/sorted_merge.h"

namespace pbx {

Result<std::unique_ptr<HbmTier>> HbmTier::Build(uint32_t row_bytes, std::vector<uint64_t> keys) {
  if (keys.size() > INT32_MAX) {
    return Error(Code::kInvalidArgument,
                 "pass table: %zu rows, expected at most %d; use smaller passes", keys.size(),
                 INT32_MAX);
  }
  Result<Buffer> rows = Buffer::Allocate(keys.size() * size_t{row_bytes});
  if (!rows.ok()) return rows.status();
  auto table = std::make_unique<HbmTier>(row_bytes);
  table->keys_ = std::move(keys);
  table->rows_ = std::move(rows.value());
  table->index_ = SortedIndex(table->keys_.data(), table->keys_.size());
  return Result<std::unique_ptr<HbmTier>>(std::move(table));
}

Status HbmTier::Read(const uint64_t* keys, size_t n, char* rows, uint8_t* found) {
  ForEachCommon(keys, n, keys_.data(), keys_.size(), [&](size_t i, size_t j) {
    if (found[i] != 0) return;
    std::memcpy(rows + i * row_bytes_, row(j), row_bytes_);
    found[i] = 1;
  });
  return Status::Ok();
}

Status HbmTier::Write(const uint64_t* keys, const char* rows, size_t n) {
  std::vector<uint64_t> merged;
  merged.reserve(keys_.size() + n);
  std::vector<const char*> source;
  source.reserve(keys_.size() + n);
  size_t i = 0, j = 0;
  while (i < n || j < keys_.size()) {
    const bool from_new = j == keys_.size() || (i < n && keys[i] <= keys_[j]);
    if (from_new && j < keys_.size() && keys[i] == keys_[j]) ++j;  // the newer row wins
    merged.push_back(from_new ? keys[i] : keys_[j]);
    source.push_back(from_new ? rows + i * row_bytes_ : row(j));
    ++(from_new ? i : j);
  }
  Result<std::unique_ptr<HbmTier>> built = Build(row_bytes_, std::move(merged));
  if (!built.ok()) return built.status();
  for (size_t k = 0; k < source.size(); ++k)
    std::memcpy(built.value()->row(k), source[k], row_bytes_);
  *this = std::move(*built.value());
  return Status::Ok();
}

Status HbmTier::Visit(const std::function<Status(uint64_t key, const char* row)>& visit) {
  for (size_t i = 0; i < keys_.size(); ++i) PBX_RETURN_IF_ERROR(visit(keys_[i], row(i)));
  return Status::Ok();
}

}  // namespace pbx
