// Histogram: the negatives and positives in each of n buckets. Memory and time are those of the
// buckets that samples fell into.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

namespace pbx {

template <typename Count>
struct Bucket {
  size_t index = 0;
  Count negative = 0, positive = 0;
  bool is_empty() const { return negative == 0 && positive == 0; }
};

template <typename Count>
class Histogram {
 public:
  explicit Histogram(size_t buckets)
      : size_(std::max<size_t>(buckets, 1)),
        counts_(static_cast<Counts*>(std::calloc(size_, sizeof(Counts)))),
        touched_((size_ + kBits - 1) / kBits) {
    if (counts_ == nullptr) throw std::bad_alloc();
  }

  size_t size() const { return size_; }

  void Add(size_t index, Count negative, Count positive) {
    counts_.get()[index].negative += negative;
    counts_.get()[index].positive += positive;
    touched_[index / kBits] |= uint64_t{1} << index % kBits;
  }

  // REQUIRES: the sizes are equal.
  void Merge(const Histogram& other) {
    for (const Bucket<Count>& one : other.buckets()) Add(one.index, one.negative, one.positive);
  }

  // Those that are not empty, ascending.
  std::vector<Bucket<Count>> buckets() const {
    std::vector<Bucket<Count>> found;
    for (size_t word = 0; word < touched_.size(); ++word) {
      for (uint64_t bits = touched_[word]; bits != 0; bits &= bits - 1) {
        const size_t index = word * kBits + static_cast<size_t>(__builtin_ctzll(bits));
        const Counts& counts = counts_.get()[index];
        const Bucket<Count> one{index, counts.negative, counts.positive};
        if (!one.is_empty()) found.push_back(one);
      }
    }
    return found;
  }

 private:
  static constexpr size_t kBits = 64;
  struct Counts {
    Count negative, positive;
  };
  struct Free {
    void operator()(Counts* counts) const { std::free(counts); }
  };
  size_t size_;
  std::unique_ptr<Counts[], Free> counts_;  // zero pages until samples fall into them
  std::vector<uint64_t> touched_;           // a bit for each bucket
};

}  // namespace pbx
