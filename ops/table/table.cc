#include "table/table.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/sorted_merge.h"
#include "row/feasign.h"

namespace pbx {
namespace {

constexpr size_t kRowsPerTask = 4096;

void MarkOrigin(const std::vector<uint8_t>& found, Origin origin, std::vector<Origin>* origins) {
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i] != 0 && (*origins)[i] == Origin::kNew) (*origins)[i] = origin;
  }
}

// Copies the rows of `from` that exist and are among keys. rows: (n, row_bytes).
void CopyExisting(const PassTable& from, const std::vector<uint64_t>& keys, char* rows,
                  std::vector<uint8_t>* found) {
  const std::vector<uint64_t>& theirs = from.table->keys();
  const size_t row_bytes = from.table->row_bytes();
  ForEachCommon(keys.data(), keys.size(), theirs.data(), theirs.size(), [&](size_t i, size_t j) {
    if ((*found)[i] != 0 || !from.Exists(j)) return;
    std::memcpy(rows + i * row_bytes, from.table->row(j), row_bytes);
    (*found)[i] = 1;
  });
}

}  // namespace

Table::Table(TableConfig config)
    : config_(std::move(config)),
      pool_(std::make_unique<ThreadPool>(config_.threads)),
      staging_pool_(std::make_unique<ThreadPool>(config_.threads)) {}

Table::~Table() = default;

Result<std::unique_ptr<Table>> Table::Open(const TableConfig& config,
                                           const std::vector<SegmentDescriptor>& segments) {
  const int dim = config.accessor.layout.embedx_dim;
  if (dim < 1 || dim > 253) {
    return Error(Code::kInvalidArgument, "table '%s': embedx_dim is %d, expected 1 to 253",
                 config.name.c_str(), dim);
  }
  std::unique_ptr<Table> table(new Table(config));
  // The states' sizes follow from the rules: nobody else sets them.
  RowLayout& layout = table->config_.accessor.layout;
  layout.embed_state = rule::StateSize(config.accessor.embed.kind, 1);
  layout.embedx_state = rule::StateSize(config.accessor.embedx.kind, dim);
  Result<std::unique_ptr<MemTier>> mem = MemTier::Open(table->row_bytes(), config.mem_budget_bytes);
  if (!mem.ok()) return mem.status();
  table->mem_ = std::move(mem.value());
  if (!config.ssd_folder.empty()) {
    SsdOptions options;
    options.folder = config.ssd_folder;
    options.row_bytes = table->row_bytes();
    options.layout_fingerprint = layout.Fingerprint();
    options.max_segment_bytes = config.max_segment_bytes;
    Result<std::unique_ptr<SsdTier>> ssd =
        SsdTier::Open(options, segments, table->staging_pool_.get());
    if (!ssd.ok()) return ssd.status();
    table->ssd_ = std::move(ssd.value());
  }
  return Result<std::unique_ptr<Table>>(std::move(table));
}

uint64_t Table::max_pass_rows() const {
  const uint64_t rows = config_.hbm_budget_bytes / 3 / PassTable::BytesPerRow(row_bytes());
  return std::min<uint64_t>(rows, INT32_MAX);
}

// ---- Staging

Result<StagedPass> Table::Stage(const uint64_t* keys, const uint16_t* slots, size_t n,
                                Purpose purpose, uint32_t day) {
  const bool train = purpose == Purpose::kTrain;
  if (n > max_pass_rows()) {
    return Error(Code::kOutOfSpace,
                 "hbm.budget_bytes: a pass of %zu rows needs %" PRIu64
                 " bytes (three pass tables of "
                 "%" PRIu64 " bytes a row), the budget is %" PRIu64,
                 n, 3 * n * PassTable::BytesPerRow(row_bytes()),
                 PassTable::BytesPerRow(row_bytes()), config_.hbm_budget_bytes);
  }
  for (size_t i = 0; i < n; ++i) {
    if (keys[i] <= (i == 0 ? 0 : keys[i - 1])) {
      return Error(Code::kInvalidArgument,
                   "pass keys: entry %zu is not above the one before it (or is padding)", i);
    }
  }
  const std::lock_guard<std::mutex> lock(residency_);
  if (abandoned_) {
    return Error(Code::kFailedPrecondition,
                 "table '%s': a pass was abandoned; reopen the table at its last commit",
                 config_.name.c_str());
  }
  if (train && config_.read_only) {
    return Error(Code::kFailedPrecondition, "table '%s' is read-only: it takes no training pass",
                 config_.name.c_str());
  }
  if (train && staged_train_ != nullptr) {
    return Error(Code::kFailedPrecondition, "pass %d is staged already: begin_pass it first",
                 staged_train_->stamp);
  }
  if (!train && training_ != nullptr && training_->purpose == Purpose::kTrain) {
    return Error(Code::kFailedPrecondition,
                 "pass %d trains: an evaluation can be staged after its end_pass",
                 training_->stamp);
  }

  auto pass = std::make_shared<PassTable>();
  pass->purpose = purpose;
  pass->day = day;
  std::vector<uint64_t> wanted(keys, keys + n);
  Result<std::unique_ptr<HbmTier>> built = HbmTier::Build(row_bytes(), wanted);
  if (!built.ok()) return built.status();
  pass->table = std::move(built.value());
  pass->origin.assign(n, Origin::kNew);
  pass->touched.assign(n, 0);
  char* rows = n == 0 ? nullptr : pass->table->row(0);

  std::vector<uint8_t> found(n, 0);
  if (train && training_ != nullptr && training_->purpose == Purpose::kTrain) {
    const std::vector<uint64_t>& held = training_->table->keys();
    ForEachCommon(wanted.data(), n, held.data(), held.size(), [&](size_t i, size_t) {
      pass->awaited.push_back(static_cast<uint32_t>(i));
      found[i] = 1;
    });
  }
  for (const std::shared_ptr<PassTable>& holder : {frozen_, train ? nullptr : staged_train_}) {
    if (holder != nullptr) CopyExisting(*holder, wanted, rows, &found);
  }
  MarkOrigin(found, Origin::kHbm, &pass->origin);
  PBX_RETURN_IF_ERROR(train ? mem_->Take(keys, n, rows, found.data())
                            : mem_->Read(keys, n, rows, found.data()));
  MarkOrigin(found, Origin::kMem, &pass->origin);
  if (ssd_ != nullptr) {
    PBX_RETURN_IF_ERROR(ssd_->Read(keys, n, rows, found.data()));
    MarkOrigin(found, Origin::kSsd, &pass->origin);
  }

  StagedPass staged;
  for (const Origin origin : pass->origin) ++staged.rows_by_origin[static_cast<size_t>(origin)];
  staged.row_of_key.resize(n);
  if (train) {
    std::iota(staged.row_of_key.begin(), staged.row_of_key.end(), 0);
    // Awaited rows are made too: the pass that holds them may end without having created them.
    for (const uint32_t id : pass->awaited) found[id] = 0;
    staging_pool_->ParallelRanges(n, kRowsPerTask, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        if (found[i] != 0) continue;
        accessor::Create(config_.accessor, keys[i], slots == nullptr ? uint16_t{0} : slots[i],
                         reinterpret_cast<float*>(pass->table->row(i)));
      }
    });
  } else {
    // Only what exists gets a row: absent feasigns read as zeros through id -1.
    std::vector<uint64_t> present;
    for (size_t i = 0; i < n; ++i) {
      staged.row_of_key[i] = found[i] != 0 ? static_cast<int32_t>(present.size()) : -1;
      if (found[i] != 0) present.push_back(keys[i]);
    }
    Result<std::unique_ptr<HbmTier>> compact = HbmTier::Build(row_bytes(), std::move(present));
    if (!compact.ok()) return compact.status();
    for (size_t i = 0; i < n; ++i) {
      if (found[i] == 0) continue;
      std::memcpy(compact.value()->row(static_cast<size_t>(staged.row_of_key[i])),
                  pass->table->row(i), row_bytes());
    }
    pass->table = std::move(compact.value());
    pass->origin.assign(pass->rows(), Origin::kHbm);
    pass->touched.assign(pass->rows(), 0);
  }

  pass->stamp = next_stamp_++;
  staged.stamp = pass->stamp;
  staged.rows = pass->rows();
  if (train) {
    staged_train_ = std::move(pass);
  } else {
    staged_evaluate_.push_back(std::move(pass));
  }
  return Result<StagedPass>(std::move(staged));
}

Status Table::DropStaged(int32_t stamp) {
  const std::lock_guard<std::mutex> lock(residency_);
  if (staged_train_ != nullptr && staged_train_->stamp == stamp) {
    PBX_RETURN_IF_ERROR(ReturnToMem(*staged_train_, {training_.get(), frozen_.get()}));
    staged_train_ = nullptr;
    return Status::Ok();
  }
  const auto it = std::find_if(staged_evaluate_.begin(), staged_evaluate_.end(),
                               [&](const auto& pass) { return pass->stamp == stamp; });
  if (it == staged_evaluate_.end()) {
    return Error(Code::kFailedPrecondition, "pass %d is not staged", stamp);
  }
  staged_evaluate_.erase(it);
  return Status::Ok();
}

// Gives a pass's existing rows back to MEM, but for those that another pass table holds.
Status Table::ReturnToMem(const PassTable& pass, const std::vector<const PassTable*>& holders) {
  const std::vector<uint64_t>& keys = pass.table->keys();
  std::vector<uint8_t> held(keys.size(), 0);
  for (const PassTable* holder : holders) {
    if (holder == nullptr || holder->purpose != Purpose::kTrain) continue;
    const std::vector<uint64_t>& theirs = holder->table->keys();
    ForEachCommon(keys.data(), keys.size(), theirs.data(), theirs.size(),
                  [&](size_t i, size_t) { held[i] = 1; });
  }
  std::vector<uint64_t> back;
  std::vector<const char*> rows;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (held[i] != 0 || !pass.Exists(i)) continue;
    back.push_back(keys[i]);
    rows.push_back(pass.table->row(i));
  }
  return mem_->Insert(back.data(), rows.data(), back.size(), ssd_ != nullptr);
}

// ---- Life of a pass

Status Table::Begin(int32_t stamp) {
  const std::lock_guard<std::mutex> lock(residency_);
  if (training_ != nullptr) {
    return Error(Code::kFailedPrecondition,
                 "begin_pass: pass %d is still open; end_pass is missing", training_->stamp);
  }
  std::shared_ptr<PassTable> pass;
  if (staged_train_ != nullptr && staged_train_->stamp == stamp) {
    pass = std::move(staged_train_);
    staged_train_ = nullptr;
  } else {
    const auto it = std::find_if(staged_evaluate_.begin(), staged_evaluate_.end(),
                                 [&](const auto& other) { return other->stamp == stamp; });
    if (it == staged_evaluate_.end()) {
      return Error(Code::kFailedPrecondition, "begin_pass: pass %d is not staged", stamp);
    }
    pass = std::move(*it);
    staged_evaluate_.erase(it);
  }
  const std::lock_guard<std::mutex> open(open_mutex_);
  training_ = std::move(pass);
  return Status::Ok();
}

Status Table::End() {
  const std::lock_guard<std::mutex> lock(residency_);
  if (training_ == nullptr) {
    return Error(Code::kFailedPrecondition, "end_pass: no pass is open; begin_pass is missing");
  }
  if (training_->purpose == Purpose::kTrain && frozen_ != nullptr) {
    return Error(Code::kFailedPrecondition, "end_pass: pass %d is not committed yet",
                 frozen_->stamp);
  }
  std::shared_ptr<PassTable> ended;
  {
    const std::lock_guard<std::mutex> open(open_mutex_);
    ended = std::move(training_);
    training_ = nullptr;
  }
  if (ended->purpose == Purpose::kEvaluate) return Status::Ok();
  frozen_ = ended;
  if (staged_train_ == nullptr) return Status::Ok();
  PassTable& next = *staged_train_;
  staging_pool_->ParallelRanges(next.awaited.size(), kRowsPerTask, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const uint32_t id = next.awaited[i];
      // Every awaited key is in the ended pass: that is why it was awaited.
      const size_t from = static_cast<size_t>(ended->table->index().Find(next.table->keys()[id]));
      if (ended->Exists(from)) {
        std::memcpy(next.table->row(id), ended->table->row(from), row_bytes());
      } else {
        next.origin[id] = Origin::kNew;
      }
    }
  });
  next.awaited.clear();
  return Status::Ok();
}

Status Table::Abandon() {
  const std::lock_guard<std::mutex> lock(residency_);
  if (training_ == nullptr) {
    return Error(Code::kFailedPrecondition, "no pass is open: there is nothing to abandon");
  }
  const std::lock_guard<std::mutex> open(open_mutex_);
  if (training_->purpose == Purpose::kTrain) {
    abandoned_ = true;
    staged_train_ = nullptr;  // it awaits rows that will not come
  }
  training_ = nullptr;
  return Status::Ok();
}

Result<std::vector<SegmentDescriptor>> Table::WriteFrozen() {
  std::shared_ptr<PassTable> pass;
  {
    const std::lock_guard<std::mutex> lock(residency_);
    pass = frozen_;
  }
  if (pass == nullptr) {
    return Error(Code::kFailedPrecondition, "commit: no pass has ended; end_pass is missing");
  }
  std::vector<uint64_t> keys;
  std::vector<const char*> rows;
  for (size_t i = 0; i < pass->rows(); ++i) {
    if (pass->touched[i] == 0) continue;
    keys.push_back(pass->table->keys()[i]);
    rows.push_back(pass->table->row(i));
  }
  Result<std::vector<SegmentDescriptor>> segments{std::vector<SegmentDescriptor>()};
  if (ssd_ != nullptr && !keys.empty()) {
    segments = ssd_->Prepare(keys.data(), rows.data(), keys.size());
  }
  const std::lock_guard<std::mutex> lock(residency_);
  pass->written = segments.ok();
  return segments;
}

Status Table::Publish(const std::vector<SegmentDescriptor>& segments) {
  {
    const std::lock_guard<std::mutex> lock(residency_);
    if (frozen_ == nullptr) {
      return Error(Code::kFailedPrecondition, "commit: no pass has ended; end_pass is missing");
    }
    if (!frozen_->written) {
      return Error(Code::kFailedPrecondition,
                   "commit: pass %d is not written yet; write_frozen is missing", frozen_->stamp);
    }
  }
  // Before the rows leave the pass table, so that there is no moment at which they are nowhere.
  if (!segments.empty()) {
    if (ssd_ == nullptr) {
      return Error(Code::kInvalidArgument, "table '%s' has no SSD folder to take %zu segments",
                   config_.name.c_str(), segments.size());
    }
    PBX_RETURN_IF_ERROR(ssd_->Publish(segments));
  }
  const std::lock_guard<std::mutex> lock(residency_);
  PBX_RETURN_IF_ERROR(ReturnToMem(*frozen_, {training_.get(), staged_train_.get()}));
  frozen_ = nullptr;
  return Status::Ok();
}

bool Table::training() const {
  const std::lock_guard<std::mutex> open(open_mutex_);
  return training_ != nullptr;
}

bool Table::has_frozen() const {
  const std::lock_guard<std::mutex> lock(residency_);
  return frozen_ != nullptr;
}

int32_t Table::stamp() const {
  const std::lock_guard<std::mutex> open(open_mutex_);
  return training_ == nullptr ? 0 : training_->stamp;
}

// ---- The whole table

Status Table::Idle(const char* what) const {
  const std::lock_guard<std::mutex> lock(residency_);
  if (abandoned_ && ssd_ == nullptr) {
    return Error(Code::kFailedPrecondition,
                 "%s: a pass of table '%s' was abandoned, and without an SSD folder there is no "
                 "commit to go back to",
                 what, config_.name.c_str());
  }
  if (staged_train_ == nullptr && training_ == nullptr && frozen_ == nullptr) return Status::Ok();
  return Error(Code::kFailedPrecondition,
               "%s: a pass is %s; the whole table can be read between passes", what,
               training_ != nullptr ? "open"
               : frozen_ != nullptr ? "being committed"
                                    : "staged");
}

Status Table::Visit(const std::function<Status(uint64_t key, const char* row)>& visit) {
  PBX_RETURN_IF_ERROR(Idle("visit"));
  return ssd_ != nullptr ? ssd_->Visit(visit) : mem_->Visit(visit);
}

Result<std::string> Table::Digest() {
  uint64_t sums[2] = {0, 0}, pairs = 0;
  PBX_RETURN_IF_ERROR(Visit([&](uint64_t key, const char* row) {
    for (uint64_t seed = 0; seed < 2; ++seed) {
      sums[seed] += HashBytes(row, row_bytes(), Mix(key + seed * 0x9e3779b97f4a7c15ULL));
    }
    ++pairs;
    return Status::Ok();
  }));
  char text[33];
  std::snprintf(text, sizeof(text), "%016" PRIx64 "%016" PRIx64, Mix(sums[0] + pairs), sums[1]);
  return Result<std::string>(std::string(text));
}

size_t Table::pairs_upper_bound() const { return ssd_ != nullptr ? ssd_->rows() : mem_->rows(); }

TableCounters Table::counters() const {
  TableCounters counters;
  counters.rows_pulled = rows_pulled_.load();
  counters.rows_pushed = rows_pushed_.load();
  const std::lock_guard<std::mutex> lock(residency_);
  counters.mem_rows = mem_->rows();
  counters.mem_bytes = mem_->bytes();
  counters.mem_evicted = mem_->counters().evicted;
  if (ssd_ != nullptr) {
    counters.ssd_rows = ssd_->rows();
    counters.ssd_bytes = ssd_->bytes();
    counters.ssd_segments = ssd_->segments();
    counters.ssd_memory_bytes = ssd_->memory_bytes();
    counters.ssd = ssd_->counters();
  }
  return counters;
}

}  // namespace pbx
