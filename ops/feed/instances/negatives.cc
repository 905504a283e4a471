#include "feed/instances/negatives.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hash.h"

namespace pbx {
namespace {

// The columns of a chunk, with a place to read from and a place to write to.
class Rows {
 public:
  Rows(size_t sparse_slots, size_t dense_width, size_t width_read, ParsedChunk* chunk)
      : slots_(sparse_slots), width_(dense_width), read_(width_read), chunk_(*chunk) {}

  // Goes to the next row. False if its feasigns are beyond the end.
  bool Read(size_t row) {
    row_ = row;
    first_ += count_;
    const uint32_t* const lengths = chunk_.lengths.data() + row * slots_;
    count_ = std::accumulate(lengths, lengths + slots_, size_t{0});
    return count_ <= chunk_.feasigns.size() - first_;
  }

  uint64_t Hash(uint64_t seed) const {
    uint64_t hash = HashBytes(chunk_.dense.data() + row_ * width_, read_ * sizeof(float), seed);
    hash = HashBytes(chunk_.lengths.data() + row_ * slots_, slots_ * sizeof(uint32_t), hash);
    hash = HashBytes(chunk_.feasigns.data() + first_, count_ * sizeof(uint64_t), hash);
    if (weighted_) hash = HashBytes(chunk_.weights.data() + first_, count_ * sizeof(float), hash);
    if (chunk_.tags.ins_ids.size() == 0) return hash;
    const std::string_view id = chunk_.tags.ins_ids[row_];
    return HashBytes(id.data(), id.size(), hash);
  }

  void Keep() {
    Move(row_, 1, kept_, &chunk_.labels);
    Move(row_ * width_, width_, kept_ * width_, &chunk_.dense);
    Move(row_ * slots_, slots_, kept_ * slots_, &chunk_.lengths);
    Move(first_, count_, feasigns_, &chunk_.feasigns);
    if (weighted_) Move(first_, count_, feasigns_, &chunk_.weights);
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
    if (weighted_) chunk_.weights.resize(feasigns_);
    chunk_.tags = std::move(tags_);
  }

 private:
  template <typename Column>
  static void Move(size_t from, size_t n, size_t to, Column* column) {
    if (from != to) std::copy_n(column->data() + from, n, column->data() + to);
  }

  const size_t slots_, width_, read_;
  ParsedChunk& chunk_;
  const bool weighted_ = !chunk_.weights.empty();
  TagColumns tags_;
  size_t row_ = 0, first_ = 0, count_ = 0;  // the row that is read, and its feasigns
  size_t kept_ = 0, feasigns_ = 0;          // rows and feasigns that are kept so far
};

// Draws a number for each negative of a chunk, from the hash of its values.
class Draws {
 public:
  // rows: at least the number of negatives.
  explicit Draws(size_t rows) : seen_(Places(rows)) {}

  // The hash itself, or another number if the chunk has had this hash before.
  uint64_t Next(uint64_t hash) {
    const uint64_t drawn = Insert(hash != 0 ? hash : 1) ? hash : Mix(hash ^ before_);
    before_ = Mix(before_ + hash);
    return drawn;
  }

 private:
  static size_t Places(size_t rows) {
    size_t places = 2;
    while (places < 2 * rows) places *= 2;
    return places;
  }

  bool Insert(uint64_t hash) {
    const size_t mask = seen_.size() - 1;
    size_t at = hash & mask;
    while (seen_[at] != 0 && seen_[at] != hash) at = (at + 1) & mask;
    if (seen_[at] == hash) return false;
    seen_[at] = hash;
    return true;
  }

  std::vector<uint64_t> seen_;  // open addressing, at most half full; 0: empty
  uint64_t before_ = 0;         // depends on all negatives so far
};

Status CheckLabels(const std::vector<float>& labels) {
  for (const float label : labels) {
    if (label != 0 && label != 1) {
      return Error(Code::kInvalidArgument,
                   "negatives can be sampled only if every label is 0 or 1, found %g",
                   static_cast<double>(label));
    }
  }
  return Status::Ok();
}

}  // namespace

Result<size_t> SampleNegatives(size_t sparse_slots, size_t dense_width, double rate, uint64_t seed,
                               ParsedChunk* chunk, size_t exact_floats) {
  const size_t n = chunk->instances;
  if (!(rate > 0 && rate <= 1)) {
    return Error(Code::kInvalidArgument, "rate of negatives %g, expected one in (0, 1]", rate);
  }
  if (chunk->labels.size() != n || chunk->dense.size() != n * dense_width ||
      chunk->lengths.size() != n * sparse_slots || !chunk->tags.Fits(n) ||
      (!chunk->weights.empty() && chunk->weights.size() != chunk->feasigns.size())) {
    return Error(Code::kInvalidArgument,
                 "%zu instances have %zu labels, %zu dense values and %zu lengths; expected %zu, "
                 "%zu and %zu, and as many weights as feasigns, or none",
                 n, chunk->labels.size(), chunk->dense.size(), chunk->lengths.size(), n,
                 n * dense_width, n * sparse_slots);
  }
  if (rate >= 1) return size_t{0};
  PBX_RETURN_IF_ERROR(CheckLabels(chunk->labels));
  const uint64_t bound = static_cast<uint64_t>(std::ldexp(rate, 64));
  Rows rows(sparse_slots, dense_width, dense_width - exact_floats, chunk);
  Draws draws(n);
  for (size_t row = 0; row < n; ++row) {
    if (!rows.Read(row)) {
      return Error(Code::kInvalidArgument, "instance %zu has more feasigns than the chunk", row);
    }
    if (chunk->labels[row] != 0 || draws.Next(rows.Hash(seed)) < bound) rows.Keep();
  }
  rows.Finish();
  return n - chunk->instances;
}

}  // namespace pbx
