#include "table/import.h"

#include <algorithm>
#include <cinttypes>
#include <memory>
#include <numeric>
#include <utility>

#include "base/file.h"
#include "store/cuts.h"
#include "store/segment_writer.h"

namespace pbx {
namespace {

constexpr uint64_t kRowsPerGlance = 1 << 17;
constexpr uint32_t kFilterBits = 8;  // of a base, as in the SSD tier

// Writes rows, in ascending order of key, to range files. The files are cut in the same way as
// those of a merge.
class Run {
 public:
  Run(const Table& target, uint64_t expected_rows, const ImportPlace& place, ImportResult* result)
      : folder_(target.config().ssd_folder), first_id_(place.id), result_(result) {
    spec_.row_bytes = target.stored_row_bytes();
    spec_.layout_fingerprint = target.codec().Fingerprint();
    spec_.filter_bits = kFilterBits;
    spec_.sequence = place.sequence;
    const uint64_t most_bytes = target.config().max_segment_bytes;
    most_ = SegmentWriter::RowsWithin(most_bytes, spec_.row_bytes, kFilterBits);
    const uint64_t bytes = expected_rows * (8ull + spec_.row_bytes);
    bits_ = CutBits(bytes, 0, UINT64_MAX, RangeBits(bytes, most_bytes));
  }

  Status Append(uint64_t key, const char* row) {
    const uint64_t range = RangeOf(key, bits_);
    if (writer_ != nullptr && (range != range_ || in_file_ == most_)) PBX_RETURN_IF_ERROR(Finish());
    if (writer_ == nullptr) {
      spec_.id = first_id_ + result_->segments.size();
      auto created = SegmentWriter::Create(folder_, spec_);
      if (!created.ok()) return created.status();
      writer_ = std::move(created.value());
      range_ = range;
      in_file_ = 0;
    }
    ++in_file_;
    return writer_->Append(key, row);
  }

  Status Finish() {
    if (writer_ == nullptr) return Status::Ok();
    auto descriptor = writer_->Finish();
    writer_ = nullptr;
    if (!descriptor.ok()) return descriptor.status();
    result_->segments.push_back(descriptor.value());
    return Status::Ok();
  }

 private:
  std::string folder_;
  uint64_t first_id_;
  SegmentSpec spec_;
  uint64_t most_ = 1;
  int bits_ = 0;
  uint64_t range_ = 0, in_file_ = 0;
  std::unique_ptr<SegmentWriter> writer_;
  ImportResult* result_;
};

// Collects rows with changed keys, sorts them, and writes them in runs.
class Sorter {
 public:
  Sorter(const Table& target, uint64_t bytes, ImportResult* result)
      : target_(target), row_bytes_(target.stored_row_bytes()), result_(result) {
    most_ = std::max<uint64_t>(1, bytes / (8ull + row_bytes_));
  }

  Status Append(uint64_t key, const char* row) {
    keys_.push_back(key);
    rows_.insert(rows_.end(), row, row + row_bytes_);
    return keys_.size() < most_ ? Status::Ok() : Flush();
  }

  Status Flush() {
    if (keys_.empty()) return Status::Ok();
    std::vector<size_t> order(keys_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return keys_[a] < keys_[b]; });
    Run run(target_, keys_.size(), ImportPlace{1, ++result_->runs}, result_);
    for (const size_t i : order) {
      PBX_RETURN_IF_ERROR(run.Append(keys_[i], rows_.data() + i * row_bytes_));
    }
    keys_.clear();
    rows_.clear();
    return run.Finish();
  }

 private:
  const Table& target_;
  size_t row_bytes_;
  uint64_t most_;
  ImportResult* result_;
  std::vector<uint64_t> keys_;
  std::vector<char> rows_;
};

Status CheckEmpty(const Table& target) {
  if (!target.config().ssd_folder.empty() && target.pairs_upper_bound() == 0) return Status::Ok();
  return Error(Code::kFailedPrecondition,
               "import: table '%s' holds %zu rows, expected an empty table with an SSD tier",
               target.config().name.c_str(), target.pairs_upper_bound());
}

// Packs a row as target stores it. May round *row.
void Pack(const Table& target, uint64_t key, float* row, char* packed) {
  target.codec().Round(target.config().accessor.seed, key, 0, row);
  target.codec().Pack(row, packed);
}

// Copies given weights to `out`, and behind them their given state or that of new weights.
void TakeWeights(const RuleConfig& rule, int dim, const float* weights, const float* state,
                 float* out, float* out_state) {
  std::copy_n(weights, dim, out);
  if (state != nullptr) {
    std::copy_n(state, rule::StateSize(rule.kind, dim), out_state);
  } else {
    rule::InitState(rule, dim, weights, out_state);
  }
}

// Copies the parts of a given row to `out`, the row of the table or a new one.
void TakeGiven(const AccessorConfig& to, uint32_t parts, uint64_t key, const float* given,
               float* out) {
  const RowLayout& at = to.layout;
  const auto take = [&](uint32_t part, int begin, int count) {
    if ((parts & part) != 0) std::copy_n(given + begin, count, out + begin);
  };
  const auto state = [&](uint32_t part, int begin) {
    return (parts & part) != 0 ? given + begin : nullptr;
  };
  if ((parts & kGivesSlot) != 0) SetWord(out, 0, (GetWord(out, 0) & 0xffff0000u) | SlotOf(given));
  take(kGivesCounts, RowLayout::kShow, 2);
  take(kGivesDeltaScore, RowLayout::kDeltaScore, 1);
  take(kGivesDay, RowLayout::kDay, 1);
  take(kGivesFurtherCounts, at.counts_at(), at.counts);
  if ((parts & kGivesEmbed) != 0) {
    TakeWeights(to.embed, 1, given + RowLayout::kEmbed,
                state(kGivesEmbedState, at.embed_state_at()), out + RowLayout::kEmbed,
                out + at.embed_state_at());
  }
  if ((parts & kGivesEmbedx) == 0) return;
  if (!HasEmbedx(given)) {
    SetWord(out, 0, SlotOf(out));
    std::fill(out + at.embedx_at(), out + at.counts_at(), 0.0f);
    return;
  }
  if (!HasEmbedx(out)) accessor::CreateEmbedx(to, key, out);
  TakeWeights(to.embedx, at.embedx_dim, given + at.embedx_at(),
              state(kGivesEmbedxState, at.embedx_state_at()), out + at.embedx_at(),
              out + at.embedx_state_at());
  if ((parts & kGivesExpand) == 0 || at.expand_dim == 0) return;
  TakeWeights(to.expand, at.expand_dim, given + at.expand_at(),
              state(kGivesExpandState, at.expand_state_at()), out + at.expand_at(),
              out + at.expand_state_at());
}

}  // namespace

Result<ImportResult> ImportRows(const std::vector<Table*>& sources, const Table& target,
                                const ImportOptions& options,
                                const std::function<Status(uint64_t rows)>& progress) {
  PBX_RETURN_IF_ERROR(CheckEmpty(target));
  const AccessorConfig& accessor = target.config().accessor;
  const RowConverter converter(sources.at(0)->config().accessor, accessor, options.map);
  const bool sorts = options.map.MovesKeys();
  ImportResult result;
  result.dropped.resize(options.map.slots.size());
  result.runs = sorts ? 0 : 1;
  uint64_t expected_rows = 0;
  for (const Table* source : sources) expected_rows += source->pairs_upper_bound();
  Run run(target, expected_rows, ImportPlace{}, &result);
  Sorter sorter(target, options.sort_bytes, &result);
  std::vector<float> row(static_cast<size_t>(accessor.layout.words()));
  std::vector<char> packed(target.stored_row_bytes());
  uint64_t read = 0;
  const auto take = [&](uint64_t key, const char* bytes) -> Status {
    if (++read % kRowsPerGlance == 0) PBX_RETURN_IF_ERROR(progress(read));
    const float* from = reinterpret_cast<const float*>(bytes);
    if (!converter.Convert(from, &key, row.data())) {
      ++result.dropped[SlotOf(from)];
      return Status::Ok();
    }
    if (key < options.low || key > options.high) return Status::Ok();
    ++result.rows;
    result.with_embedx += HasEmbedx(from) ? 1 : 0;
    Pack(target, key, row.data(), packed.data());
    return sorts ? sorter.Append(key, packed.data()) : run.Append(key, packed.data());
  };
  // If keys change, a row with any source key may get a key in this range.
  const uint64_t low = sorts ? 0 : options.low, high = sorts ? UINT64_MAX : options.high;
  for (Table* source : sources) PBX_RETURN_IF_ERROR(source->Visit(low, high, take));
  PBX_RETURN_IF_ERROR(sorter.Flush());
  PBX_RETURN_IF_ERROR(run.Finish());
  PBX_RETURN_IF_ERROR(SyncFolder(target.config().ssd_folder));
  return result;
}

Result<ImportResult> ImportChunks(const Table& target, uint64_t expected_rows,
                                  const std::function<Result<KeyedRows>()>& next,
                                  const ImportPlace& place) {
  if (place.is_first()) PBX_RETURN_IF_ERROR(CheckEmpty(target));
  ImportResult result;
  result.runs = 1;
  Run run(target, expected_rows, place, &result);
  const auto words = static_cast<size_t>(target.config().accessor.layout.words());
  std::vector<float> row(words);
  std::vector<char> packed(target.stored_row_bytes());
  uint64_t last = 0;
  while (true) {
    const Result<KeyedRows> chunk = next();
    if (!chunk.ok()) return chunk.status();
    const KeyedRows& rows = chunk.value();
    if (rows.n == 0) break;
    for (size_t i = 0; i < rows.n; ++i) {
      const uint64_t key = rows.keys[i];
      if (result.rows != 0 && key <= last) {
        return Error(Code::kInvalidArgument,
                     "import: table '%s': key %016" PRIx64 " after %016" PRIx64
                     ", expected ascending keys",
                     target.config().name.c_str(), key, last);
      }
      last = key;
      std::copy_n(rows.rows + i * words, words, row.data());
      ++result.rows;
      result.with_embedx += HasEmbedx(row.data()) ? 1 : 0;
      Pack(target, key, row.data(), packed.data());
      PBX_RETURN_IF_ERROR(run.Append(key, packed.data()));
    }
  }
  PBX_RETURN_IF_ERROR(run.Finish());
  PBX_RETURN_IF_ERROR(SyncFolder(target.config().ssd_folder));
  return result;
}

void CompleteRows(const Table& target, uint32_t day, uint32_t life_seq,
                  const RowsToComplete& batch) {
  const AccessorConfig& to = target.config().accessor;
  const auto words = static_cast<size_t>(to.layout.words());
  std::vector<float> out(words);
  for (size_t i = 0; i < batch.n; ++i) {
    float* given = batch.rows + i * words;
    if (batch.found != nullptr && batch.found[i] != 0) {
      std::copy_n(batch.existing + i * words, words, out.data());
    } else {
      accessor::Create(to, batch.keys[i], SlotOf(given), out.data());
      SetWord(out.data(), RowLayout::kDay, day);
    }
    TakeGiven(to, batch.parts[i], batch.keys[i], given, out.data());
    SetWord(out.data(), RowLayout::kLifeSeq, life_seq);
    std::copy_n(out.data(), words, given);
  }
}

}  // namespace pbx
