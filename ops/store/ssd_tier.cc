#include "store/ssd_tier.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <condition_variable>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "base/file.h"
#include "base/prefetch.h"
#include "store/batch_read.h"
#include "store/cuts.h"
#include "store/merge_cursor.h"
#include "store/segment_reader.h"
#include "store/segment_writer.h"

namespace pbx {
namespace {

// Widths of fingerprints. A key of the oldest segment is first checked against the filters of up to
// fifteen younger segments. So younger segments have stricter filters: together, they cause reads
// for at most 1 % of the absent keys.
constexpr uint32_t kBaseFilterBits = 8;
constexpr uint32_t kYoungFilterBits = 12;
constexpr int kMergeNice = 10;             // training has priority
constexpr uint64_t kRowsPerGlance = 4096;  // rows between two checks of a merge
// Blocks in the sample of a segment, and in all samples. They have 12 rows each, of 40 bytes, so
// samples take up to 16 MiB.
constexpr size_t kSampleBlocks = 24, kAllSampleBlocks = 1 << 15, kRowsOfBlock = 12;

// What all ranges of a merge share.
struct MergePlan {
  std::vector<const SegmentReader*> readers;
  Segments older, younger;  // segments that overlap the keys of the inputs
  uint64_t sequence = 0;
  uint32_t filter_bits = 0;
};

bool Newer(const std::shared_ptr<const SegmentReader>& a,
           const std::shared_ptr<const SegmentReader>& b) {
  const SegmentShape &x = a->shape(), &y = b->shape();
  return x.sequence != y.sequence ? x.sequence > y.sequence : x.min_key < y.min_key;
}

bool Overlap(const SegmentShape& shape, uint64_t min_key, uint64_t max_key) {
  return shape.min_key <= max_key && shape.max_key >= min_key;
}

// The segments with a sequence in [first, end) that overlap the keys.
Segments Overlapping(const Segments& all, uint64_t first, uint64_t end, uint64_t min_key,
                     uint64_t max_key) {
  Segments found;
  std::copy_if(all.begin(), all.end(), std::back_inserter(found), [&](const auto& segment) {
    const SegmentShape& shape = segment->shape();
    return shape.sequence >= first && shape.sequence < end && Overlap(shape, min_key, max_key);
  });
  return found;
}

bool MayHoldKey(const Segments& segments, uint64_t key) {
  const uint32_t ask = 0;
  return std::any_of(segments.begin(), segments.end(), [&](const auto& segment) {
    if (!Overlap(segment->shape(), key, key)) return false;
    uint32_t passed = 0, rejected = 0;
    size_t n_rejected = 0;
    return segment->Select(&key, &ask, 1, &passed, &rejected, &n_rejected) != 0;
  });
}

// The first words of some rows of a segment. The keys of a segment are mixed, so every block is a
// random sample.
struct Sample {
  std::vector<uint64_t> keys;
  std::vector<std::array<float, SsdTier::kSampledWords>> heads;
  std::vector<bool> dead;
};

Sample SampleOf(const SegmentReader& segment, size_t blocks, size_t row_bytes) {
  Sample sample;
  const size_t all = segment.shape().blocks(), wanted = kRowsOfBlock * blocks;
  blocks = std::min(blocks, all);
  auto buffer = Buffer::Allocate(segment.shape().block_bytes);
  for (size_t i = 0; i < blocks && buffer.ok(); ++i) {
    const size_t block = i * all / blocks;
    const char* bytes = buffer.value().data();
    if (!segment.ReadBlocks(block, 1, buffer.value().data()).ok()) continue;  // a read reports it
    const size_t rows = segment.shape().rows_in_block(block);
    const size_t step = std::max<size_t>(1, rows * blocks / wanted);
    for (size_t row = 0; row < rows; row += step) {
      sample.keys.push_back(SegmentReader::KeyAt(bytes, row));
      sample.heads.emplace_back();
      std::memcpy(sample.heads.back().data(), segment.RowAt(bytes, row),
                  std::min(row_bytes, sizeof(sample.heads.back())));
    }
  }
  sample.dead.resize(sample.keys.size());
  return sample;
}

// Keeps the error of the lowest task, so that the reported error does not depend on timing.
class FirstError {
 public:
  void Report(size_t task, Status status) {
    if (status.ok()) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!status_.ok() && task_ <= task) return;
    task_ = task;
    status_ = std::move(status);
  }
  bool any() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return !status_.ok();
  }
  // Valid after all tasks.
  const Status& status() const { return status_; }

 private:
  mutable std::mutex mutex_;
  size_t task_ = 0;
  Status status_;
};

}  // namespace

struct SsdTier::Impl {
  Impl(const SsdOptions& settings, ThreadPool* threads)
      : options(settings),
        writers(2 * threads->threads()),
        mergers(threads->threads() + 2, kMergeNice),
        reader(threads) {}

  std::shared_ptr<const Segments> Current() const {
    const std::lock_guard<std::mutex> lock(mutex);
    return current;
  }
  uint64_t BytesOf(const Segments& segments) const {
    uint64_t bytes = 0;
    for (const auto& segment : segments) bytes += segment->shape().file_bytes();
    return bytes;
  }
  uint64_t TakeIds(uint64_t count) {
    const std::lock_guard<std::mutex> lock(mutex);
    return std::exchange(next_id, next_id + count);
  }
  SegmentSpec SpecOf(uint64_t id, uint64_t sequence, uint32_t filter_bits) const {
    return {id, sequence, options.row_bytes, options.layout_fingerprint, filter_bits};
  }
  void Remove(const std::vector<SegmentDescriptor>& files) const {
    for (const SegmentDescriptor& file : files) {
      unlink((options.folder + "/" + file.file).c_str());
    }
  }
  Status CheckClosed(const MergeRequest& request, const Segments& inputs, uint64_t min_key,
                     uint64_t max_key) const;
  Status WaitForReaders(const MergeRequest& request);
  Status MergeInto(const MergeRequest& request, const Segments& inputs, const Segments& all,
                   MergeResult* result);
  Status MergeRange(const MergeRequest& request, const MergePlan& plan, uint64_t low, uint64_t high,
                    MergeResult* result);

  const SsdOptions options;
  ThreadPool writers;  // a commit must not wait for a long read
  ThreadPool mergers;  // a merge waits for the disk half of the time
  BatchReader reader;

  std::mutex prepare;        // one Prepare at a time
  mutable std::mutex mutex;  // guards current, next_id and next_sequence
  std::shared_ptr<const Segments> current = std::make_shared<Segments>();
  uint64_t next_id = 1;
  uint64_t next_sequence = 1;

  std::mutex sampling;                 // guards samples
  std::map<uint64_t, Sample> samples;  // of the segments with these ids

  std::mutex pause;  // guards reads
  std::condition_variable no_reads;
  int reads = 0;
  std::atomic<bool> cancelled{false};

  std::atomic<uint64_t> keys_asked{0}, bytes_written{0}, merge_read{0}, merge_written{0};
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
    return Error(Code::kNotFound, "SSD tier: folder %s does not exist or cannot be read",
                 options.folder.c_str());
  }
  std::unique_ptr<SsdTier> tier(new SsdTier(std::make_unique<Impl>(options, pool)));
  PBX_RETURN_IF_ERROR(tier->Publish(segments));
  return tier;
}

Status SsdTier::Replace(const std::vector<uint64_t>& removed,
                        const std::vector<SegmentDescriptor>& added) {
  const SegmentLayout layout{impl_->options.row_bytes, impl_->options.layout_fingerprint};
  PBX_RETURN_IF_ERROR(EnsureOpenFiles(segments() + added.size()));
  std::vector<std::unique_ptr<SegmentReader>> opened(added.size());
  FirstError error;
  // Opening a segment reads its fence and filter. For a large store, this takes minutes on one
  // thread.
  impl_->writers.ParallelFor(added.size(), [&](size_t i) {
    auto reader =
        SegmentReader::Open(impl_->options.folder + "/" + added[i].file, layout, &added[i]);
    error.Report(i, reader.status());
    if (reader.ok()) opened[i] = std::move(reader.value());
  });
  PBX_RETURN_IF_ERROR(error.status());

  const std::lock_guard<std::mutex> lock(impl_->mutex);
  std::set<uint64_t> gone(removed.begin(), removed.end());
  auto next = std::make_shared<Segments>();
  for (const auto& segment : *impl_->current) {
    if (gone.erase(segment->shape().id) == 0) next->push_back(segment);
  }
  if (!gone.empty()) {
    return Error(Code::kInvalidArgument, "SSD tier %s: segment %" PRIu64 " is not in it",
                 impl_->options.folder.c_str(), *gone.begin());
  }
  std::set<uint64_t> ids;
  for (auto& reader : opened) next->push_back(std::move(reader));
  for (const auto& segment : *next) {
    const SegmentShape& shape = segment->shape();
    if (!ids.insert(shape.id).second) {
      return Error(Code::kInvalidArgument, "SSD tier %s: segment %" PRIu64 " is named twice",
                   impl_->options.folder.c_str(), shape.id);
    }
    impl_->next_id = std::max(impl_->next_id, shape.id + 1);
    impl_->next_sequence = std::max(impl_->next_sequence, shape.sequence + 1);
  }
  std::sort(next->begin(), next->end(), Newer);
  impl_->current = std::move(next);
  return Status::Ok();
}

Status SsdTier::Read(const uint64_t* keys, size_t n, char* rows, uint8_t* found) {
  impl_->keys_asked += static_cast<uint64_t>(std::count(found, found + n, uint8_t{0}));
  const std::shared_ptr<const Segments> segments = impl_->Current();
  {
    const std::lock_guard<std::mutex> lock(impl_->pause);
    ++impl_->reads;
  }
  Status status = impl_->reader.Read(*segments, keys, n, impl_->options.row_bytes, rows, found);
  {
    const std::lock_guard<std::mutex> lock(impl_->pause);
    --impl_->reads;
  }
  impl_->no_reads.notify_all();
  return status;
}

void SsdTier::MayHold(const uint64_t* keys, size_t n, uint8_t* may_hold) const {
  const std::shared_ptr<const Segments> segments = impl_->Current();
  for (size_t i = 0; i < n; ++i) may_hold[i] = MayHoldKey(*segments, keys[i]) ? 1 : 0;
}

// ---- Writing

Result<std::vector<SegmentDescriptor>> SsdTier::Prepare(const uint64_t* keys,
                                                        const char* const* row_pointers, size_t n) {
  if (n == 0) return std::vector<SegmentDescriptor>();
  const std::lock_guard<std::mutex> one(impl_->prepare);
  const SsdOptions& options = impl_->options;
  const uint64_t rows_below = rows();
  const uint32_t filter_bits = n > rows_below ? kBaseFilterBits : kYoungFilterBits;
  const uint64_t stored = n * (8ull + options.row_bytes);
  const int bits =
      CutBits(stored, 0, UINT64_MAX,
              RangeBits(std::max(stored, uint64_t{bytes()}), options.max_segment_bytes));
  const uint64_t most =
      SegmentWriter::RowsWithin(options.max_segment_bytes, options.row_bytes, filter_bits);
  std::vector<size_t> begins;  // first row of each file
  for (size_t begin = 0; begin < n;) {
    const uint64_t range = RangeOf(keys[begin], bits);
    const size_t end = static_cast<size_t>(
        std::partition_point(keys + begin, keys + n,
                             [&](uint64_t key) { return RangeOf(key, bits) <= range; }) -
        keys);
    const size_t pieces = (end - begin + most - 1) / most;
    for (size_t i = 0; i < pieces; ++i) begins.push_back(begin + (end - begin) * i / pieces);
    begin = end;
  }
  begins.push_back(n);

  uint64_t id, sequence;
  {
    const std::lock_guard<std::mutex> lock(impl_->mutex);
    id = std::exchange(impl_->next_id, impl_->next_id + begins.size() - 1);
    sequence = impl_->next_sequence++;
  }
  std::vector<SegmentDescriptor> written(begins.size() - 1);
  FirstError error;
  impl_->writers.ParallelFor(written.size(), [&](size_t file) {
    const auto write = [&]() -> Status {
      auto writer =
          SegmentWriter::Create(options.folder, impl_->SpecOf(id + file, sequence, filter_bits));
      if (!writer.ok()) return writer.status();
      for (size_t i = begins[file]; i < begins[file + 1]; ++i) {
        // Rows are scattered over the table: without a prefetch each copy waits for memory.
        if (i + 16 < n) Prefetch(row_pointers[i + 16]);
        PBX_RETURN_IF_ERROR(writer.value()->Append(keys[i], row_pointers[i]));
      }
      auto descriptor = writer.value()->Finish();
      if (descriptor.ok()) written[file] = descriptor.value();
      return descriptor.status();
    };
    if (!error.any()) error.Report(file, write());
  });
  Status status = error.status();
  if (status.ok()) status = SyncFolder(options.folder);
  written.erase(std::remove_if(written.begin(), written.end(),
                               [](const SegmentDescriptor& file) { return file.id == 0; }),
                written.end());
  if (!status.ok()) {
    impl_->Remove(written);
    return status;
  }
  for (const SegmentDescriptor& file : written) impl_->bytes_written += file.bytes;
  return written;
}

Status SsdTier::Write(const uint64_t* keys, const char* rows, size_t n) {
  std::vector<const char*> pointers(n);
  for (size_t i = 0; i < n; ++i) pointers[i] = rows + i * impl_->options.row_bytes;
  const auto prepared = Prepare(keys, pointers.data(), n);
  return prepared.ok() ? Publish(prepared.value()) : prepared.status();
}

// ---- Merging

void SsdTier::CancelMerges() {
  impl_->cancelled = true;
  impl_->no_reads.notify_all();
}

Status SsdTier::Impl::WaitForReaders(const MergeRequest& request) {
  std::unique_lock<std::mutex> lock(pause);
  while (!cancelled && !request.urgent && reads > 0) {
    no_reads.wait_for(lock, std::chrono::milliseconds(100));
  }
  if (!cancelled) return Status::Ok();
  return Error(Code::kFailedPrecondition, "SSD tier %s: merge cancelled", options.folder.c_str());
}

Status SsdTier::Impl::CheckClosed(const MergeRequest& request, const Segments& inputs,
                                  uint64_t min_key, uint64_t max_key) const {
  const std::set<uint64_t> chosen(request.inputs.begin(), request.inputs.end());
  const uint64_t newest = inputs.front()->shape().sequence;
  const uint64_t oldest = inputs.back()->shape().sequence;
  const std::shared_ptr<const Segments> segments = Current();
  for (const auto& segment : *segments) {
    const SegmentShape& shape = segment->shape();
    if (shape.sequence < oldest || shape.sequence > newest || chosen.count(shape.id) != 0 ||
        !Overlap(shape, min_key, max_key)) {
      continue;
    }
    return Error(Code::kInvalidArgument,
                 "merge: segment %" PRIu64 " (sequence %" PRIu64
                 ") must be an input too: it overlaps the inputs of sequence %" PRIu64
                 " to %" PRIu64,
                 shape.id, shape.sequence, oldest, newest);
  }
  return Status::Ok();
}

Result<MergeResult> SsdTier::Merge(const MergeRequest& request) {
  const std::shared_ptr<const Segments> all = impl_->Current();
  const std::set<uint64_t> chosen(request.inputs.begin(), request.inputs.end());
  Segments inputs;  // newest first, like `all`
  for (const auto& segment : *all) {
    if (chosen.count(segment->shape().id) != 0) inputs.push_back(segment);
  }
  if (inputs.empty() || inputs.size() != chosen.size()) {
    return Error(Code::kInvalidArgument, "merge: %zu of the %zu inputs are segments of %s",
                 inputs.size(), chosen.size(), impl_->options.folder.c_str());
  }
  MergeResult result;
  const Status status = impl_->MergeInto(request, inputs, *all, &result);
  if (!status.ok()) {
    impl_->Remove(result.segments);
    return status;
  }
  impl_->merge_read += result.bytes_read;
  impl_->merge_written += result.bytes_written;
  return result;
}

Status SsdTier::Impl::MergeInto(const MergeRequest& request, const Segments& inputs,
                                const Segments& all, MergeResult* result) {
  const uint64_t oldest = inputs.back()->shape().sequence;
  MergePlan plan;
  plan.sequence = inputs.front()->shape().sequence;
  uint64_t min_key = UINT64_MAX, max_key = 0;
  for (const auto& input : inputs) {
    min_key = std::min(min_key, input->shape().min_key);
    max_key = std::max(max_key, input->shape().max_key);
    result->bytes_read += input->shape().fence_offset();
    plan.readers.push_back(input.get());
  }
  PBX_RETURN_IF_ERROR(CheckClosed(request, inputs, min_key, max_key));
  plan.older = Overlapping(all, 0, oldest, min_key, max_key);
  plan.younger = Overlapping(all, plan.sequence + 1, UINT64_MAX, min_key, max_key);
  plan.filter_bits = plan.older.empty() ? kBaseFilterBits : kYoungFilterBits;
  const int bits = CutBits(BytesOf(inputs), min_key, max_key,
                           RangeBits(BytesOf(all), options.max_segment_bytes));
  const uint64_t first = RangeOf(min_key, bits);
  const uint64_t ranges = RangeOf(max_key, bits) - first + 1;
  std::vector<MergeResult> parts(ranges);
  FirstError error;
  const auto merge = [&](size_t i) {
    if (error.any()) return;
    const uint64_t low = bits == 0 ? 0 : (first + i) << (64 - bits);
    const uint64_t high = bits == 0 ? UINT64_MAX : low + (1ull << (64 - bits)) - 1;
    error.Report(i, MergeRange(request, plan, low, high, &parts[i]));
  };
  // The pool runs one merge after the other. Small merges run on the threads of their callers, so
  // that several can run at the same time.
  if (ranges < static_cast<uint64_t>(mergers.threads())) {
    for (size_t i = 0; i < ranges; ++i) merge(i);
  } else {
    mergers.ParallelFor(ranges, merge);
  }
  for (const MergeResult& part : parts) {
    result->segments.insert(result->segments.end(), part.segments.begin(), part.segments.end());
    result->rows_in += part.rows_in;
    result->rows_out += part.rows_out;
    result->rows_dropped += part.rows_dropped;
    result->keys_gone += part.keys_gone;
    result->bytes_written += part.bytes_written;
  }
  PBX_RETURN_IF_ERROR(error.status());
  return SyncFolder(options.folder);
}

// Merges the rows with keys in [low, high] into one file, or into several within the size limit.
Status SsdTier::Impl::MergeRange(const MergeRequest& request, const MergePlan& plan, uint64_t low,
                                 uint64_t high, MergeResult* result) {
  const uint64_t most =
      SegmentWriter::RowsWithin(options.max_segment_bytes, options.row_bytes, plan.filter_bits);
  MergeCursor cursor(plan.readers, low, high);
  std::unique_ptr<SegmentWriter> writer;
  uint64_t in_file = 0;
  const auto finish = [&]() -> Status {
    if (writer == nullptr) return Status::Ok();
    auto descriptor = writer->Finish();
    writer = nullptr;
    if (!descriptor.ok()) return descriptor.status();
    result->segments.push_back(descriptor.value());
    result->bytes_written += descriptor.value().bytes;
    return Status::Ok();
  };
  std::vector<char> row(options.row_bytes);
  for (uint64_t steps = 0;; ++steps) {
    if (steps % kRowsPerGlance == 0) PBX_RETURN_IF_ERROR(WaitForReaders(request));
    PBX_RETURN_IF_ERROR(cursor.Next());
    if (cursor.done()) break;
    const char* copied = cursor.row();
    if (request.life != nullptr) {
      std::copy_n(copied, row.size(), row.data());
      if (request.life(cursor.key(), row.data())) {
        copied = row.data();
      } else if (!MayHoldKey(plan.older, cursor.key())) {
        ++result->rows_dropped;
        // The key still has a row if a younger segment holds one.
        result->keys_gone += MayHoldKey(plan.younger, cursor.key()) ? 0 : 1;
        continue;
      }
    }
    if (writer != nullptr && in_file == most) PBX_RETURN_IF_ERROR(finish());
    if (writer == nullptr) {
      auto created = SegmentWriter::Create(options.folder,
                                           SpecOf(TakeIds(1), plan.sequence, plan.filter_bits));
      if (!created.ok()) return created.status();
      writer = std::move(created.value());
      in_file = 0;
    }
    PBX_RETURN_IF_ERROR(writer->Append(cursor.key(), copied));
    ++in_file;
    ++result->rows_out;
  }
  result->rows_in = cursor.copies();
  return finish();
}

std::vector<DeadShare> SsdTier::DeadShares(
    const std::function<bool(uint64_t key, float* head)>& survives) {
  const std::lock_guard<std::mutex> one(impl_->sampling);
  const std::shared_ptr<const Segments> all = impl_->Current();
  const size_t blocks =
      std::clamp<size_t>(kAllSampleBlocks / std::max<size_t>(1, all->size()), 1, kSampleBlocks);
  std::map<uint64_t, Sample> samples;
  std::vector<DeadShare> found;
  for (const auto& segment : *all) {
    if (impl_->cancelled) return {};
    const SegmentShape& shape = segment->shape();
    auto known = impl_->samples.extract(shape.id);
    if (known.empty()) {
      samples[shape.id] = SampleOf(*segment, blocks, impl_->options.row_bytes);
    } else {
      samples.insert(std::move(known));
    }
    Sample& sample = samples[shape.id];
    const size_t n = sample.keys.size();
    for (size_t i = 0; i < n; ++i) {
      sample.dead[i] = sample.dead[i] || !survives(sample.keys[i], sample.heads[i].data());
    }
    if (std::find(sample.dead.begin(), sample.dead.end(), true) == sample.dead.end()) continue;
    const uint64_t low = shape.min_key, high = shape.max_key, age = shape.sequence;
    const Segments older = Overlapping(*all, 0, age, low, high);
    const Segments younger = Overlapping(*all, age + 1, UINT64_MAX, low, high);
    size_t droppable = 0, gone = 0;
    for (size_t i = 0; i < n; ++i) {
      if (!sample.dead[i]) continue;
      droppable += MayHoldKey(older, sample.keys[i]) ? 0 : 1;
      gone += MayHoldKey(younger, sample.keys[i]) ? 0 : 1;
    }
    const double rows = static_cast<double>(n);
    found.push_back(
        {shape.id, static_cast<double>(droppable) / rows, static_cast<double>(gone) / rows});
  }
  impl_->samples = std::move(samples);
  return found;
}

// ---- The whole tier

Status SsdTier::Visit(uint64_t low, uint64_t high,
                      const std::function<Status(uint64_t key, const char* row)>& visit) {
  const std::shared_ptr<const Segments> segments = impl_->Current();
  std::vector<const SegmentReader*> readers;
  for (const auto& segment : *segments) readers.push_back(segment.get());
  MergeCursor cursor(std::move(readers), low, high);
  for (;;) {
    PBX_RETURN_IF_ERROR(cursor.Next());
    if (cursor.done()) return Status::Ok();
    PBX_RETURN_IF_ERROR(visit(cursor.key(), cursor.row()));
  }
}

size_t SsdTier::rows() const {
  const std::shared_ptr<const Segments> segments = impl_->Current();
  size_t rows = 0;
  for (const auto& segment : *segments) rows += segment->shape().rows;
  return rows;
}

size_t SsdTier::bytes() const { return impl_->BytesOf(*impl_->Current()); }

size_t SsdTier::memory_bytes() const {
  const std::shared_ptr<const Segments> segments = impl_->Current();
  size_t bytes = 0;
  for (const auto& segment : *segments) bytes += segment->memory_bytes();
  return bytes;
}

size_t SsdTier::segments() const { return impl_->Current()->size(); }

SsdCounters SsdTier::counters() const {
  const ReadCounts read = impl_->reader.counts();
  SsdCounters counters;
  counters.keys_asked = impl_->keys_asked;
  counters.filter_passed = read.filter_passed;
  counters.rows_found = read.rows_found;
  counters.absent_read = read.absent_read;
  counters.blocks_read = read.blocks_read;
  counters.read_requests = read.read_requests;
  counters.bytes_read = read.bytes_read;
  counters.bytes_written = impl_->bytes_written;
  counters.merge_bytes_read = impl_->merge_read;
  counters.merge_bytes_written = impl_->merge_written;
  return counters;
}

}  // namespace pbx
