#include "table/table.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <utility>

#include "row/feasign.h"

namespace pbx {
namespace {

constexpr size_t kRowsPerTask = 4096;
constexpr int kMostCounts = 16;

}  // namespace

Table::Table(TableConfig config)
    : RowAccess(config.threads, config.on_bad_grad, config.bad_grad_bound),
      config_(std::move(config)),
      staging_pool_(std::make_unique<ThreadPool>(config_.threads)),
      mem_pool_(std::make_unique<ThreadPool>(config_.threads)) {
  config_.events.clear();  // AppendEvents adds them
}

Table::~Table() = default;

Result<std::unique_ptr<Table>> Table::Open(const TableConfig& config,
                                           const std::vector<SegmentDescriptor>& segments,
                                           std::unique_ptr<DevicePass> device) {
  const int dim = config.accessor.layout.embedx_dim;
  if (dim < 1 || dim > 253) {
    return Error(Code::kInvalidArgument, "table '%s': embedx_dim is %d, expected 1 to 253",
                 config.name.c_str(), dim);
  }
  if (config.accessor.layout.expand_dim < 0 || config.accessor.layout.expand_dim > 253) {
    return Error(Code::kInvalidArgument, "table '%s': expand_dim is %d, expected 0 to 253",
                 config.name.c_str(), config.accessor.layout.expand_dim);
  }
  const int counts = config.accessor.layout.counts;
  if (counts < 0 || counts > kMostCounts || (counts != 0 && device != nullptr)) {
    return Error(Code::kInvalidArgument,
                 "table '%s': %d counts besides show and click, expected 0 to %d, and 0 for rows "
                 "on a device",
                 config.name.c_str(), counts, kMostCounts);
  }
  const bool decays = config.accessor.weight_decay > 0;
  if (decays && (device != nullptr || config.precision != Precision::kFloat32)) {
    return Error(Code::kInvalidArgument,
                 "table '%s': weight_decay needs rows of float32 on the host", config.name.c_str());
  }
  std::unique_ptr<Table> table(new Table(config));
  table->device_ = std::move(device);
  // The sizes of the states follow from the rules; they are set only here.
  RowLayout& layout = table->config_.accessor.layout;
  layout.embed_state = rule::StateSize(config.accessor.embed.kind, 1);
  layout.embedx_state = rule::StateSize(config.accessor.embedx.kind, dim);
  layout.expand_state =
      layout.expand_dim == 0 ? 0 : rule::StateSize(config.accessor.expand.kind, layout.expand_dim);
  if (!config.slot_rates.empty()) {
    table->config_.slot_rates.resize(1u << 16, 1.0f);  // a row may name any slot
    table->config_.accessor.slot_rates = table->config_.slot_rates.data();
  }
  table->codec_ = RowCodec(layout, config.precision);
  if (config.admission_min_count > 1) {
    Result<AdmissionFilter> filter =
        AdmissionFilter::Make(config.admission_filter_bytes, config.admission_min_count);
    if (!filter.ok()) return filter.status();
    table->admission_ = std::make_unique<AdmissionFilter>(std::move(filter.value()));
  }
  PBX_RETURN_IF_ERROR(table->AppendEvents(config.events));
  Result<std::unique_ptr<MemTier>> mem =
      MemTier::Open(table->stored_row_bytes(), config.mem_budget_bytes);
  if (!mem.ok()) return mem.status();
  table->mem_ = std::move(mem.value());
  if (!config.ssd_folder.empty()) {
    SsdOptions options;
    options.folder = config.ssd_folder;
    options.row_bytes = table->stored_row_bytes();
    options.layout_fingerprint = table->codec_.Fingerprint();
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

// ---- Admission

Status Table::CountKeys(const uint64_t* keys, const uint32_t* counts, size_t n,
                        uint64_t pass_number) {
  if (AdmitsAll()) {
    return Error(Code::kFailedPrecondition,
                 "count_keys: table '%s' admits every feasign (admission.min_count and "
                 "admission.probability are 1)",
                 config_.name.c_str());
  }
  const std::lock_guard<std::mutex> lock(admission_mutex_);
  if (admission_ != nullptr) admission_->Add(keys, counts, n);
  counted_pass_ = pass_number;
  return Status::Ok();
}

std::string Table::AdmissionState() const {
  if (admission_ == nullptr) return {};
  const std::lock_guard<std::mutex> lock(admission_mutex_);
  return {admission_->state(), admission_->bytes()};
}

Status Table::SetAdmissionState(const std::string& state) {
  if (admission_ == nullptr) return Status::Ok();
  const std::lock_guard<std::mutex> lock(admission_mutex_);
  return admission_->SetState(state.data(), state.size());
}

// ---- Life of a pass

Status Table::Begin(int32_t stamp) {
  const std::lock_guard<std::mutex> lock(residency_);
  if (training_ != nullptr) {
    return Error(Code::kFailedPrecondition,
                 "begin_pass: pass %d is still open; end_pass is missing", training_->stamp);
  }
  const bool train = staged_train_ != nullptr && staged_train_->stamp == stamp;
  const auto it = std::find_if(staged_evaluate_.begin(), staged_evaluate_.end(),
                               [&](const auto& other) { return other->stamp == stamp; });
  if (!train && it == staged_evaluate_.end()) {
    return Error(Code::kFailedPrecondition, "begin_pass: pass %d is not staged", stamp);
  }
  std::shared_ptr<PassTable> pass = train ? staged_train_ : *it;
  if (device_ != nullptr) {
    const std::lock_guard<std::mutex> copied(to_device_);
    PBX_RETURN_IF_ERROR(device_->Begin(*pass, LastSeq()));
  }
  if (train && config_.accessor.weight_decay > 0) {
    pass->clock = std::make_unique<DecayClock>();
    pool_->ParallelRanges(pass->rows(), kRowsPerTask, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) {
        SetWord(reinterpret_cast<float*>(pass->table->row(i)), RowLayout::kStep,
                pass->Created(i) ? DecayClock::kNotYet : 0);
      }
    });
  }
  if (train) {
    staged_train_ = nullptr;
    std::vector<uint16_t>().swap(pass->slots);
    std::vector<uint32_t>().swap(pass->awaited);
  } else {
    staged_evaluate_.erase(it);
  }
  const std::lock_guard<std::mutex> open(open_mutex_);
  training_ = std::move(pass);
  return Status::Ok();
}

Status Table::End(uint64_t pass_number) {
  PBX_RETURN_IF_ERROR(EndStep());
  const std::lock_guard<std::mutex> lock(residency_);
  if (training_ == nullptr) {
    return Error(Code::kFailedPrecondition, "end_pass: no pass is open; begin_pass is missing");
  }
  if (training_->purpose == Purpose::kTrain && frozen_ != nullptr) {
    return Error(Code::kFailedPrecondition, "end_pass: pass %d is not committed yet",
                 frozen_->stamp);
  }
  if (device_ != nullptr) {
    AccessCounters counters;
    const Status brought = device_->End(training_.get(), pass_number, &counters);
    AddCounters(counters);
    PBX_RETURN_IF_ERROR(brought);
  }
  std::shared_ptr<PassTable> ended;
  {
    const std::lock_guard<std::mutex> open(open_mutex_);
    ended = std::move(training_);
    training_ = nullptr;
  }
  if (ended->purpose == Purpose::kEvaluate) return Status::Ok();
  if (ended->clock != nullptr) EndClock(ended.get());
  // Pushes set a flag in the row: a separate array would cost a cache miss per row.
  ended->touched.resize(ended->rows());
  pool_->ParallelRanges(ended->rows(), kRowsPerTask, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      float* row = reinterpret_cast<float*>(ended->table->row(i));
      const uint32_t word = GetWord(row, 0), touched = uint32_t{kTouched} << 16;
      ended->touched[i] = (word & touched) != 0 ? 1 : 0;
      if (ended->touched[i] == 0) continue;
      SetWord(row, 0, word & ~touched);
      // Rounded once, before any copy is made, so that a row has the same bits whichever tier it
      // comes back from. A device has rounded its rows already.
      if (codec_.identity() || device_ != nullptr) continue;
      codec_.Round(config_.accessor.seed, ended->table->keys()[i], pass_number, row);
    }
  });
  frozen_ = ended;
  const std::shared_ptr<PassTable> following = staged_train_ != nullptr ? staged_train_ : staging_;
  if (following == nullptr) return Status::Ok();
  PassTable& next = *following;
  pool_->ParallelRanges(next.awaited.size(), kRowsPerTask, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const uint32_t id = next.awaited[i];
      // The ended pass has every awaited key: `awaited` was made from its keys.
      const size_t from = static_cast<size_t>(ended->table->index().Find(next.table->keys()[id]));
      if (ended->Exists(from)) {
        std::memcpy(next.table->row(id), ended->table->row(from), row_bytes());
      } else {
        next.origin[id] = ended->origin[from];  // kNew or kDead: Stage has created the row
      }
    }
  });
  next.awaited.clear();
  // A pass whose rows are still being read is brought up to date when they are there.
  if (!pass_events_.empty()) BringStagedUpToDate();
  return Status::Ok();
}

// Brings the changed rows of the pass up to its last step, and adds the event for all other rows.
void Table::EndClock(PassTable* ended) {
  LifeEvent event;
  event.seq = LastSeq() + 1;
  event.kind = LifeKind::kWeightDecay;
  const DecayClock& clock = *ended->clock;
  event.embed_decay = static_cast<float>(clock.total().embed);
  event.embedx_decay = static_cast<float>(clock.total().embedx);
  pool_->ParallelRanges(ended->rows(), kRowsPerTask, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      float* const row = reinterpret_cast<float*>(ended->table->row(i));
      // A push of expand with a bad gradient has brought its row up to date and changed nothing.
      if (!ended->Created(i) && GetWord(row, RowLayout::kStep) != 0) SetFlag(row, kTouched);
      const bool changed = (GetWord(row, 0) & (uint32_t{kTouched} << 16)) != 0;
      if (changed) clock.CatchUp(config_.accessor.layout, row);
      SetWord(row, RowLayout::kLifeSeq, changed ? event.seq : event.seq - 1);
    }
  });
  ended->clock = nullptr;
  events_.push_back(event);
  pass_events_.push_back(event);
}

std::vector<LifeEvent> Table::TakePassEvents() {
  const std::lock_guard<std::mutex> lock(residency_);
  return std::exchange(pass_events_, {});
}

void Table::NoteDurableEvents() {
  const std::lock_guard<std::mutex> lock(residency_);
  FoldDurable();
}

// All events are durable. The caller holds residency_.
void Table::FoldDurable() {
  life::Fold(&events_);
  durable_events_ = events_.size();
}

Status Table::Abandon() {
  DropStep();
  const std::lock_guard<std::mutex> lock(residency_);
  if (training_ == nullptr) {
    return Error(Code::kFailedPrecondition, "no pass is open: there is nothing to abandon");
  }
  const std::lock_guard<std::mutex> open(open_mutex_);
  if (device_ != nullptr) {
    const std::lock_guard<std::mutex> copied(to_device_);
    device_->Abandon();
  }
  if (training_->purpose == Purpose::kTrain) {
    abandoned_ = true;
    staged_train_ = nullptr;  // it awaits rows of the abandoned pass
  }
  training_ = nullptr;
  return Status::Ok();
}

Result<WrittenPass> Table::WriteFrozen() {
  std::shared_ptr<PassTable> pass;
  {
    const std::lock_guard<std::mutex> lock(residency_);
    pass = frozen_;
  }
  if (pass == nullptr) {
    return Error(Code::kFailedPrecondition, "commit: no pass has ended; end_pass is missing");
  }
  WrittenPass written;
  std::vector<uint64_t> keys;
  std::vector<const char*> rows;
  std::vector<uint64_t> revived;  // keys of rows that were deleted and pushed again
  for (size_t i = 0; i < pass->rows(); ++i) {
    if (pass->touched[i] == 0) continue;
    if (pass->origin[i] == Origin::kDead) revived.push_back(pass->table->keys()[i]);
    keys.push_back(pass->table->keys()[i]);
    rows.push_back(pass->table->row(i));
    written.new_rows += pass->origin[i] == Origin::kNew ? 1 : 0;
  }
  written.rows = keys.size();
  if (ssd_ != nullptr && !revived.empty()) {
    // A merge may have dropped the dead row since this pass was staged. Then its key is new.
    std::vector<uint8_t> held(revived.size());
    ssd_->MayHold(revived.data(), revived.size(), held.data());
    written.new_rows += static_cast<uint64_t>(std::count(held.begin(), held.end(), 0));
  }
  if (ssd_ != nullptr && !keys.empty()) {
    const auto packed = PackRows(&rows);
    PBX_RETURN_IF_ERROR(packed.status());
    auto segments = ssd_->Prepare(keys.data(), rows.data(), keys.size());
    if (!segments.ok()) return segments.status();
    written.segments = std::move(segments.value());
  }
  const std::lock_guard<std::mutex> lock(residency_);
  pass->written = true;
  return written;
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
  // Published before the rows leave the pass table, so that they can always be read somewhere.
  if (!segments.empty()) {
    if (ssd_ == nullptr) {
      return Error(Code::kInvalidArgument, "table '%s' has no SSD folder for %zu segments",
                   config_.name.c_str(), segments.size());
    }
    PBX_RETURN_IF_ERROR(ssd_->Publish(segments));
  }
  const std::lock_guard<std::mutex> lock(residency_);
  PBX_RETURN_IF_ERROR(
      ReturnToMem(*frozen_, {training_.get(), staged_train_.get(), staging_.get()}));
  frozen_ = nullptr;
  return Status::Ok();
}

// ---- Life of the table

Status Table::AppendEvents(const std::vector<LifeEvent>& events) {
  std::unique_lock<std::mutex> lock(residency_);
  staged_.wait(lock, [&] { return staging_ == nullptr; });
  if (training_ != nullptr && training_->purpose == Purpose::kTrain) {
    return Error(Code::kFailedPrecondition,
                 "table '%s': pass %d trains; end a day or shrink the table after its end_pass",
                 config_.name.c_str(), training_->stamp);
  }
  uint32_t last = LastSeq();
  for (const LifeEvent& event : events) {
    if (events_.empty() ? event.seq <= last : event.seq != last + 1) {
      return Error(Code::kInvalidArgument, "table '%s': life event %u after %u",
                   config_.name.c_str(), event.seq, last);
    }
    last = event.seq;
  }
  events_.insert(events_.end(), events.begin(), events.end());
  const bool deletes = std::any_of(events.begin(), events.end(), life::MayDelete);
  if (deletes && mem_ != nullptr && ssd_ == nullptr) SweepMem();
  BringStagedUpToDate();
  FoldDurable();
  return Status::Ok();
}

// The caller holds residency_.
void Table::BringStagedUpToDate() {
  const std::lock_guard<std::mutex> copied(to_device_);
  std::vector<std::shared_ptr<PassTable>> staged = staged_evaluate_;
  if (staged_train_ != nullptr) staged.push_back(staged_train_);
  for (const std::shared_ptr<PassTable>& pass : staged) {
    std::vector<uint8_t> found(pass->rows());
    for (size_t i = 0; i < found.size(); ++i) found[i] = pass->Exists(i) ? 1 : 0;
    BringUpToDate(pass.get(), found.data());
    for (size_t i = 0; i < found.size(); ++i) {
      if (found[i] != 0) continue;
      if (pass->purpose == Purpose::kEvaluate) {
        std::memset(pass->table->row(i), 0, row_bytes());  // an absent row reads as zeros
      } else {
        CreateRow(pass.get(), i);
      }
    }
  }
}

Result<SsdTier*> Table::Ssd() const {
  if (ssd_ != nullptr) return ssd_.get();
  return Error(Code::kFailedPrecondition, "table '%s' has no SSD tier", config_.name.c_str());
}

std::vector<LifeEvent> Table::DurableEvents() {
  const std::lock_guard<std::mutex> lock(residency_);
  return {events_.begin(), events_.begin() + static_cast<ptrdiff_t>(durable_events_)};
}

std::vector<DeadShare> Table::DeadShares() {
  const std::vector<LifeEvent> events = DurableEvents();
  const bool deletes = std::any_of(events.begin(), events.end(), life::MayDelete);
  if (ssd_ == nullptr || !deletes) return {};
  static_assert(SsdTier::kSampledWords == life::kHeadWords);
  return ssd_->DeadShares([&](uint64_t key, float* head) {
    return life::Survives(config_.accessor, events.data(), events.size(), key, head);
  });
}

Result<MergeResult> Table::Merge(const std::vector<uint64_t>& inputs, bool urgent) {
  const auto ssd = Ssd();
  if (!ssd.ok()) return ssd.status();
  MergeRequest request;
  request.inputs = inputs;
  request.urgent = urgent;
  const std::vector<LifeEvent> events = DurableEvents();
  if (!events.empty()) {
    request.life = [this, events](uint64_t key, char* row) {
      return life::ApplyPacked(config_.accessor, codec_, events.data(), events.size(), key, row);
    };
  }
  Result<MergeResult> merged = ssd.value()->Merge(request);
  if (merged.ok()) dead_merged_ += merged.value().rows_dropped;
  return merged;
}

Status Table::ReplaceSegments(const std::vector<uint64_t>& removed,
                              const std::vector<SegmentDescriptor>& added) {
  const auto ssd = Ssd();
  return ssd.ok() ? ssd.value()->Replace(removed, added) : ssd.status();
}

Status Table::AddSegments(const std::vector<SegmentDescriptor>& added) {
  PBX_RETURN_IF_ERROR(Idle("add_segments"));
  {
    const std::lock_guard<std::mutex> lock(residency_);
    if (staging_ != nullptr || staged_train_ != nullptr || !staged_evaluate_.empty()) {
      return Error(Code::kFailedPrecondition,
                   "add_segments: table '%s' has a staged pass, whose rows would be older",
                   config_.name.c_str());
    }
    mem_->Sweep([](uint64_t, char*) { return false; });
  }
  return ReplaceSegments({}, added);
}

void Table::CancelMerges() {
  if (ssd_ != nullptr) ssd_->CancelMerges();
}

Status Table::SetCounted(const uint8_t* slots, size_t n) {
  PBX_RETURN_IF_ERROR(EndStep());
  counted_.assign(n == 0 ? 0 : size_t{1} << 16, 1.0f);
  for (size_t i = 0; i < n && i < counted_.size(); ++i) counted_[i] = slots[i] != 0 ? 1.0f : 0.0f;
  config_.accessor.counted = n == 0 ? nullptr : counted_.data();
  return device_ == nullptr ? Status::Ok() : device_->SetCounted(counted_);
}

Status Table::SetRate(float rate) {
  if (device_ != nullptr) {
    return Error(Code::kFailedPrecondition,
                 "table '%s': its rows are on the GPU, where learning rates are fixed",
                 config_.name.c_str());
  }
  PBX_RETURN_IF_ERROR(EndStep());
  config_.accessor.rate = rate;
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

uint64_t Table::unwritten_rows() const {
  std::shared_ptr<const PassTable> pass;
  {
    const std::lock_guard<std::mutex> lock(residency_);
    if (frozen_ == nullptr || frozen_->written) return 0;
    pass = frozen_;
  }
  return static_cast<uint64_t>(std::count(pass->touched.begin(), pass->touched.end(), 1));
}

int32_t Table::stamp() const {
  const std::lock_guard<std::mutex> open(open_mutex_);
  return training_ == nullptr ? 0 : training_->stamp;
}

// ---- The open pass

Result<std::shared_ptr<PassTable>> Table::OpenPass(const char* what) const {
  const std::lock_guard<std::mutex> open(open_mutex_);
  if (training_ == nullptr) {
    return Error(Code::kFailedPrecondition,
                 "%s: table '%s' has no open pass; begin_pass is missing", what,
                 config_.name.c_str());
  }
  return Result<std::shared_ptr<PassTable>>(training_);
}

Result<OpenRows> Table::Open(const char* what) const {
  if (device_ != nullptr && training()) {
    return Error(Code::kFailedPrecondition,
                 "%s: the rows of table '%s' are on the GPU while a pass is open (hbm.place): use "
                 "operators with tensors on the GPU",
                 what, config_.name.c_str());
  }
  return OpenHost(what);
}

Result<OpenRows> Table::OpenToHold() const { return OpenHost("push"); }

Status Table::PushStep(const OpenRows& open, const std::vector<int32_t>& rows,
                       const std::vector<float>& values, bool late) {
  if (device_ == nullptr) return RowAccess::PushStep(open, rows, values, late);
  std::vector<int32_t> plan;
  PBX_RETURN_IF_ERROR(PlanOf(open, rows.data(), rows.size(), &plan));
  return device_->PushFromHost(plan.data(), plan.size(), rows.size(), values.data());
}

Result<OpenRows> Table::OpenHost(const char* what) const {
  Result<std::shared_ptr<PassTable>> pass = OpenPass(what);
  if (!pass.ok()) return pass.status();
  const PassTable& table = *pass.value();
  OpenRows open;
  open.rows = table.rows();
  if (open.rows != 0) open.block.rows = table.table->row(0);
  open.block.keys = table.table->keys().data();
  open.block.row_bytes = row_bytes();
  open.block.config = &config_.accessor;
  open.stamp = table.stamp;
  open.day = table.day;
  open.read_only = table.purpose == Purpose::kEvaluate;
  open.clock = table.clock.get();
  if (open.clock != nullptr) open.block.decay = &open.clock->decay();
  open.hold = std::move(pass.value());
  return Result<OpenRows>(std::move(open));
}

Status Table::Translate(const uint64_t* feasigns, size_t n, int32_t* out) {
  Result<std::shared_ptr<PassTable>> open = OpenPass("pull");
  if (!open.ok()) return open.status();
  const PassTable& pass = *open.value();
  std::vector<uint64_t> keys(n);
  for (size_t i = 0; i < n; ++i) keys[i] = KeyOf(feasigns[i]);
  pass.table->index().FindBatch(keys.data(), n, out);
  if (pass.purpose == Purpose::kEvaluate) return Status::Ok();
  for (size_t i = 0; i < n; ++i) {
    if (out[i] >= 0 || feasigns[i] == 0) continue;
    if (std::binary_search(pass.refused.begin(), pass.refused.end(), keys[i])) continue;
    return Error(Code::kInvalidArgument,
                 "feasign %" PRIu64
                 " is not among the keys of pass %d: a training pass has rows only "
                 "for the feasigns that were staged with it",
                 feasigns[i], pass.stamp);
  }
  return Status::Ok();
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
  // A staged pass has taken rows out of MEM, but the SSD tier still has all committed rows.
  const bool staged = staging_ != nullptr || staged_train_ != nullptr;
  if (training_ == nullptr && frozen_ == nullptr && (ssd_ != nullptr || !staged)) {
    return Status::Ok();
  }
  return Error(Code::kFailedPrecondition,
               "%s: a pass is %s; the whole table can be read between passes", what,
               training_ != nullptr ? "open"
               : frozen_ != nullptr ? "being committed"
                                    : "staged");
}

Status Table::Visit(uint64_t low, uint64_t high,
                    const std::function<Status(uint64_t key, const char* row)>& visit) {
  PBX_RETURN_IF_ERROR(Idle("visit"));
  std::vector<float> row(static_cast<size_t>(config_.accessor.layout.words()));
  const auto brought_up = [&](uint64_t key, const char* stored) {
    codec_.Unpack(stored, row.data());
    if (!life::Apply(config_.accessor, codec_, events_.data(), events_.size(), key, row.data())) {
      return Status::Ok();
    }
    return visit(key, reinterpret_cast<const char*>(row.data()));
  };
  if (ssd_ != nullptr) return ssd_->Visit(low, high, brought_up);
  return mem_->Visit([&](uint64_t key, const char* stored) {
    return low <= key && key <= high ? brought_up(key, stored) : Status::Ok();
  });
}

Status Table::Lookup(const uint64_t* keys, size_t n, float* rows, uint8_t* found) {
  PBX_RETURN_IF_ERROR(Idle("lookup"));
  std::fill(found, found + n, uint8_t{0});
  const auto words = static_cast<size_t>(config_.accessor.layout.words());
  std::vector<char> stored(n * stored_row_bytes());
  Tier* tier = ssd_ != nullptr ? static_cast<Tier*>(ssd_.get()) : mem_.get();
  PBX_RETURN_IF_ERROR(tier->Read(keys, n, stored.data(), found));
  for (size_t i = 0; i < n; ++i) {
    if (found[i] == 0) continue;
    codec_.Unpack(stored.data() + i * stored_row_bytes(), rows + i * words);
    found[i] = life::Apply(config_.accessor, codec_, events_.data(), events_.size(), keys[i],
                           rows + i * words)
                   ? 1
                   : 0;
  }
  return Status::Ok();
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
  static_cast<AccessCounters&>(counters) = access_counters();
  counters.keys_refused = keys_refused_.load();
  counters.bytes_pulled = counters.rows_pulled * row_bytes();
  counters.bytes_pushed = 2 * counters.rows_pushed * row_bytes();
  counters.life_dead_staged = dead_staged_.load();
  counters.life_dead_merged = dead_merged_.load();
  counters.life_dead_swept = dead_swept_.load();
  const std::lock_guard<std::mutex> lock(residency_);
  counters.life_events = LastSeq();
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
