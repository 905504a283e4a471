#include "serve/block_index.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace pbx {

std::vector<TagBucket> BuildIndex(const BlockView& block, uint64_t number, int bits) {
  const uint32_t rows = block.rows();
  std::vector<TagBucket> buckets(BucketsFor(rows) + 1);
  uint64_t at = 0;  // buckets whose first row is set
  for (uint32_t i = 0; i < rows; ++i) {
    const uint64_t key = block.key(i);
    if (BlockOf(key, bits) != number || (i != 0 && key <= block.key(i - 1))) return {};
    for (const uint64_t own = BucketOf(key, bits, rows); at <= own; ++at) buckets[at].first = i;
    TagBucket& bucket = buckets[at - 1];
    if (bucket.count < TagBucket::kRoom) {
      bucket.tags[bucket.count++] = TagBucket::TagOf(key);
    } else {
      bucket.count = TagBucket::kCrowded;
    }
  }
  for (; at < buckets.size(); ++at) buckets[at].first = rows;
  return buckets;
}

Result<const char*> Room::Keep(const void* from, size_t bytes) {
  const size_t lines = (bytes + 63) / 64 * 64;
  if (chunks_.empty() || chunks_.back().size() - used_ < lines) {
    Result<Buffer> chunk = Buffer::Allocate(std::max(lines, chunk_bytes_));
    PBX_RETURN_IF_ERROR(chunk.status());
    chunks_.push_back(std::move(chunk.value()));
    used_ = 0;
  }
  char* const at = chunks_.back().data() + used_;
  std::memcpy(at, from, bytes);
  used_ += lines;
  return Result<const char*>(at);
}

uint32_t FindIn(const TagBucket* bucket, const BlockView& block, uint64_t key) {
  if (bucket->count != TagBucket::kCrowded) {
    for (uint32_t left = bucket->Matches(key); left != 0; left &= left - 1) {
      const uint32_t at = bucket->first + static_cast<uint32_t>(__builtin_ctz(left));
      if (block.key(at) == key) return at;
    }
    return block.rows();
  }
  uint32_t low = bucket->first, high = bucket[1].first;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (block.key(middle) < key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < bucket[1].first && block.key(low) == key ? low : block.rows();
}

}  // namespace pbx
