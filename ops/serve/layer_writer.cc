#include "serve/layer_writer.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>

#include "row/feasign.h"

namespace pbx {
namespace {

constexpr size_t kBlockBytes = 64 << 10;  // its CRC takes 8 us, at its first lookup
constexpr size_t kWaiting = 1 << 16;  // after this many rows, the number of all rows is estimated
constexpr int kMaxBits = 24;

}  // namespace

void LayerWriter::Delete(const uint64_t* feasigns, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    if (feasigns[i] != 0) gone_.push_back(KeyOf(feasigns[i]));
  }
  std::sort(gone_.begin(), gone_.end());
  gone_.erase(std::unique(gone_.begin(), gone_.end()), gone_.end());
}

Status LayerWriter::Against(const ServeTable& table) {
  old_ = std::make_unique<ServeTable::Cursor>(table, 0, table.layers());
  return old_->Start();
}

Status LayerWriter::Add(const uint64_t* feasigns, const float* rows, size_t n, size_t words) {
  const int fewest = layout_.embedx_state_at() + layout_.counts;
  if (words < static_cast<size_t>(fewest)) {
    return Error(Code::kInvalidArgument, "rows have %zu words, expected at least %d", words,
                 fewest);
  }
  layout_.embedx_state = static_cast<int>(words) - fewest;  // so that counts are the last words
  std::string encoded(codec_.full_bytes(), '\0');
  for (size_t i = 0; i < n; ++i) {
    const uint64_t key = KeyOf(feasigns[i]);
    if (feasigns[i] == 0 || (began_ && key <= last_key_)) {
      return Error(Code::kInvalidArgument,
                   "feasign %" PRIu64
                   ": expected feasigns other than 0, without repeats, in the order "
                   "of their keys",
                   feasigns[i]);
    }
    const float* const row = rows + i * words;
    if (!codec_.Finite(layout_, row)) {
      return Error(Code::kInvalidArgument,
                   "feasign %" PRIu64
                   " has a weight or count that is not finite: it cannot be "
                   "served",
                   feasigns[i]);
    }
    const bool full = codec_.Encode(layout_, row, encoded.data());
    began_ = true;
    last_key_ = key;
    PBX_RETURN_IF_ERROR(Take(key, full, encoded.data()));
  }
  return Status::Ok();
}

Status LayerWriter::DeleteBefore(uint64_t key) {
  for (; next_gone_ < gone_.size() && gone_[next_gone_] < key; ++next_gone_) {
    Put(gone_[next_gone_], false, nullptr);
  }
  while (old_ != nullptr && !old_->done() && old_->key() < key) {
    if (!old_->zeros()) Put(old_->key(), false, nullptr);
    PBX_RETURN_IF_ERROR(old_->Next());
  }
  return Status::Ok();
}

Status LayerWriter::Take(uint64_t key, bool full, const char* row) {
  PBX_RETURN_IF_ERROR(DeleteBefore(key));
  // A key that has a row is not deleted.
  if (next_gone_ < gone_.size() && gone_[next_gone_] == key) ++next_gone_;
  if (old_ != nullptr && !old_->done() && old_->key() == key) {
    const bool same =
        full == old_->full() && std::memcmp(row, old_->row(), codec_.bytes(full)) == 0;
    PBX_RETURN_IF_ERROR(old_->Next());
    if (same) return Status::Ok();
  }
  Put(key, full, row);
  return Status::Ok();
}

Status LayerWriter::Merge(ServeTable::Cursor* cursor, bool base, size_t bytes) {
  size_t taken = 0;
  while (!cursor->done() && taken < bytes) {
    const bool zeros = cursor->zeros();
    if (!zeros || !base) Put(cursor->key(), cursor->full(), zeros ? nullptr : cursor->row());
    taken += 8 + codec_.bytes(cursor->full());
    PBX_RETURN_IF_ERROR(cursor->Next());
  }
  return Status::Ok();
}

void LayerWriter::Put(uint64_t key, bool full, const char* row) {
  ++(row == nullptr ? deleted_rows_ : rows_);
  if (filtered_) keys_.push_back(key);
  if (bits_ >= 0) return Emit(key, full, row);
  const uint32_t bytes = codec_.bytes(full);
  waiting_.push_back({key, full, row == nullptr ? std::string() : std::string(row, bytes)});
  waiting_bytes_ += 8 + bytes;
  // Keys are uniform, so the last key tells what share of all rows has been added.
  if (waiting_.size() == kWaiting) ChooseBits(std::ldexp(static_cast<double>(key) + 1, -64));
}

void LayerWriter::ChooseBits(double share) {
  const double blocks = static_cast<double>(waiting_bytes_) / share / kBlockBytes;
  bits_ = std::clamp(static_cast<int>(std::ceil(std::log2(std::max(1.0, blocks)))), 0, kMaxBits);
  for (const Waiting& w : waiting_) Emit(w.key, w.full, w.row.empty() ? nullptr : w.row.data());
  waiting_ = {};
}

void LayerWriter::Emit(uint64_t key, bool full, const char* row) {
  while (block_ < BlockOf(key, bits_)) FinishBlock();
  builder_.Add(key, full, row);
}

void LayerWriter::FinishBlock() {
  blocks_.emplace_back(static_cast<uint32_t>(block_),
                       builder_.Finish(static_cast<uint32_t>(block_)));
  ++block_;
}

Status LayerWriter::Finish() {
  PBX_RETURN_IF_ERROR(DeleteBefore(UINT64_MAX));
  if (next_gone_ < gone_.size()) Put(gone_[next_gone_++], false, nullptr);  // the highest key
  if (old_ != nullptr && !old_->done() && !old_->zeros()) Put(old_->key(), false, nullptr);
  if (bits_ < 0) ChooseBits(1.0);
  while (block_ < uint64_t{1} << bits_) FinishBlock();
  if (!keys_.empty()) filter_ = BuildFuseFilter(keys_.data(), keys_.size(), 8, &filter_table_);
  return Status::Ok();
}

}  // namespace pbx
