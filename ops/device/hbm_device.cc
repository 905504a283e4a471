#include "device/hbm_device.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "base/sorted_merge.h"
#include "cuda/hbm.h"
#include "device/device_arguments.h"

namespace pbx {
namespace {

constexpr size_t kChunkRows = 1 << 16;  // gathered on the host at a time
constexpr size_t kSlots = 65536;

Status StatusOf(int code, const char* what) {
  return pbx::StatusOf(code, what, "; a smaller hbm.budget_bytes splits passes into smaller ones");
}

pbx_hbm_rule RuleOf(const RuleConfig& rule) {
  return {static_cast<int32_t>(rule.kind),
          rule.learning_rate,
          rule.initial_range,
          rule.initial_g2sum,
          rule.beta1,
          rule.beta2,
          rule.epsilon,
          rule.beta,
          rule.l1,
          rule.l2,
          rule.min_bound,
          rule.max_bound};
}

using OwnedTable = std::unique_ptr<pbx_hbm_table, Close>;

class HbmDevice : public DevicePass {
 public:
  HbmDevice(const TableConfig& table, const HbmDeviceConfig& config)
      : config_(config),
        name_(table.name),
        accessor_(table.accessor),
        slot_rates_(table.slot_rates),
        precision_(table.precision),
        on_bad_grad_(table.on_bad_grad),
        bad_grad_bound_(table.bad_grad_bound) {
    if (!slot_rates_.empty()) slot_rates_.resize(kSlots, 1.0f);
  }

  Status Begin(const PassTable& pass, size_t events) override;
  Status End(PassTable* pass, uint64_t pass_number, AccessCounters* counters) override;
  void Abandon() override;
  Status SetCounted(const std::vector<float>& counted) override;
  bool on_cpu() const override { return config_.host_is_device; }

  Status Find(const int64_t* feasigns, size_t n, int32_t* ids, void* stream) override;
  Status Pull(const int32_t* ids, size_t n, float* out, void* stream) override;
  Status PullExtended(const int32_t* ids, size_t n, float* out, void* stream) override;
  Status PullPooled(const DeviceBatch& batch, float* out, const float* dense,
                    void* stream) override;
  size_t PlanRoom(size_t nnz) const override { return pbx_hbm_plan_room(nnz); }
  Status Plan(const DeviceBatch& batch, int32_t* plan, void* stream) override;
  Status Push(const int32_t* plan, size_t plan_size, size_t n, const float* grad, float scale,
              void* stream) override;
  Status PushExtended(const int32_t* plan, size_t plan_size, size_t n, const float* grad,
                      float scale, void* stream) override;
  Status PushPooled(const DeviceBatch& batch, const int32_t* plan, size_t plan_size,
                    const float* show_click, const float* grad, void* stream) override;

  Status PullToHost(const int32_t* ids, size_t n, float* out) override;
  Status HaveEmbedx(const int32_t* ids, size_t n, uint8_t* out) override;
  Status PushFromHost(const int32_t* plan, size_t plan_size, size_t n, const float* grad) override;

 private:
  Status OpenDevice();
  Result<OwnedTable> NewTable(const PassTable& pass);
  Status Carry(const PassTable& pass, pbx_hbm_table* to, std::vector<uint8_t>* carried) const;
  Status Put(const PassTable& pass, const std::vector<uint8_t>& carried, pbx_hbm_table* to) const;
  Status TakeChanged(PassTable* pass) const;
  Status CountInto(pbx_hbm_table* table) const;
  Status PushIds(const int32_t* plan, size_t plan_size, size_t n, const float* grad, float scale,
                 bool with_expand, void* stream);
  Status CheckOpen(const char* what) const;
  Status CheckReport(const pbx_hbm_report& report) const;
  Status LookAtReport(void* stream);
  Status OpenStaging();
  Status CompleteGradient(pbx_hbm_gradient* gradient) const;
  Status PushGradient(const int32_t* plan, size_t plan_size, pbx_hbm_gradient* gradient,
                      void* stream);
  size_t words() const { return static_cast<size_t>(pbx_hbm_row_words(hbm_.get())); }

  const HbmDeviceConfig config_;
  const std::string name_;
  const AccessorConfig accessor_;
  std::vector<float> slot_rates_;
  const Precision precision_;
  const OnBadGrad on_bad_grad_;
  const float bad_grad_bound_;
  std::vector<float> counted_;  // empty: all slots

  // Tables go before what they are on.
  std::unique_ptr<pbx_hbm, Close> hbm_;
  std::unique_ptr<pbx_hbm_report, Close> seen_;  // pinned: as some call of late left it
  std::unique_ptr<pbx_hbm_staging, Close> staging_;
  std::mutex staging_mutex_;  // lanes of several threads
  OwnedTable open_;
  int32_t stamp_ = 0;
  uint32_t day_ = 0;
  bool read_only_ = false;
  uint64_t rows_pulled_ = 0;

  // Of the training pass before, for the next one.
  OwnedTable last_;
  size_t last_events_ = 0;
  std::vector<uint64_t> last_keys_;
  std::vector<uint8_t> last_exists_;
};

// ---- Between host and device

Status HbmDevice::OpenDevice() {
  if (hbm_ != nullptr) return Status::Ok();
  PBX_RETURN_IF_ERROR(CheckBackend(name_, config_));
  pbx_hbm_config config{};
  config.seed = accessor_.seed;
  config.embedx_dim = accessor_.layout.embedx_dim;
  config.expand_dim = accessor_.layout.expand_dim;
  config.show_scale = accessor_.show_scale ? 1 : 0;
  config.nonclk_coeff = accessor_.nonclk_coeff;
  config.click_coeff = accessor_.click_coeff;
  config.embedx_threshold = accessor_.embedx_threshold;
  config.embed = RuleOf(accessor_.embed);
  config.embedx = RuleOf(accessor_.embedx);
  config.expand = RuleOf(accessor_.expand);
  config.slot_rates = slot_rates_.empty() ? nullptr : slot_rates_.data();
  pbx_hbm* opened = nullptr;
  PBX_RETURN_IF_ERROR(StatusOf(pbx_hbm_open(&config, config_.device, &opened), "the GPU"));
  std::unique_ptr<pbx_hbm, Close> hbm(opened);
  void* pinned = nullptr;
  PBX_RETURN_IF_ERROR(
      StatusOf(pbx_hbm_malloc_pinned(sizeof(pbx_hbm_report), &pinned), "the GPU's counters"));
  seen_.reset(static_cast<pbx_hbm_report*>(pinned));
  hbm_ = std::move(hbm);
  return Status::Ok();
}

Result<OwnedTable> HbmDevice::NewTable(const PassTable& pass) {
  const std::vector<uint64_t>& keys = pass.table->keys();
  pbx_hbm_table* made = nullptr;
  int code = pbx_hbm_begin(hbm_.get(), keys.data(), keys.size(), pass.stamp, &made);
  if (code == PBX_HBM_MEMORY && last_ != nullptr) {  // better to bring all rows anew than none
    last_ = nullptr;
    code = pbx_hbm_begin(hbm_.get(), keys.data(), keys.size(), pass.stamp, &made);
  }
  PBX_RETURN_IF_ERROR(StatusOf(code, "the pass's rows on the GPU"));
  return Result<OwnedTable>(OwnedTable(made));
}

Status HbmDevice::Begin(const PassTable& pass, size_t events) {
  PBX_RETURN_IF_ERROR(OpenDevice());
  const bool train = pass.purpose == Purpose::kTrain;
  if (last_events_ != events) last_ = nullptr;  // the host has decayed its rows since
  Result<OwnedTable> made = NewTable(pass);
  if (!made.ok()) return made.status();
  OwnedTable table = std::move(made.value());
  std::vector<uint8_t> carried(pass.rows(), 0);
  if (last_ != nullptr) PBX_RETURN_IF_ERROR(Carry(pass, table.get(), &carried));
  PBX_RETURN_IF_ERROR(Put(pass, carried, table.get()));
  if (train) {
    PBX_RETURN_IF_ERROR(
        StatusOf(pbx_hbm_expect(table.get(), pass.refused.data(), pass.refused.size()), "refused"));
    PBX_RETURN_IF_ERROR(CountInto(table.get()));
    last_ = nullptr;
  }
  *seen_ = pbx_hbm_report{};
  open_ = std::move(table);
  stamp_ = pass.stamp;
  day_ = pass.day;
  read_only_ = !train;
  rows_pulled_ = 0;
  last_events_ = events;
  return Status::Ok();
}

// Rows that the pass before had and left existing: the host's are the same bytes.
Status HbmDevice::Carry(const PassTable& pass, pbx_hbm_table* to,
                        std::vector<uint8_t>* carried) const {
  const std::vector<uint64_t>& keys = pass.table->keys();
  ForEachCommon(keys.data(), keys.size(), last_keys_.data(), last_keys_.size(),
                [&](size_t i, size_t j) { (*carried)[i] = last_exists_[j]; });
  return StatusOf(pbx_hbm_carry(last_.get(), to, nullptr), "rows of the pass before");
}

// The rows that were not carried.
Status HbmDevice::Put(const PassTable& pass, const std::vector<uint8_t>& carried,
                      pbx_hbm_table* to) const {
  const size_t n = pass.rows(), row_bytes = pass.table->row_bytes();
  if (n == 0) return Status::Ok();
  std::vector<int32_t> ids;
  for (size_t i = 0; i < n; ++i) {
    if (carried[i] == 0) ids.push_back(static_cast<int32_t>(i));
  }
  if (ids.size() == n) {
    const float* const rows = reinterpret_cast<const float*>(pass.table->row(0));
    return StatusOf(pbx_hbm_put_rows(to, nullptr, 0, n, rows), "rows to the GPU");
  }
  std::vector<float> rows(std::min(ids.size(), kChunkRows) * words());
  for (size_t begin = 0; begin < ids.size(); begin += kChunkRows) {
    const size_t count = std::min(ids.size() - begin, kChunkRows);
    for (size_t i = 0; i < count; ++i) {
      std::memcpy(rows.data() + i * words(), pass.table->row(static_cast<size_t>(ids[begin + i])),
                  row_bytes);
    }
    PBX_RETURN_IF_ERROR(StatusOf(pbx_hbm_put_rows(to, ids.data() + begin, 0, count, rows.data()),
                                 "rows to the GPU"));
  }
  return Status::Ok();
}

Status HbmDevice::TakeChanged(PassTable* pass) const {
  std::vector<int32_t> ids(pass->rows());
  uint64_t changed = 0;
  PBX_RETURN_IF_ERROR(
      StatusOf(pbx_hbm_changed(open_.get(), ids.data(), &changed), "changed rows of the GPU"));
  std::vector<float> rows(std::min<size_t>(changed, kChunkRows) * words());
  for (size_t begin = 0; begin < changed; begin += kChunkRows) {
    const size_t count = std::min<size_t>(changed - begin, kChunkRows);
    PBX_RETURN_IF_ERROR(
        StatusOf(pbx_hbm_get_rows(open_.get(), ids.data() + begin, 0, count, rows.data()),
                 "rows from the GPU"));
    for (size_t i = 0; i < count; ++i) {
      std::memcpy(pass->table->row(static_cast<size_t>(ids[begin + i])), rows.data() + i * words(),
                  pass->table->row_bytes());
    }
  }
  return Status::Ok();
}

Status HbmDevice::CountInto(pbx_hbm_table* table) const {
  const float* const counted = counted_.empty() ? nullptr : counted_.data();
  return StatusOf(pbx_hbm_count(table, counted), "counted slots");
}

Status HbmDevice::SetCounted(const std::vector<float>& counted) {
  counted_ = counted;
  return open_ == nullptr ? Status::Ok() : CountInto(open_.get());
}

Status HbmDevice::End(PassTable* pass, uint64_t pass_number, AccessCounters* counters) {
  PBX_RETURN_IF_ERROR(CheckOpen("end_pass"));
  PBX_RETURN_IF_ERROR(StatusOf(pbx_hbm_wait(hbm_.get()), "the GPU"));
  pbx_hbm_report report{};
  std::vector<uint64_t> bad(kSlots);
  PBX_RETURN_IF_ERROR(
      StatusOf(pbx_hbm_report_of(open_.get(), &report, bad.data()), "the GPU's counters"));
  pbx_hbm_times times{};
  PBX_RETURN_IF_ERROR(StatusOf(pbx_hbm_take_times(hbm_.get(), &times), "the GPU's times"));
  counters->pull_ns = times.pull_ns;
  counters->push_ns = times.push_ns;
  counters->plan_ns = times.plan_ns;
  counters->rows_pulled = std::exchange(rows_pulled_, 0);
  counters->rows_pushed = report.rows_pushed;
  counters->ids_pushed = report.ids_pushed;
  for (size_t slot = 0; slot < kSlots; ++slot) {
    if (bad[slot] != 0) counters->bad_grads[static_cast<uint16_t>(slot)] = bad[slot];
  }
  PBX_RETURN_IF_ERROR(CheckReport(report));
  if (read_only_) {
    open_ = nullptr;
    return Status::Ok();
  }
  if (precision_ != Precision::kFloat32) {
    PBX_RETURN_IF_ERROR(StatusOf(
        pbx_hbm_round(open_.get(), static_cast<int32_t>(precision_), pass_number), "16-bit rows"));
  }
  PBX_RETURN_IF_ERROR(TakeChanged(pass));
  last_keys_ = pass->table->keys();
  last_exists_.resize(pass->rows());
  for (size_t i = 0; i < pass->rows(); ++i) {
    const float* const row = reinterpret_cast<const float*>(pass->table->row(i));
    const bool touched = ((GetWord(row, 0) >> 16) & kTouched) != 0;
    last_exists_[i] = touched || pass->Exists(i) ? 1 : 0;
  }
  last_ = std::move(open_);
  return Status::Ok();
}

void HbmDevice::Abandon() {
  if (hbm_ != nullptr) pbx_hbm_wait(hbm_.get());  // what it says has no taker any more
  open_ = nullptr;
  last_ = nullptr;
}

// ---- What operators call

Status HbmDevice::CheckOpen(const char* what) const {
  if (open_ != nullptr) return Status::Ok();
  return Error(Code::kFailedPrecondition, "%s: table '%s' has no open pass; begin_pass is missing",
               what, name_.c_str());
}

Status HbmDevice::CheckReport(const pbx_hbm_report& report) const {
  if (report.out_of_range != 0) {
    return Error(Code::kInvalidArgument,
                 "table '%s': %" PRIu64
                 " ids, lists or plans of batches name what pass %d does not have (or are of "
                 "another pass); they were left out: pack batches for the open pass",
                 name_.c_str(), report.out_of_range, stamp_);
  }
  if (report.absent != 0) {
    return Error(Code::kInvalidArgument,
                 "%" PRIu64 " feasigns, one of them %" PRIu64
                 ", are not among the keys of pass %d: a training pass has rows for the feasigns "
                 "that were staged with it",
                 report.absent, report.an_absent, stamp_);
  }
  if (report.bad_rows != 0 && on_bad_grad_ == OnBadGrad::kError) {
    return Error(Code::kNotFinite,
                 "push: the gradient (or show, click) of %" PRIu64
                 " rows is NaN or infinite. Those rows are as they were, others have moved: give "
                 "the pass up, or set table.on_bad_grad to skip or clip",
                 report.bad_rows);
  }
  return Status::Ok();
}

Status HbmDevice::Find(const int64_t* feasigns, size_t n, int32_t* ids, void* stream) {
  PBX_RETURN_IF_ERROR(CheckOpen("pull"));
  const auto* const bits = reinterpret_cast<const uint64_t*>(feasigns);
  PBX_RETURN_IF_ERROR(StatusOf(pbx_hbm_find(open_.get(), bits, n, ids, stream), "find"));
  return LookAtReport(stream);
}

Status HbmDevice::Pull(const int32_t* ids, size_t n, float* out, void* stream) {
  PBX_RETURN_IF_ERROR(CheckOpen("pull"));
  rows_pulled_ += n;
  PBX_RETURN_IF_ERROR(StatusOf(pbx_hbm_pull(open_.get(), ids, n, out, stream), "pull"));
  return LookAtReport(stream);
}

Status HbmDevice::PullExtended(const int32_t* ids, size_t n, float* out, void* stream) {
  PBX_RETURN_IF_ERROR(CheckOpen("pull"));
  rows_pulled_ += n;
  PBX_RETURN_IF_ERROR(
      StatusOf(pbx_hbm_pull_extended(open_.get(), ids, n, out, stream), "pull_extended"));
  return LookAtReport(stream);
}

Status HbmDevice::PullPooled(const DeviceBatch& batch, float* out, const float* dense,
                             void* stream) {
  PBX_RETURN_IF_ERROR(CheckOpen("pull"));
  const pbx_hbm_segments segments = SegmentsOf(batch);
  PBX_RETURN_IF_ERROR(
      StatusOf(pbx_hbm_pull_pooled(open_.get(), &segments, out, stream), "pull_pooled"));
  rows_pulled_ += batch.nnz;
  PBX_RETURN_IF_ERROR(LookAtReport(stream));
  return StatusOf(CopyDense(batch, accessor_.layout.embedx_dim, dense, out, stream), "pull_pooled");
}

Status HbmDevice::Plan(const DeviceBatch& batch, int32_t* plan, void* stream) {
  PBX_RETURN_IF_ERROR(CheckOpen("push"));
  if (batch.shared.list_of != nullptr) {
    // A plan names each occurrence in each instance, since another order of sums is other bits. How
    // many they are is the sum of the shared lists' lengths, which only the device has: making room
    // for them would be a wait in each step. The feeder knows it.
    return Error(
        Code::kInvalidArgument,
        "push: instances share lists, and no plan was fed: feed the feeder's, or give each "
        "slot of each instance a list of its own, of which the GPU makes plans");
  }
  const size_t segments = batch.offsets == nullptr ? batch.nnz : batch.instances * batch.slots;
  return StatusOf(
      pbx_hbm_plan(hbm_.get(), batch.ids, batch.offsets, segments, batch.nnz, stamp_, plan, stream),
      "plan");
}

// What of a gradient is the table's.
Status HbmDevice::CompleteGradient(pbx_hbm_gradient* gradient) const {
  PBX_RETURN_IF_ERROR(CheckOpen("push"));
  if (read_only_) {
    return Error(Code::kFailedPrecondition,
                 "push: pass %d is an evaluation, its rows do not change", stamp_);
  }
  gradient->clip = on_bad_grad_ == OnBadGrad::kClip ? 1 : 0;
  gradient->bound = bad_grad_bound_;
  gradient->day = day_;
  return Status::Ok();
}

Status HbmDevice::PushGradient(const int32_t* plan, size_t plan_size, pbx_hbm_gradient* gradient,
                               void* stream) {
  PBX_RETURN_IF_ERROR(CompleteGradient(gradient));
  PBX_RETURN_IF_ERROR(
      StatusOf(pbx_hbm_push(open_.get(), plan, plan_size, gradient, stream), "push"));
  return LookAtReport(stream);
}

// What a call meets comes behind it in the stream: it is told here where the device is the host, by
// one of the calls to come on a GPU.
Status HbmDevice::LookAtReport(void* stream) {
  PBX_RETURN_IF_ERROR(
      StatusOf(pbx_hbm_peek(open_.get(), seen_.get(), stream), "the GPU's counters"));
  return CheckReport(*seen_);
}

Status HbmDevice::Push(const int32_t* plan, size_t plan_size, size_t n, const float* grad,
                       float scale, void* stream) {
  return PushIds(plan, plan_size, n, grad, scale, false, stream);
}

Status HbmDevice::PushExtended(const int32_t* plan, size_t plan_size, size_t n, const float* grad,
                               float scale, void* stream) {
  return PushIds(plan, plan_size, n, grad, scale, true, stream);
}

// Of ids that are segments of their own.
Status HbmDevice::PushIds(const int32_t* plan, size_t plan_size, size_t n, const float* grad,
                          float scale, bool with_expand, void* stream) {
  const RowLayout& layout = accessor_.layout;
  const int columns = layout.embedx_dim + (with_expand ? layout.expand_dim : 0);
  pbx_hbm_gradient gradient = GradientOfRows(n, columns, grad, scale);
  gradient.with_expand = with_expand ? 1 : 0;
  return PushGradient(plan, plan_size, &gradient, stream);
}

Status HbmDevice::PushPooled(const DeviceBatch& batch, const int32_t* plan, size_t plan_size,
                             const float* show_click, const float* grad, void* stream) {
  pbx_hbm_gradient gradient =
      GradientOfPooled(batch, accessor_.layout.embedx_dim, show_click, grad);
  return PushGradient(plan, plan_size, &gradient, stream);
}

// ---- For other ranks

Status HbmDevice::OpenStaging() {
  if (staging_ != nullptr) return Status::Ok();
  pbx_hbm_staging* opened = nullptr;
  PBX_RETURN_IF_ERROR(
      StatusOf(pbx_hbm_open_staging(hbm_.get(), &opened), "buffers between ranks and the GPU"));
  staging_.reset(opened);
  return Status::Ok();
}

Status HbmDevice::PullToHost(const int32_t* ids, size_t n, float* out) {
  const std::lock_guard<std::mutex> lock(staging_mutex_);
  PBX_RETURN_IF_ERROR(CheckOpen("rows for other ranks"));
  PBX_RETURN_IF_ERROR(OpenStaging());
  rows_pulled_ += n;
  PBX_RETURN_IF_ERROR(
      StatusOf(pbx_hbm_stage_gather(staging_.get(), open_.get(), PBX_HBM_WIRE_FLOAT32, ids, n, out),
               "rows for other ranks"));
  return LookAtReport(nullptr);
}

Status HbmDevice::HaveEmbedx(const int32_t* ids, size_t n, uint8_t* out) {
  const std::lock_guard<std::mutex> lock(staging_mutex_);
  PBX_RETURN_IF_ERROR(CheckOpen("a look for embedx"));
  PBX_RETURN_IF_ERROR(OpenStaging());
  PBX_RETURN_IF_ERROR(
      StatusOf(pbx_hbm_stage_have_embedx(staging_.get(), open_.get(), ids, n, out), "embedx"));
  return LookAtReport(nullptr);
}

Status HbmDevice::PushFromHost(const int32_t* plan, size_t plan_size, size_t n, const float* grad) {
  const std::lock_guard<std::mutex> lock(staging_mutex_);
  pbx_hbm_gradient gradient{};
  PBX_RETURN_IF_ERROR(CompleteGradient(&gradient));
  PBX_RETURN_IF_ERROR(OpenStaging());
  PBX_RETURN_IF_ERROR(StatusOf(pbx_hbm_stage_push(staging_.get(), open_.get(), plan, plan_size,
                                                  PBX_HBM_WIRE_FLOAT32, grad, n, &gradient),
                               "gradients of other ranks"));
  return LookAtReport(nullptr);
}

}  // namespace

const char* HbmBackend() { return pbx_hbm_backend(); }

Status CheckBackend(const std::string& table, const HbmDeviceConfig& config) {
  const bool is_host = std::strcmp(HbmBackend(), "host") == 0;
  if (is_host == config.host_is_device) return Status::Ok();
  return Error(Code::kFailedPrecondition,
               "table '%s': hbm.place is gpu, and this library's device is %s: build it for a "
               "Paddle with CUDA (docs/gpu.md), or set hbm.place to host",
               table.c_str(), is_host ? "the CPU" : "a GPU");
}

std::unique_ptr<DevicePass> NewHbmDevice(const TableConfig& table, const HbmDeviceConfig& config) {
  return std::make_unique<HbmDevice>(table, config);
}

}  // namespace pbx
