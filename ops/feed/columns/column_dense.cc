// Labels and dense slots.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "feed/columns/column_block.h"
#include "feed/columns/transpose.h"

namespace pbx::feed {
namespace {

constexpr double kMost = static_cast<double>(std::numeric_limits<float>::max());

}  // namespace

bool Block::OneFloatEach(const std::vector<Column>& columns, int64_t begin) {
  floats_.clear();
  for (const Column& column : columns) {
    if (column.slot().kind != SlotKind::kDense) continue;
    if (!column.one_each() || column.slot().dim != 1 || column.leaf_kind() != 'f') return false;
    floats_.push_back(Values<uint32_t>(column.leaf()) + column.place(begin));
  }
  float_tile_.resize(kTileRows * width_);
  bool finite = true;
  for (size_t row = 0; row < rows_ && finite; row += kTileRows) {
    const size_t n = std::min(kTileRows, rows_ - row);
    finite = TransposeFloats(floats_.data(), width_, n, float_tile_.data());
    for (const uint32_t*& next : floats_) next += n;
    out_->dense.insert(out_->dense.end(), float_tile_.begin(),
                       float_tile_.begin() + static_cast<ptrdiff_t>(n * width_));
  }
  if (!finite) out_->dense.resize(first_ * width_);
  for (const uint32_t*& next : floats_) next -= finite ? rows_ : 0;
  return finite;
}

bool Block::OneNumberEach(const Column& column, int64_t first, size_t at) {
  if (column.leaf_kind() == 'f') return OneFloatEach(Values<float>(column.leaf()) + first, at);
  bool finite = true;
  WithNumbers(column.leaf(), column.leaf_kind(), [&](auto number) {
    float* out = out_->dense.data() + first_ * width_ + at;
    for (size_t row = 0; row < rows_; ++row, out += width_) {
      const double value = number(first + static_cast<int64_t>(row));
      finite &= std::fabs(value) <= kMost;
      *out = static_cast<float>(value);
    }
  });
  return finite;
}

bool Block::OneFloatEach(const float* from, size_t at) {
  uint32_t wrong = 0;  // its top bit is set if a value is infinite or NaN
  for (size_t row = 0; row < rows_; ++row) {
    uint32_t bits;
    std::memcpy(&bits, from + row, sizeof(bits));
    wrong |= (bits & 0x7fffffffu) + 0x00800000u;
  }
  if (wrong >> 31 != 0) return false;
  float* out = out_->dense.data() + first_ * width_ + at;
  for (size_t row = 0; row < rows_; ++row, out += width_) *out = from[row];
  return true;
}

Status Block::CheckLimits(const std::vector<Column>& columns, int64_t begin) {
  const float* dense = out_->dense.data() + first_ * width_;
  bool may_round = false;
  if (floats_taken_) limits_.Beyond(floats_.data(), rows_, &beyond_);
  for (size_t row = 0; row < rows_; ++row, dense += width_) {
    const bool beyond = floats_taken_ ? beyond_[row] >> 31 != 0 : limits_.Beyond(dense);
    if (bad_[row] || !beyond) continue;
    LineError error(true);
    if (limits_.Take(dense, out_->lines + row, &out_->large, &error)) {
      may_round = may_round || limits_.MayRound(dense, out_->rounded);
    } else {
      Bad(row, "%s", error.reason().c_str());
    }
  }
  size_t at = 0;
  for (const Column& column : columns) {
    if (!may_round || column.slot().kind != SlotKind::kDense) continue;
    PBX_RETURN_IF_ERROR(FindRounded(column, begin, at));
    at += static_cast<size_t>(column.slot().dim);
  }
  return Status::Ok();
}

Status Block::Exact(const Column& column, int64_t begin, size_t at) {
  PBX_RETURN_IF_ERROR(
      column.Rows(begin, static_cast<int64_t>(rows_), items_.data(), nulls_.data()));
  long double* out = out_->exact.data() + first_ * width_ + at;
  for (size_t row = 0; row < rows_; ++row, out += width_) {
    const Items items = items_[row];
    if (nulls_[row] || items.begin == items.end || !Valid(column.leaf(), items.begin)) {
      *out = static_cast<long double>(column.slot().transform.default_value);
    } else {
      *out = NumberAt(column.leaf(), column.leaf_kind(), items.begin);
    }
  }
  return Status::Ok();
}

Status Block::FindRounded(const Column& column, int64_t begin, size_t at) {
  if (std::strchr("IilLg", column.leaf_kind()) == nullptr) return Status::Ok();
  std::vector<long double> exact(width_);
  PBX_RETURN_IF_ERROR(
      column.Rows(begin, static_cast<int64_t>(rows_), items_.data(), nulls_.data()));
  const float* dense = out_->dense.data() + first_ * width_;
  std::vector<float> row_of(width_);  // 0 in the other columns
  for (size_t row = 0; row < rows_; ++row, dense += width_) {
    if (bad_[row] || nulls_[row] || !Valid(column.leaf(), items_[row].begin)) continue;
    row_of[at] = dense[at];
    if (!limits_.MayRound(row_of.data(), out_->rounded)) continue;
    exact[at] = NumberAt(column.leaf(), column.leaf_kind(), items_[row].begin);
    limits_.TakeRounded(row_of.data(), exact.data(), out_->lines + row, &out_->rounded);
  }
  return Status::Ok();
}

void Block::Labels(const Column& column) {
  WithNumbers(column.leaf(), column.leaf_kind(), [&](auto number) { TakeLabels(column, number); });
}

void Block::Dense(const Column& column, size_t at) {
  WithNumbers(column.leaf(), column.leaf_kind(),
              [&](auto number) { TakeDense(column, at, number); });
}

template <typename Number>
void Block::TakeLabels(const Column& column, Number number) {
  const char* const name = column.slot().name.c_str();
  float* const out = out_->labels.data() + first_;
  for (size_t row = 0; row < rows_; ++row) {
    if (nulls_[row]) {
      Bad(row, "slot '%.200s': a null, expected a label in [0, 1]", name);
      continue;
    }
    const double value = number(items_[row].begin);
    if (!(value >= 0 && value <= 1)) {
      Bad(row, "slot '%.200s': %g is not a label in [0, 1]", name, value);
      continue;
    }
    out[row] = static_cast<float>(value) + 0.0f;  // -0 is 0
  }
}

template <typename Number>
void Block::TakeDense(const Column& column, size_t at, Number number) {
  const SlotSpec& slot = column.slot();
  const char* const name = slot.name.c_str();
  const size_t dim = static_cast<size_t>(slot.dim);
  for (size_t row = 0; row < rows_; ++row) {
    float* const out = out_->dense.data() + (first_ + row) * width_ + at;
    const Items items = items_[row];
    const size_t n = static_cast<size_t>(items.end - items.begin);
    if (!nulls_[row] && n != dim) {
      Bad(row, "slot '%.200s': %zu values, expected %zu", name, n, dim);
      continue;
    }
    for (size_t i = 0; i < dim; ++i) {
      const int64_t item = items.begin + static_cast<int64_t>(i);
      if (nulls_[row] || !Valid(column.leaf(), item)) {
        out[i] = static_cast<float>(slot.transform.default_value);
        if (!slot.transform.has_default) Bad(row, "slot '%.200s': a null and no default", name);
        continue;
      }
      const double value = number(item);
      if (!(std::fabs(value) <= kMost)) {
        Bad(row, "slot '%.200s': %g is not a finite float", name, value);
        continue;
      }
      out[i] = static_cast<float>(value);
    }
  }
}

}  // namespace pbx::feed
