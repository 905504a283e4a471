#include "table/batch_table.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <utility>

#include "row/feasign.h"

namespace pbx {

BatchTable::BatchTable(const BatchTableConfig& config)
    : RowAccess(config.threads, config.on_bad_grad, config.bad_grad_bound),
      name_(config.name),
      late_(config.late) {
  // Rules without state: a row holds only what a pull reads.
  accessor_.layout = RowLayout{config.embedx_dim, 0, 0, config.expand_dim, 0, config.counts};
  accessor_.embed.kind = accessor_.embedx.kind = accessor_.expand.kind = RuleKind::kNaive;
}

Status BatchTable::Prepare(int32_t stamp, const uint64_t* keys, size_t n, bool read_only) {
  if (stamp <= 0 || n > INT32_MAX) {
    return Error(Code::kInvalidArgument,
                 "batch of table '%s': stamp %d with %zu rows, expected a stamp above 0 and at "
                 "most %d rows",
                 name_.c_str(), stamp, n, INT32_MAX);
  }
  const size_t bytes = n * accessor_.layout.bytes();
  if (next_.rows.size() < bytes) {
    Result<Buffer> larger = Buffer::Allocate(bytes + bytes / 4);
    if (!larger.ok()) return larger.status();
    next_.rows = std::move(larger.value());
  } else if (n != 0) {
    std::memset(next_.rows.data(), 0, bytes);
  }
  next_.stamp = stamp;
  next_.read_only = read_only;
  next_.keys.assign(keys, keys + n);
  next_.merged.assign(read_only ? 0 : n * (push_columns() - more_counts()), 0.0f);
  next_.merged_counts.assign(read_only ? 0 : n * more_counts(), 0.0f);
  next_.merged_late.assign(read_only || !late_ ? 0 : n, 0.0f);
  next_.merged_expand.assign(read_only ? 0 : n * expand_columns(), 0.0f);
  return Status::Ok();
}

Status BatchTable::Fill(size_t first, const int32_t* at, size_t count, const float* values) {
  const size_t rows = next_.keys.size(), width = columns();
  const RowLayout& layout = accessor_.layout;
  const auto embedx = static_cast<size_t>(layout.embedx_at());
  const auto expand = static_cast<size_t>(layout.expand_at());
  const size_t behind = push_columns(), head = 2 + more_counts();
  const auto words = static_cast<size_t>(layout.words());
  auto* const base = reinterpret_cast<float*>(next_.rows.data());
  for (size_t i = 0; i < count; ++i) {
    const size_t place = at != nullptr ? static_cast<size_t>(at[i]) : first + i;
    if (place >= rows) {
      return Error(
          Code::kInvalidArgument,
          "batch of table '%s': cannot fill row %lld, the batch has %zu rows", name_.c_str(),
          at != nullptr ? static_cast<long long>(at[i]) : static_cast<long long>(place), rows);
    }
    const float* const from = values + i * width;
    float* const row = base + place * words;
    SetFlag(row, kHasEmbedx);  // the embedx came as zeros if its owner has not created it
    row[RowLayout::kShow] = from[0];
    row[RowLayout::kClick] = from[1];
    row[RowLayout::kEmbed] = from[head];
    std::memcpy(row + layout.counts_at(), from + 2, more_counts() * sizeof(float));
    std::memcpy(row + embedx, from + head + 1, (behind - head - 1) * sizeof(float));
    std::memcpy(row + expand, from + behind, (width - behind) * sizeof(float));
  }
  return Status::Ok();
}

Status BatchTable::Open() {
  if (next_.stamp == 0) {
    return Error(Code::kFailedPrecondition, "table '%s': no batch is prepared", name_.c_str());
  }
  DropStep();
  std::swap(open_, next_);
  next_.stamp = 0;
  pushes_ended_ = false;
  return Status::Ok();
}

Status BatchTable::EndPushes() {
  const Status status = EndStep();
  pushes_ended_ = true;
  return status;
}

const float* BatchTable::merged() {
  const size_t expand = expand_columns(), counts = more_counts();
  if (gradient_columns() == 3 + static_cast<size_t>(accessor_.layout.embedx_dim)) {
    return open_.merged.data();
  }
  const size_t plain = push_columns() - counts;
  const size_t rows = open_.merged.size() / plain;
  whole_.resize(rows * gradient_columns());
  float* to = whole_.data();
  for (size_t i = 0; i < rows; ++i) {
    const float* const from = open_.merged.data() + i * plain;
    to = std::copy_n(from, 2, to);
    to = std::copy_n(open_.merged_counts.data() + i * counts, counts, to);
    if (late_) *to++ = open_.merged_late[i];
    to = std::copy_n(from + 2, plain - 2, to);
    to = std::copy_n(open_.merged_expand.data() + i * expand, expand, to);
  }
  return whole_.data();
}

Result<OpenRows> BatchTable::Open(const char* what) const {
  if (open_.stamp == 0) {
    return Error(Code::kFailedPrecondition, "%s: table '%s' has no open batch", what,
                 name_.c_str());
  }
  OpenRows open;
  open.rows = open_.keys.size();
  // Pushes write to `merged` and do not change the rows.
  auto* const self = const_cast<Rows*>(&open_);
  open.block.rows = self->rows.data();
  open.block.keys = open_.keys.data();
  open.block.row_bytes = accessor_.layout.bytes();
  open.block.config = &accessor_;
  open.stamp = open_.stamp;
  open.read_only = open_.read_only;
  open.pushes_ended = pushes_ended_;
  open.merged = self->merged.data();
  open.merged_expand = self->merged_expand.empty() ? nullptr : self->merged_expand.data();
  open.merged_late = self->merged_late.empty() ? nullptr : self->merged_late.data();
  open.merged_counts = self->merged_counts.empty() ? nullptr : self->merged_counts.data();
  return Result<OpenRows>(std::move(open));
}

Status BatchTable::Translate(const uint64_t* feasigns, size_t n, int32_t* out) {
  if (open_.stamp == 0) {
    return Error(Code::kFailedPrecondition, "pull: table '%s' has no open batch", name_.c_str());
  }
  const std::vector<uint64_t>& keys = open_.keys;
  for (size_t i = 0; i < n; ++i) {
    out[i] = -1;
    if (feasigns[i] == 0) continue;
    const uint64_t key = KeyOf(feasigns[i]);
    const auto found = std::lower_bound(keys.begin(), keys.end(), key);
    if (found != keys.end() && *found == key) {
      out[i] = static_cast<int32_t>(found - keys.begin());
    } else if (!open_.read_only) {
      return Error(Code::kInvalidArgument,
                   "feasign %" PRIu64
                   " is not in the open batch: with several ranks a program can pull only the "
                   "feasigns of the batch that its dataset feeds",
                   feasigns[i]);
    }
  }
  return Status::Ok();
}

}  // namespace pbx
