// SortedIndex: finds uniform 64-bit keys in a sorted array. A directory over the top bits has about
// one key per bucket, so a lookup is one directory access and a scan of a few neighbours. No hash
// table is needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pbx {

class SortedIndex {
 public:
  SortedIndex() = default;
  // keys: (n) strictly ascending, n <= 2^31 - 1. They must outlive the index.
  SortedIndex(const uint64_t* keys, size_t n);

  // Position of key, or -1.
  int32_t Find(uint64_t key) const {
    if (n_ == 0) return -1;
    const size_t bucket = key >> shift_;
    uint32_t i = starts_[bucket];
    const uint32_t end = starts_[bucket + 1];
    while (i < end && keys_[i] < key) ++i;
    return i < end && keys_[i] == key ? static_cast<int32_t>(i) : -1;
  }

  // out[i] = Find(queries[i]), with prefetching. queries: (n) in any order.
  void FindBatch(const uint64_t* queries, size_t n, int32_t* out) const;

  size_t bytes() const { return starts_.size() * sizeof(uint32_t); }

 private:
  const uint64_t* keys_ = nullptr;
  size_t n_ = 0;
  int shift_ = 63;
  std::vector<uint32_t> starts_;
};

}  // namespace pbx
