// Weights of feasigns, from a column beside that of the ids.
#include <cstring>

#include "feed/columns/column_block.h"

namespace pbx::feed {
namespace {

// Whether item `at` of a column of ids becomes a feasign: it is neither null nor 0 nor empty.
bool IsFeasign(const Column& ids, int64_t at) {
  const ArrowArray& leaf = ids.leaf();
  if (!Valid(leaf, at)) return false;
  switch (ids.leaf_kind()) {
    case 'u':
    case 'z': return Values<int32_t>(leaf)[at] != Values<int32_t>(leaf)[at + 1];
    case 'U':
    case 'Z': return Values<int64_t>(leaf)[at] != Values<int64_t>(leaf)[at + 1];
    default: break;
  }
  bool nonzero = ids.slot().transform.hash;  // its digits are hashed
  if (nonzero) return true;
  WithInteger(ids.leaf_kind(),
              [&](auto* type) { nonzero = static_cast<decltype(type)>(leaf.buffers[1])[at] != 0; });
  return nonzero;
}

}  // namespace

Status Block::TakeWeights(const Column& ids, const Column& weights, int64_t begin, size_t slot) {
  std::vector<Items> items(rows_);
  std::vector<uint8_t> nulls(rows_);
  PBX_RETURN_IF_ERROR(weights.Rows(begin, static_cast<int64_t>(rows_), items.data(), nulls.data()));
  weights_[slot].clear();
  WithNumbers(weights.leaf(), weights.leaf_kind(), [&](auto number) {
    const uint32_t* length = out_->lengths.data() + first_ * slots_ + slot;
    for (size_t row = 0; row < rows_; ++row, length += slots_) {
      const size_t end = weights_[slot].size() + *length;
      RowWeights(row, {ids, items_[row], nulls_[row] != 0}, {weights, items[row], nulls[row] != 0},
                 number, &weights_[slot]);
      weights_[slot].resize(end, 1.0f);  // of a bad row
    }
  });
  return Status::Ok();
}

template <typename Number>
void Block::RowWeights(size_t row, const RowItems& ids, const RowItems& weights, Number number,
                       std::vector<float>* out) {
  const char* const name = ids.column.slot().name.c_str();
  if (ids.null && ids.column.scalar()) return;  // with the weight of the null id
  const int64_t n = ids.size(), found = weights.size();
  if (!weights.null && found != n) {
    Bad(row, "slot '%.200s': %lld ids and %lld weights, expected as many weights as ids", name,
        static_cast<long long>(n), static_cast<long long>(found));
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    if (!IsFeasign(ids.column, ids.items.begin + i)) continue;
    const int64_t at = weights.items.begin + i;
    const bool absent = weights.null || !Valid(weights.column.leaf(), at);
    const double value = absent ? 1.0 : number(at);
    const bool good = value >= 0 && value <= double{kMostWeight};
    if (!good) Bad(row, "slot '%.200s': %g is not a weight in [0, 2^32]", name, value);
    out->push_back(good ? static_cast<float>(value) + 0.0f : 1.0f);  // -0 is 0
  }
}

void Block::AssembleWeights() {
  const uint32_t* length = out_->lengths.data() + first_ * slots_;
  std::vector<const float*> next(slots_);
  for (size_t s = 0; s < slots_; ++s) next[s] = weights_[s].data();
  std::vector<float>& out = out_->weights;
  for (size_t row = 0; row < rows_; ++row) {
    for (size_t s = 0; s < slots_; ++s, ++length) {
      if (bad_[row] == 0 && slot_weighted_[s] != 0) {
        out.insert(out.end(), next[s], next[s] + *length);
      } else if (bad_[row] == 0) {
        out.resize(out.size() + *length, 1.0f);
      }
      next[s] += slot_weighted_[s] != 0 ? *length : 0;
    }
  }
}

}  // namespace pbx::feed
