#include "device/device_batch.h"

#include <atomic>
#include <cinttypes>
#include <cstring>
#include <utility>
#include <vector>

#include "cuda/hbm.h"
#include "device/hbm_rows.h"
#include "row/plan.h"
#include "table/count_columns.h"

namespace pbx {
namespace {

// A batch on the device.
struct Side {
  std::unique_ptr<pbx_hbm_table, Close> table;
  pbx_hbm_report told{};  // the part of its report that was returned as errors
  int32_t stamp = 0;      // 0: no batch
  bool read_only = false;
  size_t n = 0;
};

Status NoExpand(const char* what) {
  return Error(Code::kFailedPrecondition, "%s: rows of other ranks have no expand part on a device",
               what);
}

}  // namespace

class DeviceBatchTable::Rows : public HbmRows<DeviceRows> {
 public:
  Rows(const BatchTableConfig& config, const HbmDeviceConfig& device)
      : HbmRows(device, config.embedx_dim, ""), config_(config) {}

  Status Prepare(int32_t stamp, const uint64_t* keys, size_t n, bool read_only);
  Status Fill(size_t first, const int32_t* at, size_t count, const float* values);
  Status Open();
  void EndPushes() { pushes_ended_ = true; }
  Status Merged(float* out);
  // The fields of the open batch that a push checks.
  Status Describe(OpenRows* open) const;
  size_t rows() const { return open_.n; }
  int32_t stamp() const { return open_.stamp; }

  Status PullExtended(const int32_t*, size_t, float*, void*) override { return NoExpand("pull"); }
  Status PushExtended(const int32_t*, size_t, size_t, const float*, float, void*) override {
    return NoExpand("push");
  }

 private:
  Status OpenDevice();
  Status CheckMet() const;

  Status CheckOpen(const char* what) const override;
  pbx_hbm* hbm() const override { return hbm_.get(); }
  pbx_hbm_table* open_table() const override { return open_.table.get(); }
  int32_t open_stamp() const override { return open_.stamp; }
  Status Called(size_t /*n*/, void* stream) override {
    stream_ = stream;
    return Status::Ok();
  }
  Status PushGradient(const int32_t* plan, size_t plan_size, pbx_hbm_gradient gradient,
                      void* stream) override;

  const BatchTableConfig config_;
  std::unique_ptr<pbx_hbm, Close> hbm_;  // destroyed after its tables
  std::unique_ptr<pbx_hbm_staging, Close> staging_;
  Side next_, open_;
  std::atomic<bool> pushes_ended_{false};  // of `open_`
  void* stream_ = nullptr;                 // of the last operator
};

Status DeviceBatchTable::Rows::OpenDevice() {
  if (hbm_ != nullptr) return Status::Ok();
  PBX_RETURN_IF_ERROR(CheckBackend(config_.name, device()));
  // Rules without state: a row holds only what a pull reads.
  pbx_hbm_config config{};
  config.embedx_dim = config_.embedx_dim;
  config.threads = 1;
  config.embed.kind = config.embedx.kind = static_cast<int32_t>(RuleKind::kNaive);
  pbx_hbm* opened = nullptr;
  PBX_RETURN_IF_ERROR(Check(Hbm().open(&config, device().device, &opened), "the GPU"));
  std::unique_ptr<pbx_hbm, Close> hbm(opened);
  std::unique_ptr<pbx_hbm_table, Close> tables[2];
  for (auto& table : tables) {
    pbx_hbm_table* made = nullptr;
    PBX_RETURN_IF_ERROR(Check(Hbm().begin_batch(opened, &made), "a batch's rows on the GPU"));
    table.reset(made);
  }
  pbx_hbm_staging* staging = nullptr;
  PBX_RETURN_IF_ERROR(
      Check(Hbm().open_staging(opened, &staging), "buffers between ranks and the GPU"));
  hbm_ = std::move(hbm);
  staging_.reset(staging);
  next_.table = std::move(tables[0]);
  open_.table = std::move(tables[1]);
  return Status::Ok();
}

Status DeviceBatchTable::Rows::Prepare(int32_t stamp, const uint64_t* keys, size_t n,
                                       bool read_only) {
  PBX_RETURN_IF_ERROR(OpenDevice());
  if (stamp <= 0) {
    return Error(Code::kInvalidArgument, "batch of table '%s': stamp %d, expected one above 0",
                 config_.name.c_str(), stamp);
  }
  PBX_RETURN_IF_ERROR(Check(Hbm().renew(next_.table.get(), keys, n, stamp, read_only ? 1 : 0),
                            "a batch's rows on the GPU"));
  next_.stamp = stamp;
  next_.read_only = read_only;
  next_.n = n;
  return Status::Ok();
}

Status DeviceBatchTable::Rows::Fill(size_t first, const int32_t* at, size_t count,
                                    const float* values) {
  for (size_t i = 0; i < count; ++i) {
    const size_t place = at != nullptr ? static_cast<size_t>(at[i]) : first + i;
    if (place >= next_.n) {
      return Error(
          Code::kInvalidArgument,
          "batch of table '%s': cannot fill row %lld, the batch has %zu rows", config_.name.c_str(),
          at != nullptr ? static_cast<long long>(at[i]) : static_cast<long long>(place), next_.n);
    }
    if (at == nullptr && first + count <= next_.n) break;
  }
  return Check(Hbm().stage_fill(staging_.get(), next_.table.get(), PBX_HBM_WIRE_FLOAT32, at, first,
                                values, count),
               "rows from other ranks");
}

Status DeviceBatchTable::Rows::Open() {
  if (next_.stamp == 0) {
    return Error(Code::kFailedPrecondition, "table '%s': no batch is prepared",
                 config_.name.c_str());
  }
  // Merged reports the errors of a training batch. An evaluation batch has no gradients and no call
  // of Merged, so its errors are reported here.
  const bool of_this_pass = open_.stamp == next_.stamp && open_.read_only;
  const Status met = of_this_pass ? CheckMet() : Status::Ok();
  std::swap(open_, next_);
  next_.stamp = 0;
  pushes_ended_ = false;
  PBX_RETURN_IF_ERROR(met);
  // Errors that the device found in a batch that was dropped do not belong to this batch.
  return Check(Hbm().report_of(open_.table.get(), &open_.told, nullptr), "the GPU's counters");
}

// Errors of the open batch. Waits for its operators.
Status DeviceBatchTable::Rows::CheckMet() const {
  PBX_RETURN_IF_ERROR(Check(Hbm().synchronize(stream_), "the GPU"));
  pbx_hbm_report met{};
  PBX_RETURN_IF_ERROR(
      Check(Hbm().report_of(open_.table.get(), &met, nullptr), "the GPU's counters"));
  if (met.out_of_range != open_.told.out_of_range) {
    return Error(Code::kInvalidArgument,
                 "table '%s': %" PRIu64
                 " ids, lists or plans do not fit the batch of pass %d, or belong to another pass: "
                 "pack batches for the open pass",
                 config_.name.c_str(), met.out_of_range - open_.told.out_of_range, open_.stamp);
  }
  if (met.absent != open_.told.absent) {
    return Error(Code::kInvalidArgument,
                 "%" PRIu64 " feasigns, one of them %" PRIu64
                 " or below, are not in the open batch: with several ranks a program can pull only "
                 "the feasigns of the batch that its dataset feeds",
                 met.absent - open_.told.absent, met.an_absent);
  }
  if (met.bad_rows != open_.told.bad_rows && config_.on_bad_grad == OnBadGrad::kError) {
    return Error(Code::kNotFinite,
                 "push: the gradient (or show, click) of %" PRIu64
                 " rows is NaN or infinite. This batch has not changed these rows: abandon the "
                 "pass, or set table.on_bad_grad to skip or clip",
                 met.bad_rows - open_.told.bad_rows);
  }
  return Status::Ok();
}

Status DeviceBatchTable::Rows::Merged(float* out) {
  PBX_RETURN_IF_ERROR(CheckOpen("merged gradients"));
  PBX_RETURN_IF_ERROR(
      Check(Hbm().sums(open_.table.get(), out, stream_), "gradients for other ranks"));
  return CheckMet();
}

Status DeviceBatchTable::Rows::Describe(OpenRows* open) const {
  PBX_RETURN_IF_ERROR(CheckOpen("push"));
  open->rows = open_.n;
  open->stamp = open_.stamp;
  open->read_only = open_.read_only;
  open->pushes_ended = pushes_ended_;
  return Status::Ok();
}

// ---- What operators call

Status DeviceBatchTable::Rows::CheckOpen(const char* what) const {
  if (open_.stamp != 0) return Status::Ok();
  return Error(Code::kFailedPrecondition, "%s: table '%s' has no open batch", what,
               config_.name.c_str());
}

Status DeviceBatchTable::Rows::PushGradient(const int32_t* plan, size_t plan_size,
                                            pbx_hbm_gradient gradient, void* stream) {
  PBX_RETURN_IF_ERROR(CheckOpen("push"));
  if (open_.read_only) {
    return Error(Code::kFailedPrecondition, "push: pass %d is an evaluation and changes no rows",
                 open_.stamp);
  }
  if (pushes_ended_) return PushAfterEnd(config_.name);
  gradient.clip = config_.on_bad_grad == OnBadGrad::kClip ? 1 : 0;
  gradient.bound = config_.bad_grad_bound;
  PBX_RETURN_IF_ERROR(
      Check(Hbm().merge(open_.table.get(), plan, plan_size, &gradient, stream), "push"));
  return Called(0, stream);
}

// ---- The table

DeviceBatchTable::DeviceBatchTable(const BatchTableConfig& config, const HbmDeviceConfig& device)
    : RowAccess(config.threads, config.on_bad_grad, config.bad_grad_bound),
      name_(config.name),
      layout_{config.embedx_dim, 0, 0, 0, 0},
      rows_(std::make_unique<Rows>(config, device)) {
  accessor_.layout = layout_;
}

DeviceBatchTable::~DeviceBatchTable() = default;

DeviceRows* DeviceBatchTable::device() const { return rows_.get(); }
Status DeviceBatchTable::Prepare(int32_t stamp, const uint64_t* keys, size_t n, bool read_only) {
  return rows_->Prepare(stamp, keys, n, read_only);
}
Status DeviceBatchTable::Fill(size_t first, const int32_t* at, size_t count, const float* values) {
  return rows_->Fill(first, at, count, values);
}
Status DeviceBatchTable::Open() {
  DropStep();
  sums_.clear();
  return rows_->Open();
}

Status DeviceBatchTable::EndPushes() {
  const Status status = EndStep();
  rows_->EndPushes();
  return status;
}

Status DeviceBatchTable::Merged(float* out) {
  PBX_RETURN_IF_ERROR(EndStep());
  PBX_RETURN_IF_ERROR(rows_->Merged(out));
  for (size_t i = 0; i < sums_.size(); ++i) out[i] += sums_[i];
  return Status::Ok();
}

Result<OpenRows> DeviceBatchTable::OpenToHold() const {
  OpenRows open;
  PBX_RETURN_IF_ERROR(rows_->Describe(&open));
  open.block.row_bytes = layout_.bytes();
  open.block.config = &accessor_;
  return Result<OpenRows>(std::move(open));
}

Status DeviceBatchTable::PushStep(const OpenRows& open, const std::vector<int32_t>& rows,
                                  const std::vector<float>& values, bool late) {
  if (late) {
    return Error(Code::kFailedPrecondition, "push: late lines are not supported on a device");
  }
  std::vector<int32_t> plan;
  PBX_RETURN_IF_ERROR(PlanOf(open, rows.data(), rows.size(), &plan));
  const Result<PlanView> viewed = ViewPlan(plan.data(), plan.size(), open.rows, rows.size());
  if (!viewed.ok()) return viewed.status();
  const PlanView& view = viewed.value();
  const auto add = [&](int64_t i, ColumnSums* to) {
    const auto at = static_cast<size_t>(view.segments[i] & INT32_MAX) * columns();
    for (size_t c = 0; c < columns(); ++c) to->of[c] += values[at + c];
  };
  sums_.resize(open.rows * columns());
  ColumnSums merged{std::vector<float>(columns())};
  for (size_t u = 0; u < view.unique; ++u) {
    SumInOrder(view.starts[u], view.starts[u + 1], add, &merged);
    float* const to = sums_.data() + static_cast<size_t>(view.rows[u]) * columns();
    for (size_t c = 0; c < columns(); ++c) to[c] += merged.of[c];
  }
  return Status::Ok();
}
size_t DeviceBatchTable::rows() const { return rows_->rows(); }
int32_t DeviceBatchTable::stamp() const { return rows_->stamp(); }

Result<OpenRows> DeviceBatchTable::Open(const char* what) const {
  return Error(Code::kFailedPrecondition,
               "%s: the rows of table '%s' are on the GPU (hbm.place): use operators with tensors "
               "on the GPU",
               what, name_.c_str());
}

Status DeviceBatchTable::Translate(const uint64_t* /*feasigns*/, size_t /*n*/, int32_t* /*out*/) {
  return Open("pull").status();
}

}  // namespace pbx
