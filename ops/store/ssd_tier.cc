#include "store/ssd_tier.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <memory>
#include <mutex>
#include <queue>
#include <utility>

#include "base/file.h"
#include "store/segment_reader.h"
#include "store/segment_writer.h"

namespace pbx {
namespace {

// Ascending by id. Never changed once it is shared: Publish makes a new one.
using Segments = std::vector<std::shared_ptr<const SegmentReader>>;

// Fewer blocks than this are not worth a task of their own.
constexpr size_t kBlocksPerTask = 16;

bool ById(const std::shared_ptr<const SegmentReader>& a,
          const std::shared_ptr<const SegmentReader>& b) {
  return a->shape().id < b->shape().id;
}

// The error of the lowest task, so that which error is told does not depend on who comes first.
class FirstError {
 public:
  void Report(size_t task, Status status) {
    if (status.ok()) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!status_.ok() && task_ <= task) return;
    task_ = task;
    status_ = std::move(status);
  }
  const Status& status() const { return status_; }

 private:
  std::mutex mutex_;
  size_t task_ = 0;
  Status status_;
};

}  // namespace

struct SsdTier::Impl {
  Impl(const SsdOptions& settings, ThreadPool* threads) : options(settings), pool(threads) {}

  std::shared_ptr<const Segments> Current() const {
    const std::lock_guard<std::mutex> lock(mutex);
    return current;
  }
  std::string PathOf(uint64_t id) const { return options.folder + "/" + SegmentFileName(id); }

  Status ReadSegment(const SegmentReader& segment, const uint64_t* keys, size_t n, char* rows,
                     uint8_t* found);
  Status WriteSegments(const uint64_t* keys, const char* const* row_pointers, size_t n,
                       std::vector<SegmentDescriptor>* out);

  const SsdOptions options;
  ThreadPool* const pool;

  std::mutex prepare;        // one Prepare at a time
  mutable std::mutex mutex;  // guards current and next_id
  std::shared_ptr<const Segments> current = std::make_shared<Segments>();
  uint64_t next_id = 1;

  std::atomic<uint64_t> keys_asked{0}, filter_passed{0}, rows_found{0}, blocks_read{0},
      bytes_read{0}, bytes_written{0};
};

SsdTier::SsdTier(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SsdTier::~SsdTier() = default;

Result<std::unique_ptr<SsdTier>> SsdTier::Open(const SsdOptions& options,
                                               const std::vector<SegmentDescriptor>& segments,
                                               ThreadPool* pool) {
  if (options.row_bytes == 0 || options.row_bytes > SegmentShape::kMaxRowBytes) {
    return Error(Code::kInvalidArgument, "SSD tier: row_bytes must be 1 to %u, found %u",
                 SegmentShape::kMaxRowBytes, options.row_bytes);
  }
  if (access(options.folder.c_str(), R_OK | X_OK) != 0) {
    return Error(Code::kNotFound, "SSD tier: folder %s is absent or may not be read",
                 options.folder.c_str());
  }
  std::unique_ptr<SsdTier> tier(new SsdTier(std::make_unique<Impl>(options, pool)));
  PBX_RETURN_IF_ERROR(tier->Publish(segments));
  return tier;
}

Status SsdTier::Publish(const std::vector<SegmentDescriptor>& segments) {
  const SegmentLayout layout{impl_->options.row_bytes, impl_->options.layout_fingerprint};
  std::vector<std::unique_ptr<SegmentReader>> opened(segments.size());
  FirstError error;
  // Opening reads fence and filter: minutes for a large store on one thread.
  impl_->pool->ParallelFor(segments.size(), [&](size_t i) {
    auto reader =
        SegmentReader::Open(impl_->options.folder + "/" + segments[i].file, layout, &segments[i]);
    error.Report(i, reader.status());
    if (reader.ok()) opened[i] = std::move(reader.value());
  });
  PBX_RETURN_IF_ERROR(error.status());

  const std::lock_guard<std::mutex> lock(impl_->mutex);
  auto next = std::make_shared<Segments>(*impl_->current);
  for (auto& reader : opened) next->push_back(std::move(reader));
  std::sort(next->begin(), next->end(), ById);
  for (size_t i = 1; i < next->size(); ++i) {
    if ((*next)[i - 1]->shape().id == (*next)[i]->shape().id) {
      return Error(Code::kInvalidArgument, "SSD tier %s: segment %" PRIu64 " is named twice",
                   impl_->options.folder.c_str(), (*next)[i]->shape().id);
    }
  }
  if (!next->empty()) impl_->next_id = std::max(impl_->next_id, next->back()->shape().id + 1);
  impl_->current = std::move(next);
  return Status::Ok();
}

Status SsdTier::Read(const uint64_t* keys, size_t n, char* rows, uint8_t* found) {
  impl_->keys_asked += static_cast<uint64_t>(std::count(found, found + n, uint8_t{0}));
  const std::shared_ptr<const Segments> segments = impl_->Current();
  for (auto segment = segments->rbegin(); segment != segments->rend(); ++segment) {
    const SegmentShape& shape = (*segment)->shape();
    const uint64_t* begin = std::lower_bound(keys, keys + n, shape.min_key);
    const uint64_t* end = std::upper_bound(begin, keys + n, shape.max_key);
    if (begin == end) continue;
    const size_t skipped = static_cast<size_t>(begin - keys);
    PBX_RETURN_IF_ERROR(impl_->ReadSegment(**segment, begin, static_cast<size_t>(end - begin),
                                           rows + skipped * shape.row_bytes, found + skipped));
  }
  return Status::Ok();
}

// keys: (n), n >= 1, all within [min_key, max_key].
Status SsdTier::Impl::ReadSegment(const SegmentReader& segment, const uint64_t* keys, size_t n,
                                  char* rows, uint8_t* found) {
  const size_t row_bytes = segment.shape().row_bytes;
  const std::vector<uint64_t>& fence = segment.fence();
  const size_t first = segment.BlockOf(keys[0], 0);
  const size_t blocks = segment.BlockOf(keys[n - 1], first) - first + 1;
  // A task owns whole blocks, so that no block is read twice.
  const auto first_key_of = [&](size_t block) {
    if (block == 0) return size_t{0};
    if (block == blocks) return n;
    return static_cast<size_t>(std::lower_bound(keys, keys + n, fence[first + block]) - keys);
  };
  FirstError error;
  pool->ParallelRanges(blocks, kBlocksPerTask, [&](size_t begin_block, size_t end_block) {
    const size_t begin = first_key_of(begin_block);
    const size_t end = first_key_of(end_block);
    if (begin == end) return;
    SegmentReader::Counts counts;
    error.Report(begin, segment.Read(keys + begin, end - begin, rows + begin * row_bytes,
                                     found + begin, &counts));
    filter_passed += counts.filter_passed;
    rows_found += counts.rows_found;
    blocks_read += counts.blocks_read;
    bytes_read += counts.bytes_read;
  });
  return error.status();
}

Status SsdTier::Impl::WriteSegments(const uint64_t* keys, const char* const* row_pointers, size_t n,
                                    std::vector<SegmentDescriptor>* out) {
  uint64_t id;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    id = next_id;
  }
  const uint64_t most = SegmentWriter::RowsWithin(options.max_segment_bytes, options.row_bytes);
  const size_t pieces = (n + most - 1) / most;
  for (size_t piece = 0; piece < pieces; ++piece, ++id) {
    auto writer =
        SegmentWriter::Create(options.folder, id, options.row_bytes, options.layout_fingerprint);
    if (!writer.ok()) return writer.status();
    const size_t end = n * (piece + 1) / pieces;
    for (size_t i = n * piece / pieces; i < end; ++i) {
      // Rows lie scattered over the table: without this the copy waits for memory at each of them.
      if (i + 16 < end) __builtin_prefetch(row_pointers[i + 16]);
      PBX_RETURN_IF_ERROR(writer.value()->Append(keys[i], row_pointers[i]));
    }
    auto descriptor = writer.value()->Finish();
    if (!descriptor.ok()) return descriptor.status();
    out->push_back(descriptor.value());
  }
  return pieces == 0 ? Status::Ok() : SyncFolder(options.folder);
}

Result<std::vector<SegmentDescriptor>> SsdTier::Prepare(const uint64_t* keys,
                                                        const char* const* row_pointers, size_t n) {
  const std::lock_guard<std::mutex> one(impl_->prepare);
  std::vector<SegmentDescriptor> written;
  const Status status = impl_->WriteSegments(keys, row_pointers, n, &written);
  if (!status.ok()) {
    for (const SegmentDescriptor& segment : written) unlink(impl_->PathOf(segment.id).c_str());
    return status;
  }
  for (const SegmentDescriptor& segment : written) impl_->bytes_written += segment.bytes;
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  if (!written.empty()) impl_->next_id = std::max(impl_->next_id, written.back().id + 1);
  return written;
}

Status SsdTier::Write(const uint64_t* keys, const char* rows, size_t n) {
  std::vector<const char*> pointers(n);
  for (size_t i = 0; i < n; ++i) pointers[i] = rows + i * impl_->options.row_bytes;
  const auto prepared = Prepare(keys, pointers.data(), n);
  return prepared.ok() ? Publish(prepared.value()) : prepared.status();
}

Status SsdTier::Visit(const std::function<Status(uint64_t key, const char* row)>& visit) {
  const std::shared_ptr<const Segments> segments = impl_->Current();
  std::vector<SegmentCursor> cursors;
  cursors.reserve(segments->size());
  for (const auto& segment : *segments) cursors.emplace_back(segment.get());
  // Smallest key on top; of one key the newest, which is the cursor with the highest index.
  const auto later = [&](size_t a, size_t b) {
    return cursors[a].key() != cursors[b].key() ? cursors[a].key() > cursors[b].key() : a < b;
  };
  std::priority_queue<size_t, std::vector<size_t>, decltype(later)> heap(later);
  for (size_t i = 0; i < cursors.size(); ++i) heap.push(i);
  bool any = false;
  uint64_t last = 0;
  while (!heap.empty()) {
    const size_t top = heap.top();
    heap.pop();
    SegmentCursor& cursor = cursors[top];
    // A cursor stands unread on its segment's first key until the merge gets there, so range
    // segments do not all hold a buffer at once.
    if (!cursor.loaded()) PBX_RETURN_IF_ERROR(cursor.Next());
    if (!any || cursor.key() != last) PBX_RETURN_IF_ERROR(visit(cursor.key(), cursor.row()));
    any = true;
    last = cursor.key();
    PBX_RETURN_IF_ERROR(cursor.Next());
    if (!cursor.done()) heap.push(top);
  }
  return Status::Ok();
}

size_t SsdTier::rows() const {
  const std::shared_ptr<const Segments> segments = impl_->Current();
  size_t sum = 0;
  for (const auto& segment : *segments) sum += segment->shape().rows;
  return sum;
}

size_t SsdTier::bytes() const {
  const std::shared_ptr<const Segments> segments = impl_->Current();
  size_t sum = 0;
  for (const auto& segment : *segments) sum += segment->shape().file_bytes();
  return sum;
}

size_t SsdTier::memory_bytes() const {
  const std::shared_ptr<const Segments> segments = impl_->Current();
  size_t sum = 0;
  for (const auto& segment : *segments) sum += segment->memory_bytes();
  return sum;
}

size_t SsdTier::segments() const { return impl_->Current()->size(); }

SsdCounters SsdTier::counters() const {
  SsdCounters out;
  out.keys_asked = impl_->keys_asked;
  out.filter_passed = impl_->filter_passed;
  out.rows_found = impl_->rows_found;
  out.blocks_read = impl_->blocks_read;
  out.bytes_read = impl_->bytes_read;
  out.bytes_written = impl_->bytes_written;
  return out;
}

uint64_t SsdTier::next_id() const {
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  return impl_->next_id;
}

}  // namespace pbx
