#include "device/hbm_device.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "base/sorted_merge.h"
#include "cuda/hbm.h"
#include "device/hbm_rows.h"

namespace pbx {
namespace {

constexpr size_t kSlots = 65536;

constexpr char kIfFull[] = "; a smaller hbm.budget_bytes makes smaller passes";

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

class HbmDevice : public HbmRows<DevicePass> {
 public:
  HbmDevice(const TableConfig& table, const HbmDeviceConfig& config)
      : HbmRows(config, table.accessor.layout.embedx_dim, kIfFull),
        name_(table.name),
        threads_(table.threads),
        accessor_(table.accessor),
        slot_rates_(table.slot_rates),
        precision_(table.precision),
        on_bad_grad_(table.on_bad_grad),
        bad_grad_bound_(table.bad_grad_bound) {
    if (!slot_rates_.empty()) slot_rates_.resize(kSlots, 1.0f);
  }

  void Stage(const PassTable& pass, const std::vector<uint32_t>& awaited, size_t events) override;
  Status Begin(const PassTable& pass, size_t events) override;
  Status End(PassTable* pass, uint64_t pass_number, AccessCounters* counters) override;
  void Abandon() override;
  Status SetCounted(const std::vector<float>& counted) override;

  Status PullExtended(const int32_t* ids, size_t n, float* out, void* stream) override;
  Status PushExtended(const int32_t* plan, size_t plan_size, size_t n, const float* grad,
                      float scale, void* stream) override;

  Status PullToHost(const int32_t* ids, size_t n, float* out) override;
  Status HaveEmbedx(const int32_t* ids, size_t n, uint8_t* out) override;
  Status PushFromHost(const int32_t* plan, size_t plan_size, size_t n, const float* grad) override;

 private:
  Status OpenDevice();
  Status StageRows(const PassTable& pass, const std::vector<uint32_t>& awaited);
  Status NewTable(const PassTable& pass, OwnedTable* table) const;
  Status Carry(const PassTable& pass, pbx_hbm_table* to, std::vector<uint8_t>* there) const;
  Status Put(const PassTable& pass, const std::vector<uint8_t>& there, pbx_hbm_table* to) const;
  Status TakeChanged(PassTable* pass) const;
  Status CountInto(pbx_hbm_table* table) const;
  Status CheckReport(const pbx_hbm_report& report) const;
  Status OpenStaging();
  Status CompleteGradient(pbx_hbm_gradient* gradient) const;

  Status CheckOpen(const char* what) const override;
  pbx_hbm* hbm() const override { return hbm_.get(); }
  pbx_hbm_table* open_table() const override { return open_.get(); }
  int32_t open_stamp() const override { return stamp_; }
  Status Called(size_t n, void* stream) override;
  Status PushGradient(const int32_t* plan, size_t plan_size, pbx_hbm_gradient gradient,
                      void* stream) override;

  const std::string name_;
  const int threads_;
  const AccessorConfig accessor_;
  std::vector<float> slot_rates_;
  const Precision precision_;
  const OnBadGrad on_bad_grad_;
  const float bad_grad_bound_;
  std::vector<float> counted_;  // empty: all slots

  // Tables are destroyed before hbm_.
  std::unique_ptr<pbx_hbm, Close> hbm_;
  std::unique_ptr<pbx_hbm_report, Close> seen_;  // pinned: the report after a recent call
  std::unique_ptr<pbx_hbm_staging, Close> staging_;
  std::mutex staging_mutex_;  // several threads exchange rows
  OwnedTable open_;
  int32_t stamp_ = 0;
  uint32_t day_ = 0;
  bool read_only_ = false;
  uint64_t rows_pulled_ = 0;

  // The pass that Stage has copied; null: none.
  OwnedTable next_;
  int32_t next_stamp_ = 0;
  size_t next_events_ = 0;
  std::vector<uint8_t> next_there_;  // the rows that were copied

  // Of the last training pass, for the next one.
  OwnedTable last_;
  size_t last_events_ = 0;
  std::vector<uint64_t> last_keys_;
  std::vector<uint8_t> last_exists_;
};

// ---- Between host and device

Status HbmDevice::OpenDevice() {
  if (hbm_ != nullptr) return Status::Ok();
  PBX_RETURN_IF_ERROR(CheckBackend(name_, device()));
  pbx_hbm_config config{};
  config.seed = accessor_.seed;
  config.embedx_dim = accessor_.layout.embedx_dim;
  config.expand_dim = accessor_.layout.expand_dim;
  config.show_scale = accessor_.show_scale ? 1 : 0;
  config.threads = threads_;
  config.nonclk_coeff = accessor_.nonclk_coeff;
  config.click_coeff = accessor_.click_coeff;
  config.embedx_threshold = accessor_.embedx_threshold;
  config.embed = RuleOf(accessor_.embed);
  config.embedx = RuleOf(accessor_.embedx);
  config.expand = RuleOf(accessor_.expand);
  config.slot_rates = slot_rates_.empty() ? nullptr : slot_rates_.data();
  pbx_hbm* opened = nullptr;
  PBX_RETURN_IF_ERROR(Check(Hbm().open(&config, device().device, &opened), "the GPU"));
  std::unique_ptr<pbx_hbm, Close> hbm(opened);
  void* pinned = nullptr;
  PBX_RETURN_IF_ERROR(
      Check(Hbm().malloc_pinned(sizeof(pbx_hbm_report), &pinned), "the GPU's counters"));
  seen_.reset(static_cast<pbx_hbm_report*>(pinned));
  hbm_ = std::move(hbm);
  return Status::Ok();
}

Status HbmDevice::NewTable(const PassTable& pass, OwnedTable* table) const {
  const std::vector<uint64_t>& keys = pass.table->keys();
  pbx_hbm_table* made = nullptr;
  PBX_RETURN_IF_ERROR(Check(Hbm().begin(hbm_.get(), keys.data(), keys.size(), pass.stamp, &made),
                            "the pass's rows on the GPU"));
  table->reset(made);
  return Status::Ok();
}

void HbmDevice::Stage(const PassTable& pass, const std::vector<uint32_t>& awaited, size_t events) {
  next_ = nullptr;
  next_stamp_ = pass.stamp;
  next_events_ = events;
  if (!StageRows(pass, awaited).ok()) next_ = nullptr;  // Begin reports what persists
}

Status HbmDevice::StageRows(const PassTable& pass, const std::vector<uint32_t>& awaited) {
  PBX_RETURN_IF_ERROR(OpenDevice());
  PBX_RETURN_IF_ERROR(NewTable(pass, &next_));
  next_there_.assign(pass.rows(), 0);
  for (const uint32_t id : awaited) next_there_[id] = 1;
  PBX_RETURN_IF_ERROR(Put(pass, next_there_, next_.get()));
  for (uint8_t& there : next_there_) there ^= 1;
  return Status::Ok();
}

Status HbmDevice::Begin(const PassTable& pass, size_t events) {
  PBX_RETURN_IF_ERROR(OpenDevice());
  const bool train = pass.purpose == Purpose::kTrain;
  if (last_events_ != events) last_ = nullptr;  // life events have changed the host's rows
  OwnedTable table;
  std::vector<uint8_t> there(pass.rows(), 0);
  if (train && next_stamp_ == pass.stamp && next_events_ == events && next_ != nullptr) {
    table = std::move(next_);
    there = std::move(next_there_);
  }
  if (train) next_ = nullptr;
  Status made = table != nullptr ? Status::Ok() : NewTable(pass, &table);
  // Without the tables of other passes, all rows come from the host.
  for (OwnedTable* other : {&next_, &last_}) {
    if (made.code() != Code::kOutOfSpace || *other == nullptr) continue;
    *other = nullptr;
    made = NewTable(pass, &table);
  }
  PBX_RETURN_IF_ERROR(made);
  if (last_ != nullptr) PBX_RETURN_IF_ERROR(Carry(pass, table.get(), &there));
  PBX_RETURN_IF_ERROR(Put(pass, there, table.get()));
  if (train) {
    PBX_RETURN_IF_ERROR(
        Check(Hbm().expect(table.get(), pass.refused.data(), pass.refused.size()), "refused"));
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

// Copies the rows that the last pass had and that exist. The host has the same bytes.
Status HbmDevice::Carry(const PassTable& pass, pbx_hbm_table* to,
                        std::vector<uint8_t>* there) const {
  const std::vector<uint64_t>& keys = pass.table->keys();
  ForEachCommon(keys.data(), keys.size(), last_keys_.data(), last_keys_.size(),
                [&](size_t i, size_t j) { (*there)[i] = last_exists_[j]; });
  return Check(Hbm().carry(last_.get(), to, nullptr), "rows of the pass before");
}

// Copies the rows that are not there yet.
Status HbmDevice::Put(const PassTable& pass, const std::vector<uint8_t>& there,
                      pbx_hbm_table* to) const {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < pass.rows(); ++i) {
    if (there[i] == 0) ids.push_back(static_cast<int32_t>(i));
  }
  if (ids.empty()) return Status::Ok();
  const float* const rows = reinterpret_cast<const float*>(pass.table->row(0));
  const int32_t* const which = ids.size() == pass.rows() ? nullptr : ids.data();
  return Check(Hbm().put_rows(to, which, 0, ids.size(), rows), "rows to the GPU");
}

Status HbmDevice::TakeChanged(PassTable* pass) const {
  std::vector<int32_t> ids(pass->rows());
  uint64_t changed = 0;
  PBX_RETURN_IF_ERROR(
      Check(Hbm().changed(open_.get(), ids.data(), &changed), "changed rows of the GPU"));
  if (changed == 0) return Status::Ok();
  float* const rows = reinterpret_cast<float*>(pass->table->row(0));
  return Check(Hbm().get_rows(open_.get(), ids.data(), 0, changed, rows), "rows from the GPU");
}

Status HbmDevice::CountInto(pbx_hbm_table* table) const {
  const float* const counted = counted_.empty() ? nullptr : counted_.data();
  return Check(Hbm().count(table, counted), "counted slots");
}

Status HbmDevice::SetCounted(const std::vector<float>& counted) {
  counted_ = counted;
  return open_ == nullptr ? Status::Ok() : CountInto(open_.get());
}

Status HbmDevice::End(PassTable* pass, uint64_t pass_number, AccessCounters* counters) {
  PBX_RETURN_IF_ERROR(CheckOpen("end_pass"));
  PBX_RETURN_IF_ERROR(Check(Hbm().wait(hbm_.get()), "the GPU"));
  pbx_hbm_report report{};
  std::vector<uint64_t> bad(kSlots);
  PBX_RETURN_IF_ERROR(
      Check(Hbm().report_of(open_.get(), &report, bad.data()), "the GPU's counters"));
  pbx_hbm_times times{};
  PBX_RETURN_IF_ERROR(Check(Hbm().take_times(hbm_.get(), &times), "the GPU's times"));
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
    PBX_RETURN_IF_ERROR(Check(
        Hbm().round(open_.get(), static_cast<int32_t>(precision_), pass_number), "16-bit rows"));
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
  if (hbm_ != nullptr) Hbm().wait(hbm_.get());  // its errors do not matter any more
  open_ = nullptr;
  last_ = nullptr;
  next_ = nullptr;
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
                 " ids, lists or plans of batches do not fit pass %d or belong to another pass, "
                 "and were left out: pack batches for the open pass",
                 name_.c_str(), report.out_of_range, stamp_);
  }
  if (report.absent != 0) {
    return Error(Code::kInvalidArgument,
                 "%" PRIu64 " feasigns, one of them %" PRIu64
                 ", are not among the keys of pass %d: a training pass has rows only for the "
                 "feasigns that were staged with it",
                 report.absent, report.an_absent, stamp_);
  }
  if (report.bad_rows != 0 && on_bad_grad_ == OnBadGrad::kError) {
    return Error(Code::kNotFinite,
                 "push: the gradient (or show, click) of %" PRIu64
                 " rows is NaN or infinite. These rows are unchanged, the other rows of the batch "
                 "are updated: abandon the pass, or set table.on_bad_grad to skip or clip",
                 report.bad_rows);
  }
  return Status::Ok();
}

Status HbmDevice::PullExtended(const int32_t* ids, size_t n, float* out, void* stream) {
  PBX_RETURN_IF_ERROR(CheckOpen("pull"));
  PBX_RETURN_IF_ERROR(
      Check(Hbm().pull_extended(open_.get(), ids, n, out, stream), "pull_extended"));
  return Called(n, stream);
}

// Sets the fields of a gradient that depend on the table.
Status HbmDevice::CompleteGradient(pbx_hbm_gradient* gradient) const {
  PBX_RETURN_IF_ERROR(CheckOpen("push"));
  if (read_only_) {
    return Error(Code::kFailedPrecondition, "push: pass %d is an evaluation and changes no rows",
                 stamp_);
  }
  gradient->clip = on_bad_grad_ == OnBadGrad::kClip ? 1 : 0;
  gradient->bound = bad_grad_bound_;
  gradient->day = day_;
  return Status::Ok();
}

Status HbmDevice::PushGradient(const int32_t* plan, size_t plan_size, pbx_hbm_gradient gradient,
                               void* stream) {
  PBX_RETURN_IF_ERROR(CompleteGradient(&gradient));
  PBX_RETURN_IF_ERROR(Check(Hbm().push(open_.get(), plan, plan_size, &gradient, stream), "push"));
  return Called(0, stream);
}

// Returns the errors that the device has found. On a GPU the report comes later in the stream, so
// the errors of this call are returned by a later call. If the device is the host, this call
// returns them.
Status HbmDevice::Called(size_t n, void* stream) {
  rows_pulled_ += n;
  PBX_RETURN_IF_ERROR(Check(Hbm().peek(open_.get(), seen_.get(), stream), "the GPU's counters"));
  return CheckReport(*seen_);
}

Status HbmDevice::PushExtended(const int32_t* plan, size_t plan_size, size_t n, const float* grad,
                               float scale, void* stream) {
  pbx_hbm_gradient gradient =
      GradientOfRows(n, embedx_dim() + accessor_.layout.expand_dim, grad, scale);
  gradient.with_expand = 1;
  return PushGradient(plan, plan_size, gradient, stream);
}

// ---- For other ranks

Status HbmDevice::OpenStaging() {
  if (staging_ != nullptr) return Status::Ok();
  pbx_hbm_staging* opened = nullptr;
  PBX_RETURN_IF_ERROR(
      Check(Hbm().open_staging(hbm_.get(), &opened), "buffers between ranks and the GPU"));
  staging_.reset(opened);
  return Status::Ok();
}

Status HbmDevice::PullToHost(const int32_t* ids, size_t n, float* out) {
  const std::lock_guard<std::mutex> lock(staging_mutex_);
  PBX_RETURN_IF_ERROR(CheckOpen("rows for other ranks"));
  PBX_RETURN_IF_ERROR(OpenStaging());
  PBX_RETURN_IF_ERROR(
      Check(Hbm().stage_gather(staging_.get(), open_.get(), PBX_HBM_WIRE_FLOAT32, ids, n, out),
            "rows for other ranks"));
  return Called(n, nullptr);
}

Status HbmDevice::HaveEmbedx(const int32_t* ids, size_t n, uint8_t* out) {
  const std::lock_guard<std::mutex> lock(staging_mutex_);
  PBX_RETURN_IF_ERROR(CheckOpen("have_embedx"));
  PBX_RETURN_IF_ERROR(OpenStaging());
  PBX_RETURN_IF_ERROR(
      Check(Hbm().stage_have_embedx(staging_.get(), open_.get(), ids, n, out), "embedx"));
  return Called(0, nullptr);
}

Status HbmDevice::PushFromHost(const int32_t* plan, size_t plan_size, size_t n, const float* grad) {
  const std::lock_guard<std::mutex> lock(staging_mutex_);
  pbx_hbm_gradient gradient{};
  gradient.with_expand = accessor_.layout.expand_dim != 0 ? 1 : 0;
  PBX_RETURN_IF_ERROR(CompleteGradient(&gradient));
  PBX_RETURN_IF_ERROR(OpenStaging());
  PBX_RETURN_IF_ERROR(Check(Hbm().stage_push(staging_.get(), open_.get(), plan, plan_size,
                                             PBX_HBM_WIRE_FLOAT32, grad, n, &gradient),
                            "gradients of other ranks"));
  return Called(0, nullptr);
}

}  // namespace

const char* HbmBackend() { return Hbm().plugged_in ? "plugged in" : Hbm().backend(); }

Status CheckBackend(const std::string& table, const HbmDeviceConfig& config) {
  const bool is_host = std::strcmp(HbmBackend(), "host") == 0;
  if (is_host == config.host_is_device) return Status::Ok();
  return Error(Code::kFailedPrecondition,
               "table '%s': hbm.place is gpu, and this library's device is %s: build "
               "libpaddlebox_gpu.so (docs/gpu.md), or set hbm.place to host",
               table.c_str(), is_host ? "the CPU" : "a GPU");
}

std::unique_ptr<DevicePass> NewHbmDevice(const TableConfig& table, const HbmDeviceConfig& config) {
  return std::make_unique<HbmDevice>(table, config);
}

}  // namespace pbx
