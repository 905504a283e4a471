#include "feed/columns/column_block.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "feed/columns/transpose.h"

namespace pbx::feed {
namespace {

constexpr size_t kBadRowsKept = 8;

std::vector<uint32_t> KeySlots(const FeedSchema& schema) {
  std::vector<uint32_t> slots(schema.sparse_slots());
  for (size_t s = 0; s < slots.size(); ++s) slots[s] = schema.KeySlot(s);
  return slots;
}

std::vector<uint8_t> WeightedSlots(const FeedSchema& schema) {
  std::vector<uint8_t> weighted;
  for (const SlotSpec& slot : schema.slots) {
    if (slot.kind == SlotKind::kSparse) weighted.push_back(slot.weighted ? 1 : 0);
  }
  return schema.weighted() ? weighted : std::vector<uint8_t>();
}

}  // namespace

Block::Block(const FeedSchema& schema, ParsedChunk* out)
    : out_(out),
      limits_(schema),
      tag_spec_(schema.tags),
      tags_(schema.TagColumnsRead()),
      row_tags_(tags_.empty() ? 0 : kBlockRows),
      per_slot_(schema.per_slot_keys),
      slots_(schema.sparse_slots()),
      key_slots_(KeySlots(schema)),
      width_(schema.dense_width()),
      exact_(schema.exact()),
      slot_weighted_(WeightedSlots(schema)),
      values_(slots_),
      weights_(slot_weighted_.size()),
      items_(kBlockRows),
      nulls_(kBlockRows),
      bad_(kBlockRows),
      single_(slots_),
      next_(slots_) {}

void Block::BadOnes(int64_t begin) {
  const auto before = [](const RowError& one, int64_t row) { return one.row < row; };
  auto at = std::lower_bound(refused_->begin(), refused_->end(), begin, before);
  for (; at != refused_->end() && at->row < begin + static_cast<int64_t>(rows_); ++at) {
    Bad(static_cast<size_t>(at->row - begin), "%s", at->reason.c_str());
  }
}

Status Block::Add(const std::vector<Column>& columns, const std::vector<Column>& tags,
                  const std::vector<Column>& weights, int64_t begin, int64_t rows) {
  rows_ = static_cast<size_t>(rows);
  first_ = out_->instances;
  floats_taken_ = OneFloatEach(columns, begin);
  out_->labels.resize(first_ + rows_);
  out_->dense.resize((first_ + rows_) * width_);
  if (exact_) out_->exact.resize(out_->dense.size());
  out_->lengths.resize((first_ + rows_) * slots_, 1);  // for slots of single_
  std::fill(bad_.begin(), bad_.end(), uint8_t{0});
  reasons_.clear();
  any_bad_ = false;
  digits_.clear();
  if (refused_ != nullptr) BadOnes(begin);
  for (size_t i = 0; i < tags.size(); ++i) {
    PBX_RETURN_IF_ERROR(tags[i].Rows(begin, rows, items_.data(), nulls_.data()));
    PBX_RETURN_IF_ERROR(TakeTags(tags_[i], tags[i]));
  }
  size_t sparse = 0, dense = 0, weighted = 0;
  for (const Column& column : columns) {
    if (column.slot().exact) PBX_RETURN_IF_ERROR(Exact(column, begin, dense));
    if (!column.slot().weighted && column.one_each() && OneEach(column, begin, dense, sparse)) {
      dense += column.slot().kind == SlotKind::kDense ? 1 : 0;
      sparse += column.slot().kind == SlotKind::kSparse ? 1 : 0;
      continue;
    }
    PBX_RETURN_IF_ERROR(column.Rows(begin, rows, items_.data(), nulls_.data()));
    switch (column.slot().kind) {
      case SlotKind::kLabel: Labels(column); break;
      case SlotKind::kDense:
        Dense(column, dense);
        dense += static_cast<size_t>(column.slot().dim);
        break;
      case SlotKind::kSparse:
        single_[sparse] = 0;
        PBX_RETURN_IF_ERROR(Sparse(column, sparse));
        if (column.slot().weighted) {
          PBX_RETURN_IF_ERROR(TakeWeights(column, weights[weighted++], begin, sparse));
        }
        ++sparse;
        break;
    }
  }
  PBX_RETURN_IF_ERROR(CheckLimits(columns, begin));
  const bool all_single = std::count(single_.begin(), single_.end(), uint8_t{0}) == 0;
  if (all_single && !any_bad_) {
    AssembleSingles();
    return Status::Ok();
  }
  for (size_t s = 0; s < slots_; ++s) {
    if (single_[s] != 0) LeaveOutZeros(s);
  }
  Assemble();
  return Status::Ok();
}

bool Block::OneEach(const Column& column, int64_t begin, size_t dense, size_t sparse) {
  const int64_t first = column.place(begin);
  bool taken = false;
  if (column.slot().kind == SlotKind::kDense && column.slot().dim == 1) {
    taken = floats_taken_ || OneNumberEach(column, first, dense);
  } else if (column.slot().kind == SlotKind::kSparse && !column.slot().transform.hash) {
    single_[sparse] = OneFeasignEach(column, sparse, first);
    taken = true;
  }
  return taken;
}

void Block::Bad(size_t row, const char* format, ...) {
  any_bad_ = true;
  if (bad_[row]) return;  // one reason per row
  bad_[row] = 1;
  if (out_->first_bad.size() + reasons_.size() >= 2 * kBadRowsKept) return;
  char text[512];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof(text), format, args);
  va_end(args);
  reasons_.push_back({out_->lines + row, text, ""});
}

void Block::Assemble() {
  out_->single = false;
  if (!slot_weighted_.empty()) AssembleWeights();
  const uint32_t* length = out_->lengths.data() + first_ * slots_;
  size_t total = 0;
  for (size_t i = 0; i < rows_ * slots_; ++i) total += length[i];
  const size_t used = out_->feasigns.size();
  out_->feasigns.resize(used + total + kShort);
  uint64_t* to = out_->feasigns.data() + used;
  size_t good = first_;
  for (size_t row = 0; row < rows_; ++row, length += slots_) {
    if (any_bad_ && bad_[row]) {
      for (size_t s = 0; s < slots_; ++s) next_[s] += length[s];
      continue;
    }
    for (size_t s = 0; s < slots_; ++s) {
      const uint64_t* const from = next_[s];
      if (length[s] <= kShort) {
        std::memcpy(to, from, kShort * sizeof(uint64_t));
      } else {
        std::copy_n(from, length[s], to);
      }
      to += length[s];
      next_[s] += length[s];
    }
    if (any_bad_) MoveRow(first_ + row, good);
    if (!tags_.empty()) out_->tags.Add(tag_spec_, row_tags_[row]);
    ++good;
  }
  out_->feasigns.resize(static_cast<size_t>(to - out_->feasigns.data()));
  out_->instances = good;
  out_->labels.resize(good);
  out_->dense.resize(good * width_);
  if (exact_) out_->exact.resize(good * width_);
  out_->lengths.resize(good * slots_);
  out_->lines += rows_;
  out_->bad_lines += first_ + rows_ - good;
  // Columns were checked one after the other; readers expect the first rows.
  std::sort(reasons_.begin(), reasons_.end(),
            [](const BadLine& a, const BadLine& b) { return a.line < b.line; });
  for (const BadLine& reason : reasons_) {
    if (out_->first_bad.size() < kBadRowsKept) out_->first_bad.push_back(reason);
  }
}

void Block::AssembleSingles() {
  tile_.resize(kTileRows * slots_);
  for (size_t begin = 0; begin < rows_; begin += kTileRows) {
    const size_t n = std::min(kTileRows, rows_ - begin);
    size_t feasigns = n * slots_;
    if (!TransposeIds(next_.data(), slots_, n, tile_.data())) {
      feasigns =
          DropZeros(tile_.data(), feasigns, out_->lengths.data() + (first_ + begin) * slots_);
      out_->single = false;
    }
    for (const uint64_t*& next : next_) next += n;
    out_->feasigns.insert(out_->feasigns.end(), tile_.begin(),
                          tile_.begin() + static_cast<ptrdiff_t>(feasigns));
  }
  if (!tags_.empty()) {
    for (size_t row = 0; row < rows_; ++row) out_->tags.Add(tag_spec_, row_tags_[row]);
  }
  out_->instances = first_ + rows_;
  out_->lines += rows_;
}

void Block::MoveRow(size_t from, size_t to) {
  if (from == to) return;
  out_->labels[to] = out_->labels[from];
  std::copy_n(out_->dense.data() + from * width_, width_, out_->dense.data() + to * width_);
  if (exact_) {
    std::copy_n(out_->exact.data() + from * width_, width_, out_->exact.data() + to * width_);
  }
  std::copy_n(out_->lengths.data() + from * slots_, slots_, out_->lengths.data() + to * slots_);
}

}  // namespace pbx::feed
