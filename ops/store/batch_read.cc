#include "store/batch_read.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <utility>

#include "base/async_reader.h"
#include "base/buffer.h"

namespace pbx {
namespace {

constexpr size_t kRequestBytes = 512u << 10;  // 256 KiB is 10 % slower, 1 MiB no faster
// Bytes of the blocks of a tile: its filters and requests fit in L2.
constexpr uint64_t kTileBytes = 8u << 20;
constexpr size_t kMinTileKeys = 64;
// Requests in flight over all threads: a solid-state disk needs about 64 small requests to be busy.
constexpr size_t kDepth = 64;
constexpr size_t kMinDepth = 16;
constexpr size_t kNone = SegmentReader::kNone;

}  // namespace

// One call of Read, shared by the workers.
struct BatchReader::Batch {
  const Segments& segments;
  const uint64_t* keys;
  size_t n;
  uint32_t row_bytes;
  char* rows;
  uint8_t* found;
  size_t tile_keys;
  uint64_t gap_bytes;
  std::atomic<size_t> next_key{0};

  std::mutex mutex;  // guards the members below
  Status status;
  // First key of the tile that failed. If several fail, the lowest key wins, so the error does not
  // depend on timing.
  size_t failed_at = kNone;
  ReadCounts counts;
};

// The state of one reading thread: its requests in flight and a buffer for each.
class BatchReader::Worker {
 public:
  static Result<std::unique_ptr<Worker>> Create(size_t depth, size_t slot_bytes) {
    auto reader = AsyncReader::Create(depth);
    if (!reader.ok()) return reader.status();
    auto memory = Buffer::Allocate(depth * slot_bytes);
    if (!memory.ok()) return memory.status();
    std::unique_ptr<Worker> worker(new Worker);
    worker->reader_ = std::move(reader.value());
    worker->memory_ = std::move(memory.value());
    worker->slot_bytes_ = slot_bytes;
    worker->slots_.resize(depth);
    for (size_t i = depth; i > 0; --i) worker->free_.push_back(i - 1);
    return worker;
  }

  size_t slot_bytes() const { return slot_bytes_; }

  // Takes tiles of the batch until none is left or a read fails.
  void Run(Batch* batch) {
    batch_ = batch;
    counts_ = ReadCounts();
    Status status;
    bool more = true;
    while (status.ok()) {
      // Plans ahead of the disk, but at most as many requests as fit in one queue.
      while (more && pending_.size() < slots_.size()) more = PlanNextTile();
      status = Submit();
      if (!status.ok() || reader_->in_flight() == 0) {
        if (pending_.empty() && !more) break;
        continue;
      }
      status = CompleteOne();
    }
    while (reader_->in_flight() > 0) {  // after an error: waits until no read uses the buffers
      ReadDone done;
      if (!reader_->Wait(&done).ok()) break;
      free_.push_back(done.tag);
    }
    const std::lock_guard<std::mutex> lock(batch->mutex);
    if (!status.ok() && failed_at_ < batch->failed_at) {
      batch->failed_at = failed_at_;
      batch->status = std::move(status);
    }
    Add(counts_, &batch->counts);
    pending_.clear();
    tiles_.clear();
  }

  static void Add(const ReadCounts& from, ReadCounts* to) {
    to->filter_passed += from.filter_passed;
    to->rows_found += from.rows_found;
    to->absent_read += from.absent_read;
    to->blocks_read += from.blocks_read;
    to->read_requests += from.read_requests;
    to->bytes_read += from.bytes_read;
  }

 private:
  struct Wanted {
    uint32_t index;  // in the tile
    uint32_t rank;   // of the segment
    uint64_t block;
  };
  struct Tile {
    size_t begin = 0;                 // index of the first key of the tile
    std::vector<Wanted> wanted;       // each request has a range of these
    std::vector<uint32_t> misses_at;  // (keys) 1 + rank of the segment that did not have the key
    std::vector<uint32_t> missed;     // indices, without repeats
    size_t requests = 0;              // not completed yet
  };
  struct Request {
    Tile* tile = nullptr;
    const SegmentReader* segment = nullptr;
    size_t first_block = 0, blocks = 0;
    size_t begin = 0, end = 0;  // of tile->wanted
  };

  bool PlanNextTile() {
    const size_t begin = batch_->next_key.fetch_add(batch_->tile_keys);
    if (begin >= batch_->n) return false;
    const size_t keys = std::min(batch_->tile_keys, batch_->n - begin);
    auto tile = std::make_unique<Tile>();
    tile->begin = begin;
    tile->misses_at.assign(keys, 0);
    ask_.clear();
    for (size_t i = 0; i < keys; ++i) {
      if (batch_->found[begin + i] == 0) ask_.push_back(static_cast<uint32_t>(i));
    }
    const uint64_t* tile_keys = batch_->keys + begin;
    for (size_t rank = 0; rank < batch_->segments.size() && !ask_.empty(); ++rank) {
      const SegmentReader& segment = *batch_->segments[rank];
      const SegmentShape& shape = segment.shape();
      const auto below = [&](uint32_t i, uint64_t key) { return tile_keys[i] < key; };
      const auto above = [&](uint64_t key, uint32_t i) { return key < tile_keys[i]; };
      const auto first = std::lower_bound(ask_.begin(), ask_.end(), shape.min_key, below);
      const auto last = std::upper_bound(first, ask_.end(), shape.max_key, above);
      if (first == last) continue;
      const size_t asked = static_cast<size_t>(last - first);
      passed_.resize(asked);
      rejected_.resize(asked);
      size_t rejected = 0;
      const size_t passed =
          segment.Select(tile_keys, &*first, asked, passed_.data(), rejected_.data(), &rejected);
      if (passed == 0) continue;
      std::copy_n(rejected_.data(), rejected, first);
      ask_.erase(first + static_cast<ptrdiff_t>(rejected), last);
      PlanSegment(tile.get(), static_cast<uint32_t>(rank), segment, passed);
    }
    if (tile->requests > 0) tiles_.push_back(std::move(tile));
    return true;
  }

  // Makes requests for the keys in passed_[0, passed).
  void PlanSegment(Tile* tile, uint32_t rank, const SegmentReader& segment, size_t passed) {
    const uint64_t* tile_keys = batch_->keys + tile->begin;
    const size_t block_bytes = segment.shape().block_bytes;
    const size_t most = std::max<size_t>(1, kRequestBytes / block_bytes);
    const size_t step = 1 + batch_->gap_bytes / block_bytes;
    counts_.filter_passed += passed;
    Request request;
    request.segment = &segment;
    request.tile = tile;
    request.begin = tile->wanted.size();
    size_t last = 0;
    const auto want = [&](uint32_t index, size_t block) {
      if (request.blocks > 0 && (block > last + step || block >= request.first_block + most)) {
        Emit(&request);
      }
      if (request.blocks == 0) request.first_block = block;
      request.blocks = std::max(request.blocks, block + 1 - request.first_block);
      last = block;
      tile->wanted.push_back({index, rank, block});
    };
    size_t hint = 0;
    for (size_t i = 0; i < passed; ++i) {
      const uint64_t key = tile_keys[passed_[i]];
      hint = segment.BlockOf(key, hint);
      size_t block = hint;
      while (segment.MayBeBefore(key, block)) --block;
      if (request.blocks > 0 && block < request.first_block) Emit(&request);
      for (; block < hint; ++block) want(passed_[i], block);
      want(passed_[i], hint);
    }
    Emit(&request);
  }

  void Emit(Request* request) {
    if (request->blocks == 0) return;
    request->end = request->tile->wanted.size();
    ++request->tile->requests;
    pending_.push_back(*request);
    request->begin = request->end;
    request->blocks = 0;
  }

  Status Submit() {
    while (!pending_.empty() && !free_.empty()) {
      const Request request = pending_.front();
      pending_.pop_front();
      const size_t slot = free_.back();
      free_.pop_back();
      slots_[slot] = request;
      const size_t block_bytes = request.segment->shape().block_bytes;
      const size_t bytes = request.blocks * block_bytes;
      ++counts_.read_requests;
      counts_.bytes_read += bytes;
      failed_at_ = request.tile->begin;
      PBX_RETURN_IF_ERROR(
          reader_->Submit({&request.segment->file(), request.first_block * block_bytes, bytes,
                           memory_.data() + slot * slot_bytes_, slot}));
    }
    return Status::Ok();
  }

  Status CompleteOne() {
    ReadDone done;
    PBX_RETURN_IF_ERROR(reader_->Wait(&done));
    const size_t slot = done.tag;
    const Request request = slots_[slot];
    free_.push_back(slot);
    failed_at_ = request.tile->begin;
    PBX_RETURN_IF_ERROR(done.status);
    PBX_RETURN_IF_ERROR(Decode(request, memory_.data() + slot * slot_bytes_));
    Tile* tile = request.tile;
    if (--tile->requests > 0) return Status::Ok();
    AskOn(tile);
    if (tile->requests == 0) {
      tiles_.erase(std::find_if(tiles_.begin(), tiles_.end(),
                                [&](const auto& other) { return other.get() == tile; }));
    }
    return Status::Ok();
  }

  Status Decode(const Request& request, const char* bytes) {
    const SegmentReader& segment = *request.segment;
    const SegmentShape& shape = segment.shape();
    Tile* tile = request.tile;
    size_t checked = kNone;
    size_t from = 0;
    const char* block = nullptr;
    for (size_t w = request.begin; w < request.end; ++w) {
      const Wanted wanted = tile->wanted[w];
      if (wanted.block != checked) {
        block = bytes + (wanted.block - request.first_block) * shape.block_bytes;
        PBX_RETURN_IF_ERROR(segment.CheckBlock(wanted.block, block));
        checked = wanted.block;
        from = 0;
        ++counts_.blocks_read;
      }
      const size_t i = tile->begin + wanted.index;
      if (batch_->found[i] != 0) continue;
      const size_t at = segment.FindInBlock(wanted.block, block, batch_->keys[i], from);
      if (at == kNone) {
        if (tile->misses_at[wanted.index] == 0) tile->missed.push_back(wanted.index);
        tile->misses_at[wanted.index] = wanted.rank + 1;
        continue;
      }
      std::memcpy(batch_->rows + i * batch_->row_bytes, segment.RowAt(block, at),
                  batch_->row_bytes);
      batch_->found[i] = 1;
      from = at;
      ++counts_.rows_found;
    }
    return Status::Ok();
  }

  // For keys that passed the filter of a segment but are not in it: looks them up in the next older
  // segment whose filter they pass.
  void AskOn(Tile* tile) {
    tile->wanted.clear();
    std::vector<uint32_t> missed;
    missed.swap(tile->missed);
    for (const uint32_t index : missed) {
      const size_t i = tile->begin + index;
      if (batch_->found[i] != 0) continue;  // it was in the next block
      size_t rank = tile->misses_at[index];
      tile->misses_at[index] = 0;
      for (; rank < batch_->segments.size(); ++rank) {
        const SegmentReader& segment = *batch_->segments[rank];
        const SegmentShape& shape = segment.shape();
        const uint64_t key = batch_->keys[i];
        if (key < shape.min_key || key > shape.max_key) continue;
        passed_.resize(1);
        rejected_.resize(1);
        size_t rejected = 0;
        if (segment.Select(batch_->keys + tile->begin, &index, 1, passed_.data(), rejected_.data(),
                           &rejected) == 0) {
          continue;
        }
        PlanSegment(tile, static_cast<uint32_t>(rank), segment, 1);
        break;
      }
      if (rank == batch_->segments.size()) ++counts_.absent_read;
    }
  }

  std::unique_ptr<AsyncReader> reader_;
  Buffer memory_;
  size_t slot_bytes_ = 0;
  std::vector<Request> slots_;
  std::vector<size_t> free_;

  Batch* batch_ = nullptr;
  ReadCounts counts_;
  size_t failed_at_ = kNone;
  std::deque<Request> pending_;
  std::deque<std::unique_ptr<Tile>> tiles_;
  std::vector<uint32_t> ask_, passed_, rejected_;
};

BatchReader::BatchReader(ThreadPool* pool) : pool_(pool) {}
BatchReader::~BatchReader() = default;

Result<std::unique_ptr<BatchReader::Worker>> BatchReader::TakeWorker(size_t slot_bytes) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    while (!idle_.empty()) {
      std::unique_ptr<Worker> worker = std::move(idle_.back());
      idle_.pop_back();
      if (worker->slot_bytes() >= slot_bytes) return worker;
    }
  }
  const size_t depth = std::max(kMinDepth, kDepth / static_cast<size_t>(pool_->threads()));
  return Worker::Create(depth, slot_bytes);
}

void BatchReader::GiveBack(std::unique_ptr<Worker> worker) {
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(std::move(worker));
}

Status BatchReader::Read(const Segments& segments, const uint64_t* keys, size_t n,
                         uint32_t row_bytes, char* rows, uint8_t* found) {
  if (n == 0 || segments.empty()) return Status::Ok();
  uint64_t bytes = 0;
  size_t slot_bytes = kRequestBytes;
  for (const auto& segment : segments) {
    const SegmentShape& shape = segment->shape();
    if (shape.max_key < keys[0] || shape.min_key > keys[n - 1]) continue;
    bytes += shape.fence_offset();
    slot_bytes = std::max<size_t>(slot_bytes, shape.block_bytes);
  }
  const size_t tiles = static_cast<size_t>(bytes / kTileBytes) + 1;
  Batch batch{
      segments,          keys, n,  row_bytes, rows,  found, std::max(kMinTileKeys, n / tiles + 1),
      disk_.gap_bytes(), {},   {}, {},        kNone, {}};
  const size_t workers =
      std::min(static_cast<size_t>(pool_->threads()), (n + batch.tile_keys - 1) / batch.tile_keys);
  const auto started = std::chrono::steady_clock::now();
  pool_->ParallelFor(workers, [&](size_t) {
    auto worker = TakeWorker(slot_bytes);
    if (!worker.ok()) {
      const std::lock_guard<std::mutex> lock(batch.mutex);
      batch.failed_at = 0;
      batch.status = worker.status();
      return;
    }
    worker.value()->Run(&batch);
    GiveBack(std::move(worker.value()));
  });
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - started;
  disk_.Observe(batch.counts.read_requests, batch.counts.bytes_read, took.count());
  const std::lock_guard<std::mutex> lock(mutex_);
  Worker::Add(batch.counts, &counts_);
  return batch.status;
}

ReadCounts BatchReader::counts() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return counts_;
}

}  // namespace pbx
