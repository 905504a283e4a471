#include "base/sorted_index.h"

#include "base/prefetch.h"

namespace pbx {
namespace {

// A lookup makes two dependent memory accesses: the directory, then the keys. Each is prefetched
// this many queries before it is needed.
constexpr size_t kAhead = 16;

}  // namespace

SortedIndex::SortedIndex(const uint64_t* keys, size_t n) : keys_(keys), n_(n) {
  if (n == 0) return;
  int bits = 1;
  while (bits < 31 && (size_t{1} << bits) < n) ++bits;
  shift_ = 64 - bits;
  starts_.resize((size_t{1} << bits) + 1);
  size_t bucket = 0;
  for (size_t i = 0; i < n; ++i) {
    const size_t mine = keys[i] >> shift_;
    while (bucket < mine) starts_[++bucket] = static_cast<uint32_t>(i);
  }
  while (bucket + 1 < starts_.size()) starts_[++bucket] = static_cast<uint32_t>(n);
}

void SortedIndex::FindBatch(const uint64_t* queries, size_t n, int32_t* out) const {
  if (n_ == 0) {
    for (size_t i = 0; i < n; ++i) out[i] = -1;
    return;
  }
  for (size_t i = 0; i < n; ++i) {
    if (i + 2 * kAhead < n) Prefetch(&starts_[queries[i + 2 * kAhead] >> shift_]);
    if (i + kAhead < n) Prefetch(keys_ + starts_[queries[i + kAhead] >> shift_]);
    out[i] = Find(queries[i]);
  }
}

}  // namespace pbx
