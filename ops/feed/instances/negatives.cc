#include "feed/instances/negatives.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>
#include <utility>

#include "base/hash.h"

namespace pbx {
namespace {

// The columns of a chunk, with a place to read from and a place to write to.
class Rows {
 public:
  Rows(size_t sparse_slots, size_t dense_width, ParsedChunk* chunk)
      : slots_(sparse_slots), width_(dense_width), chunk_(*chunk) {}

  // Goes to the next row. False if its feasigns are beyond the end.
  bool Read(size_t row) {
    row_ = row;
    first_ += count_;
    const uint32_t* const lengths = chunk_.lengths.data() + row * slots_;
    count_ = std::accumulate(lengths, lengths + slots_, size_t{0});
    return count_ <= chunk_.feasigns.size() - first_;
  }

  uint64_t Hash(uint64_t seed) const {
    uint64_t hash = HashBytes(chunk_.dense.data() + row_ * width_, width_ * sizeof(float), seed);
    hash = HashBytes(chunk_.lengths.data() + row_ * slots_, slots_ * sizeof(uint32_t), hash);
    hash = HashBytes(chunk_.feasigns.data() + first_, count_ * sizeof(uint64_t), hash);
    if (chunk_.tags.ins_ids.size() == 0) return hash;
    const std::string_view id = chunk_.tags.ins_ids[row_];
    return HashBytes(id.data(), id.size(), hash);
  }

  void Keep() {
    Move(row_, 1, kept_, &chunk_.labels);
    Move(row_ * width_, width_, kept_ * width_, &chunk_.dense);
    Move(row_ * slots_, slots_, kept_ * slots_, &chunk_.lengths);
    Move(first_, count_, feasigns_, &chunk_.feasigns);
    tags_.AddRow(chunk_.tags, row_);
    ++kept_;
    feasigns_ += count_;
  }

  void Finish() {
    chunk_.instances = kept_;
    chunk_.labels.resize(kept_);
    chunk_.dense.resize(kept_ * width_);
    chunk_.lengths.resize(kept_ * slots_);
    chunk_.feasigns.resize(feasigns_);
    chunk_.tags = std::move(tags_);
  }

 private:
  template <typename Column>
  static void Move(size_t from, size_t n, size_t to, Column* column) {
    if (from != to) std::copy_n(column->data() + from, n, column->data() + to);
  }

  const size_t slots_, width_;
  ParsedChunk& chunk_;
  TagColumns tags_;
  size_t row_ = 0, first_ = 0, count_ = 0;  // the row that is read, and its feasigns
  size_t kept_ = 0, feasigns_ = 0;          // rows and feasigns that are kept so far
};

}  // namespace

Result<size_t> SampleNegatives(size_t sparse_slots, size_t dense_width, double rate, uint64_t seed,
                               ParsedChunk* chunk) {
  const size_t n = chunk->instances;
  if (!(rate > 0 && rate <= 1)) {
    return Error(Code::kInvalidArgument, "rate of negatives %g, expected one in (0, 1]", rate);
  }
  if (chunk->labels.size() != n || chunk->dense.size() != n * dense_width ||
      chunk->lengths.size() != n * sparse_slots || !chunk->tags.Fits(n)) {
    return Error(Code::kInvalidArgument,
                 "%zu instances have %zu labels, %zu dense values and %zu lengths; expected %zu, "
                 "%zu and %zu",
                 n, chunk->labels.size(), chunk->dense.size(), chunk->lengths.size(), n,
                 n * dense_width, n * sparse_slots);
  }
  if (rate >= 1) return size_t{0};
  const uint64_t bound = static_cast<uint64_t>(std::ldexp(rate, 64));
  Rows rows(sparse_slots, dense_width, chunk);
  for (size_t row = 0; row < n; ++row) {
    if (!rows.Read(row)) {
      return Error(Code::kInvalidArgument, "instance %zu has more feasigns than the chunk", row);
    }
    if (chunk->labels[row] != 0 || rows.Hash(seed) < bound) rows.Keep();
  }
  rows.Finish();
  return n - chunk->instances;
}

}  // namespace pbx
