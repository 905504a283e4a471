#include "serve/serve_table.h"

#include <algorithm>
#include <cinttypes>
#include <limits>

#include "base/prefetch.h"
#include "row/feasign.h"
#include "table/count_columns.h"
#include "table/kernels.h"
#include "table/row_access.h"

namespace pbx {
namespace {

constexpr size_t kTileBytes = 256 << 10;  // bytes of decoded rows: they stay in L2

bool MayHold(const Bytes& table, const FuseHash& hash, uint64_t key) {
  const FuseHash::Place place = hash.Of(key);
  const auto* at = reinterpret_cast<const uint8_t*>(table.first);
  return (at[place.at[0]] ^ at[place.at[1]] ^ at[place.at[2]]) == (place.fingerprint & 255u);
}

// Has no branch for each factor, so that it vectorises.
bool AreOnes(const float* factors, size_t n) {
  int other = 0;
  for (size_t i = 0; i < n; ++i) other |= factors[i] != 1.0f ? 1 : 0;
  return other == 0;
}

}  // namespace

ServeTable::ServeTable(std::string name, const ServeCodec& codec, size_t slots, size_t dense_width,
                       size_t resident_bytes, ServedCounts counts)
    : name_(std::move(name)),
      codec_(codec),
      slots_(slots),
      dense_width_(dense_width),
      resident_bytes_(resident_bytes),
      counts_(std::move(counts)) {
  accessor_.layout = codec.decoded();
  width_ = PooledWidth(accessor_.layout, counts_.cvm);
}

Status ServeTable::AddLayer(LayerParts parts) {
  const bool shaped =
      parts.bits >= 0 && parts.bits <= 30 && parts.blocks.size() == size_t{1} << parts.bits;
  const bool filtered =
      parts.filter.bits == 0 ||
      (parts.filter.bits == 8 && parts.filter.Sane() && parts.min_key <= parts.max_key &&
       parts.filter_table.second == parts.filter.bytes());
  if (!shaped || !filtered) {
    return Error(Code::kInvalidArgument,
                 "%s: layer %" PRIu64
                 ": %zu blocks, %d bits and a "
                 "filter of %zu bytes contradict each other",
                 name_.c_str(), parts.number, parts.blocks.size(), parts.bits,
                 parts.filter_table.second);
  }
  Layer layer;
  if (parts.filter.bits != 0) layer.filter = FuseHash(parts.filter, parts.min_key, parts.max_key);
  size_t bytes = 0;
  for (const Bytes& block : parts.blocks) bytes += block.second;
  layer.tested = std::make_shared<Tested>(parts.blocks.size(), bytes);
  layer.parts = std::move(parts);
  layers_.push_back(std::move(layer));
  return Status::Ok();
}

void ServeTable::AdoptTests(const ServeTable& before) {
  for (Layer& layer : layers_) {
    for (const Layer& old : before.layers_) {
      if (old.parts.number == layer.parts.number && old.parts.bits == layer.parts.bits &&
          old.parts.blocks == layer.parts.blocks) {
        layer.tested = old.tested;
      }
    }
  }
}

Status ServeTable::TestBlock(const Layer& layer, uint64_t number, const TagBucket** index) const {
  const Bytes bytes = layer.parts.blocks[number];
  uint32_t rows = 0, full = 0;
  std::vector<TagBucket> made;
  if (BlockView::Sound(codec_, bytes.first, bytes.second, number, &rows, &full)) {
    made = BuildIndex(BlockView(codec_, bytes.first, rows, full), number, layer.parts.bits);
  }
  if (made.empty()) {
    return Error(Code::kCorruption,
                 "%s: block %" PRIu64 " of layer %" PRIu64
                 " (%zu bytes) is damaged: its CRC32C, "
                 "its counts or the order of its keys is wrong; roll back, or export again",
                 name_.c_str(), number, layer.parts.number, bytes.second);
  }
  OpenBlock& block = layer.tested->blocks[number];
  const std::lock_guard<std::mutex> lock(layer.tested->mutex);
  *index = block.index.load(std::memory_order_relaxed);
  if (*index != nullptr) return Status::Ok();  // another thread has done it
  const Result<const char*> kept =
      layer.tested->index.Keep(made.data(), made.size() * sizeof(TagBucket));
  PBX_RETURN_IF_ERROR(kept.status());
  block.data = bytes.first;
  if (ResidentBytes() + bytes.second <= resident_bytes_) {
    const Result<const char*> copy = layer.tested->copies.Keep(bytes.first, bytes.second);
    if (copy.ok()) {  // if there is no memory for a copy, the mapped file is used
      block.data = copy.value();
      layer.tested->resident += bytes.second;
    }
  }
  block.rows = rows;
  block.full = full;
  bool kind;
  block.alike = full == 0 || full == rows ? View(block).Row(0, &kind) : nullptr;
  *index = reinterpret_cast<const TagBucket*>(kept.value());
  block.index.store(*index, std::memory_order_release);
  return Status::Ok();
}

size_t ServeTable::NextLayer(size_t layer, uint64_t key) const {
  for (; layer < layers_.size(); ++layer) {
    const LayerParts& parts = layers_[layer].parts;
    if (parts.filter.bits == 0) break;
    if (key >= parts.min_key && key <= parts.max_key &&
        MayHold(parts.filter_table, layers_[layer].filter, key)) {
      break;
    }
  }
  return layer;
}

Status ServeTable::Find(size_t layer, uint64_t key, const char** row, bool* full) const {
  *row = nullptr;
  for (layer = NextLayer(layer, key); layer < layers_.size(); layer = NextLayer(layer + 1, key)) {
    const int bits = layers_[layer].parts.bits;
    const OpenBlock* block = nullptr;
    const TagBucket* index = nullptr;
    PBX_RETURN_IF_ERROR(Block(layers_[layer], BlockOf(key, bits), &block, &index));
    if (block->rows == 0) continue;
    const BlockView view = View(*block);
    const uint32_t at = FindIn(index + BucketOf(key, bits, block->rows), view, key);
    if (at == block->rows) continue;
    *row = view.Row(at, full);
    break;
  }
  return Status::Ok();
}

Status ServeTable::FindGroup(const uint64_t* feasigns, size_t n, const char** rows,
                             bool* full) const {
  struct Probe {
    uint64_t key;
    size_t layer;             // the newest one that may have the key
    const TagBucket* bucket;  // null: the block has no rows
    const OpenBlock* block;
    const char* at;  // the key of the row to compare first; null: none
  };
  Probe probes[kGroup];
  const bool unfiltered = !layers_.empty() && layers_[0].parts.filter.bits == 0;
  for (size_t i = 0; i < n; ++i) {
    Probe& probe = probes[i];
    probe.key = KeyOf(feasigns[i]);
    probe.layer = feasigns[i] == 0 ? layers_.size() : unfiltered ? 0 : NextLayer(0, probe.key);
    if (probe.layer == layers_.size()) continue;
    const Layer& layer = layers_[probe.layer];
    probe.block = &layer.tested->blocks[BlockOf(probe.key, layer.parts.bits)];
    Prefetch(probe.block);
  }
  for (size_t i = 0; i < n; ++i) {
    Probe& probe = probes[i];
    probe.bucket = nullptr;
    if (probe.layer == layers_.size()) continue;
    const int bits = layers_[probe.layer].parts.bits;
    const TagBucket* index = nullptr;
    PBX_RETURN_IF_ERROR(
        Block(layers_[probe.layer], BlockOf(probe.key, bits), &probe.block, &index));
    if (probe.block->rows == 0) continue;
    probe.bucket = index + BucketOf(probe.key, bits, probe.block->rows);
    Prefetch(probe.bucket);
  }
  for (size_t i = 0; i < n; ++i) {
    Probe& probe = probes[i];
    probe.at = nullptr;
    if (probe.bucket == nullptr) continue;
    const OpenBlock& block = *probe.block;
    uint32_t others;
    const uint32_t place = GuessIn(*probe.bucket, block.rows, probe.key, &others);
    if (place == block.rows) continue;
    rows[i] = RowAt(block, place, &full[i]);
    probe.at = rows[i] - BlockView::kKeyBytes;
    const char* const last = rows[i] + codec_.bytes(full[i]) - 1;
    for (const char* line = probe.at; line < last; line += 64) Prefetch(line);
    Prefetch(last);
    for (; others != 0; others &= others - 1) {
      bool kind;
      const auto next = static_cast<uint32_t>(__builtin_ctz(others));
      Prefetch(RowAt(block, probe.bucket->first + next, &kind));
    }
  }
  for (size_t i = 0; i < n; ++i) {
    const Probe& probe = probes[i];
    if (probe.at != nullptr && std::memcmp(probe.at, &probe.key, 8) == 0) continue;
    // Another row has the same tag, or the bucket is crowded, or the layer does not have the key.
    const size_t layer =
        probe.at != nullptr || probe.layer == layers_.size() ? probe.layer : probe.layer + 1;
    PBX_RETURN_IF_ERROR(Find(layer, probe.key, &rows[i], &full[i]));
  }
  return Status::Ok();
}

Status ServeTable::Pull(const uint64_t* feasigns, const int32_t* offsets, const float* factors,
                        size_t instances, const float* dense, float* out) const {
  PBX_RETURN_IF_ERROR(PullInto(feasigns, offsets, factors, instances, out, output_width()));
  for (size_t b = 0; dense_width_ != 0 && b < instances; ++b) {
    std::memcpy(out + b * output_width() + pooled_width(), dense + b * dense_width_,
                dense_width_ * sizeof(float));
  }
  return Status::Ok();
}

Status ServeTable::PullInto(const uint64_t* feasigns, const int32_t* offsets, const float* factors,
                            size_t instances, float* out, size_t stride) const {
  // If several tables are read, those without weights and poolings get factors of 1.
  if (factors != nullptr && AreOnes(factors, static_cast<size_t>(offsets[instances * slots_]))) {
    factors = nullptr;
  }
  // If there is nothing to sum and no logarithm, rows are copied directly. This takes a quarter
  // less time than going through tiles.
  bool copies = factors == nullptr && !codec_.counts() &&
                static_cast<size_t>(offsets[instances * slots_]) == instances * slots_;
  if (copies) {
    int32_t differs = 0;
    for (size_t i = 0; i < instances * slots_; ++i) differs |= offsets[i] ^ static_cast<int32_t>(i);
    copies = differs == 0;
  }
  return copies ? PullCopies(feasigns, instances, out, stride)
                : PullPooled(feasigns, offsets, factors, instances, out, stride);
}

Status ServeTable::PullCopies(const uint64_t* feasigns, size_t instances, float* out,
                              size_t stride) const {
  const size_t n = instances * slots_;
  size_t slot = 0;
  for (size_t i = 0; i < n; i += kGroup) {
    const size_t count = std::min(kGroup, n - i);
    const char* found[kGroup];
    bool full[kGroup];
    PBX_RETURN_IF_ERROR(FindGroup(feasigns + i, count, found, full));
    for (size_t j = 0; j < count; ++j) {
      if (found[j] == nullptr) {
        std::fill_n(out, width_, 0.0f);
      } else {
        codec_.DecodeWeights(found[j], full[j], out);
      }
      out += width_;
      if (++slot != slots_) continue;
      slot = 0;
      out += stride - pooled_width();
    }
  }
  return Status::Ok();
}

Status ServeTable::PullPooled(const uint64_t* feasigns, const int32_t* offsets,
                              const float* factors, size_t instances, float* out,
                              size_t stride) const {
  const Kernels& kernels = ActiveKernels();
  const size_t row_bytes = accessor_.layout.bytes();
  thread_local std::vector<float> rows;
  thread_local std::vector<int32_t> ids;
  const auto nnz = static_cast<size_t>(offsets[instances * slots_]);
  if (ids.size() < nnz) ids.resize(nnz);
  for (size_t begin = 0; begin < instances;) {
    // Takes as many instances as fit into a tile, and at least one.
    const auto first = static_cast<size_t>(offsets[begin * slots_]);
    size_t end = begin + 1;
    while (end < instances &&
           (static_cast<size_t>(offsets[(end + 1) * slots_]) - first) * row_bytes <= kTileBytes) {
      ++end;
    }
    const auto last = static_cast<size_t>(offsets[end * slots_]);
    const size_t room = (last - first) * row_bytes / sizeof(float);
    if (rows.size() < room) rows.resize(room);
    int32_t id = 0;
    for (size_t i = first; i < last; i += kGroup) {
      const size_t n = std::min(kGroup, last - i);
      const char* found[kGroup];
      bool full[kGroup];
      PBX_RETURN_IF_ERROR(FindGroup(feasigns + i, n, found, full));
      for (size_t j = 0; j < n; ++j) {
        ids[i + j] = found[j] == nullptr ? -1 : id++;
        if (found[j] == nullptr) continue;
        codec_.Decode(found[j], full[j],
                      rows.data() + static_cast<size_t>(ids[i + j]) * (row_bytes / 4));
      }
    }
    RowBlock block;
    block.rows = reinterpret_cast<char*>(rows.data());
    block.row_bytes = static_cast<uint32_t>(row_bytes);
    block.config = &accessor_;
    PooledOutput output;
    output.out = out;
    output.slots = slots_;
    output.extra = stride - pooled_width();
    output.factors = factors;
    const size_t segments[2] = {begin * slots_, end * slots_};
    if (counts_.cvm && codec_.more_counts() != 0) {
      PullPooledCounts(block, ids.data(), offsets, segments[0], segments[1], output);
    } else {
      kernels.pull_pooled(block, ids.data(), offsets, segments[0], segments[1], counts_.cvm,
                          output);
    }
    for (size_t b = begin; b < end && !counts_.clicks.empty(); ++b) {
      SumClicks(rows.data(), ids.data(), offsets + b * slots_,
                out + b * stride + pooled_width() + dense_width_);
    }
    begin = end;
  }
  return Status::Ok();
}

void ServeTable::SumClicks(const float* rows, const int32_t* ids, const int32_t* offsets,
                           float* out) const {
  const size_t words = accessor_.layout.bytes() / 4, count = counts_.clicks.size();
  for (size_t k = 0; k < count; ++k) {
    const size_t slot = counts_.clicks[k];
    float show = 0.0f, click = 0.0f;
    for (int32_t i = offsets[slot]; i < offsets[slot + 1]; ++i) {
      if (ids[i] < 0) continue;
      const float* const row = rows + static_cast<size_t>(ids[i]) * words;
      show += row[RowLayout::kShow];
      click += row[RowLayout::kClick];
    }
    out[k] = show;
    out[count + k] = click;
  }
}

Status ServeTable::Contains(const uint64_t* feasigns, size_t n, uint8_t* found) const {
  for (size_t i = 0; i < n; ++i) {
    const char* row = nullptr;
    bool full = false;
    if (feasigns[i] != 0) PBX_RETURN_IF_ERROR(Find(0, KeyOf(feasigns[i]), &row, &full));
    const auto zero = [](char c) { return c == 0; };
    found[i] = row != nullptr && (full || !std::all_of(row, row + codec_.short_bytes(), zero));
  }
  return Status::Ok();
}

Status ServeTable::TestAll() const {
  for (const Layer& layer : layers_) {
    for (uint64_t i = 0; i < layer.parts.blocks.size(); ++i) {
      const OpenBlock* block = nullptr;
      const TagBucket* index = nullptr;
      PBX_RETURN_IF_ERROR(Block(layer, i, &block, &index));
    }
  }
  return Status::Ok();
}

size_t ServeTable::ResidentBytes() const {
  size_t bytes = 0;
  for (const Layer& layer : layers_) bytes += layer.tested->resident;
  return bytes;
}

ServeTable::Cursor::Cursor(const ServeTable& table, size_t first, size_t last)
    : table_(table), first_(first), at_(last - first) {}

Status ServeTable::Cursor::Start() {
  for (size_t i = 0; i < at_.size(); ++i) PBX_RETURN_IF_ERROR(Settle(i));
  Choose();
  return Status::Ok();
}

Status ServeTable::Cursor::Settle(size_t layer) {
  At& at = at_[layer];
  const Layer& of = table_.layers_[first_ + layer];
  for (; at.block < of.parts.blocks.size(); ++at.block, at.i = 0) {
    const OpenBlock* block = nullptr;
    const TagBucket* index = nullptr;
    PBX_RETURN_IF_ERROR(table_.Block(of, at.block, &block, &index));
    if (at.i == block->rows) continue;
    at.key = table_.View(*block).key(at.i);
    return Status::Ok();
  }
  at.done = true;
  return Status::Ok();
}

void ServeTable::Cursor::Choose() {
  size_t newest = at_.size();
  for (size_t i = at_.size(); i-- > 0;) {
    if (!at_[i].done && (newest == at_.size() || at_[i].key <= at_[newest].key)) newest = i;
  }
  done_ = newest == at_.size();
  if (done_) return;
  const At& at = at_[newest];
  const Layer& of = table_.layers_[first_ + newest];
  key_ = at.key;
  row_ = table_.View(of.tested->blocks[at.block]).Row(at.i, &full_);
}

bool ServeTable::Cursor::zeros() const {
  const auto zero = [](char c) { return c == 0; };
  return !full_ && std::all_of(row_, row_ + table_.codec_.short_bytes(), zero);
}

Status ServeTable::Cursor::Next() {
  const uint64_t key = key_;
  for (size_t i = 0; i < at_.size(); ++i) {
    if (at_[i].done || at_[i].key != key) continue;
    ++at_[i].i;
    PBX_RETURN_IF_ERROR(Settle(i));
  }
  Choose();
  return Status::Ok();
}

}  // namespace pbx
