#include "device/device_batch.h"

#include <cinttypes>
#include <cstring>
#include <utility>
#include <vector>

#include "cuda/hbm.h"
#include "device/device_arguments.h"

namespace pbx {
namespace {

// A batch on the device.
struct Side {
  std::unique_ptr<pbx_hbm_table, Close> table;
  pbx_hbm_report told{};  // of what it has met, what was said
  int32_t stamp = 0;      // 0: there is none
  bool read_only = false;
  size_t n = 0;
};

Status NoExpand(const char* what) {
  return Error(Code::kFailedPrecondition, "%s: rows of other ranks have no expand part on a device",
               what);
}

}  // namespace

class DeviceBatchTable::Rows : public DeviceRows {
 public:
  Rows(const BatchTableConfig& config, const HbmDeviceConfig& device)
      : config_(config), device_(device) {}

  Status Prepare(int32_t stamp, const uint64_t* keys, size_t n, bool read_only);
  Status Fill(size_t first, const int32_t* at, size_t count, const float* values);
  Status Open();
  Status Merged(float* out);
  size_t rows() const { return open_.n; }
  int32_t stamp() const { return open_.stamp; }

  bool on_cpu() const override { return device_.host_is_device; }
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

 private:
  Status OpenDevice();
  Status CheckOpen(const char* what) const;
  Status Merge(const int32_t* plan, size_t plan_size, pbx_hbm_gradient gradient, void* stream);
  Status CheckMet() const;

  const BatchTableConfig config_;
  const HbmDeviceConfig device_;
  std::unique_ptr<pbx_hbm, Close> hbm_;  // before what is on it
  std::unique_ptr<pbx_hbm_staging, Close> staging_;
  Side next_, open_;
  void* stream_ = nullptr;  // of the operators
};

Status DeviceBatchTable::Rows::PullExtended(const int32_t*, size_t, float*, void*) {
  return NoExpand("pull");
}

Status DeviceBatchTable::Rows::PushExtended(const int32_t*, size_t, size_t, const float*, float,
                                            void*) {
  return NoExpand("push");
}

Status DeviceBatchTable::Rows::OpenDevice() {
  if (hbm_ != nullptr) return Status::Ok();
  PBX_RETURN_IF_ERROR(CheckBackend(config_.name, device_));
  // Rules without state: a row is what a pull reads and no more.
  pbx_hbm_config config{};
  config.embedx_dim = config_.embedx_dim;
  config.embed.kind = config.embedx.kind = static_cast<int32_t>(RuleKind::kNaive);
  pbx_hbm* opened = nullptr;
  PBX_RETURN_IF_ERROR(StatusOf(pbx_hbm_open(&config, device_.device, &opened), "the GPU"));
  std::unique_ptr<pbx_hbm, Close> hbm(opened);
  std::unique_ptr<pbx_hbm_table, Close> tables[2];
  for (auto& table : tables) {
    pbx_hbm_table* made = nullptr;
    PBX_RETURN_IF_ERROR(StatusOf(pbx_hbm_begin_batch(opened, &made), "a batch's rows on the GPU"));
    table.reset(made);
  }
  pbx_hbm_staging* staging = nullptr;
  PBX_RETURN_IF_ERROR(
      StatusOf(pbx_hbm_open_staging(opened, &staging), "buffers between ranks and the GPU"));
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
  PBX_RETURN_IF_ERROR(StatusOf(pbx_hbm_renew(next_.table.get(), keys, n, stamp, read_only ? 1 : 0),
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
      return Error(Code::kInvalidArgument,
                   "batch of table '%s': row %lld is filled, it has %zu rows", config_.name.c_str(),
                   at != nullptr ? static_cast<long long>(at[i]) : static_cast<long long>(place),
                   next_.n);
    }
    if (at == nullptr && first + count <= next_.n) break;
  }
  return StatusOf(pbx_hbm_stage_fill(staging_.get(), next_.table.get(), PBX_HBM_WIRE_FLOAT32, at,
                                     first, values, count),
                  "rows from other ranks");
}

Status DeviceBatchTable::Rows::Open() {
  if (next_.stamp == 0) {
    return Error(Code::kFailedPrecondition, "table '%s': no batch is prepared",
                 config_.name.c_str());
  }
  // Gradients tell what a batch met; those of an evaluation have none.
  const bool of_this_pass = open_.stamp == next_.stamp && open_.read_only;
  const Status met = of_this_pass ? CheckMet() : Status::Ok();
  std::swap(open_, next_);
  next_.stamp = 0;
  PBX_RETURN_IF_ERROR(met);
  // What it met in a batch that was given up is not this one's.
  return StatusOf(pbx_hbm_report_of(open_.table.get(), &open_.told, nullptr), "the GPU's counters");
}

// Of the open batch, once its operators are done.
Status DeviceBatchTable::Rows::CheckMet() const {
  PBX_RETURN_IF_ERROR(StatusOf(pbx_hbm_synchronize(stream_), "the GPU"));
  pbx_hbm_report met{};
  PBX_RETURN_IF_ERROR(
      StatusOf(pbx_hbm_report_of(open_.table.get(), &met, nullptr), "the GPU's counters"));
  if (met.out_of_range != open_.told.out_of_range) {
    return Error(Code::kInvalidArgument,
                 "table '%s': %" PRIu64
                 " ids, lists or plans name what the batch of pass %d does not have, or are of "
                 "another pass: pack batches for the open pass",
                 config_.name.c_str(), met.out_of_range - open_.told.out_of_range, open_.stamp);
  }
  if (met.absent != open_.told.absent) {
    return Error(Code::kInvalidArgument,
                 "%" PRIu64 " feasigns, one of them %" PRIu64
                 " or below, are not among those of the open batch: with several ranks a program "
                 "may pull what its dataset feeds",
                 met.absent - open_.told.absent, met.an_absent);
  }
  if (met.bad_rows != open_.told.bad_rows && config_.on_bad_grad == OnBadGrad::kError) {
    return Error(Code::kNotFinite,
                 "push: the gradient (or show, click) of %" PRIu64
                 " rows is NaN or infinite. Nothing of this batch has moved them: give the pass "
                 "up, or set table.on_bad_grad to skip or clip",
                 met.bad_rows - open_.told.bad_rows);
  }
  return Status::Ok();
}

Status DeviceBatchTable::Rows::Merged(float* out) {
  PBX_RETURN_IF_ERROR(CheckOpen("merged gradients"));
  PBX_RETURN_IF_ERROR(
      StatusOf(pbx_hbm_sums(open_.table.get(), out, stream_), "gradients for other ranks"));
  return CheckMet();
}

// ---- What operators call

Status DeviceBatchTable::Rows::CheckOpen(const char* what) const {
  if (open_.stamp != 0) return Status::Ok();
  return Error(Code::kFailedPrecondition, "%s: table '%s' has no open batch", what,
               config_.name.c_str());
}

Status DeviceBatchTable::Rows::Find(const int64_t* feasigns, size_t n, int32_t* ids, void* stream) {
  PBX_RETURN_IF_ERROR(CheckOpen("pull"));
  stream_ = stream;
  const auto* const bits = reinterpret_cast<const uint64_t*>(feasigns);
  return StatusOf(pbx_hbm_find(open_.table.get(), bits, n, ids, stream), "find");
}

Status DeviceBatchTable::Rows::Pull(const int32_t* ids, size_t n, float* out, void* stream) {
  PBX_RETURN_IF_ERROR(CheckOpen("pull"));
  stream_ = stream;
  return StatusOf(pbx_hbm_pull(open_.table.get(), ids, n, out, stream), "pull");
}

Status DeviceBatchTable::Rows::PullPooled(const DeviceBatch& batch, float* out, const float* dense,
                                          void* stream) {
  PBX_RETURN_IF_ERROR(CheckOpen("pull"));
  stream_ = stream;
  const pbx_hbm_segments segments = SegmentsOf(batch);
  PBX_RETURN_IF_ERROR(
      StatusOf(pbx_hbm_pull_pooled(open_.table.get(), &segments, out, stream), "pull_pooled"));
  return StatusOf(CopyDense(batch, config_.embedx_dim, dense, out, stream), "pull_pooled");
}

Status DeviceBatchTable::Rows::Plan(const DeviceBatch& batch, int32_t* plan, void* stream) {
  PBX_RETURN_IF_ERROR(CheckOpen("push"));
  if (batch.shared.list_of != nullptr) {
    return Error(Code::kInvalidArgument,
                 "push: instances share lists, and no plan was fed: the GPU makes plans of batches "
                 "with a list for each slot of each instance");
  }
  const size_t segments = batch.offsets == nullptr ? batch.nnz : batch.instances * batch.slots;
  return StatusOf(pbx_hbm_plan(hbm_.get(), batch.ids, batch.offsets, segments, batch.nnz,
                               open_.stamp, plan, stream),
                  "plan");
}

Status DeviceBatchTable::Rows::Merge(const int32_t* plan, size_t plan_size,
                                     pbx_hbm_gradient gradient, void* stream) {
  PBX_RETURN_IF_ERROR(CheckOpen("push"));
  if (open_.read_only) {
    return Error(Code::kFailedPrecondition,
                 "push: pass %d is an evaluation, its rows do not change", open_.stamp);
  }
  stream_ = stream;
  gradient.clip = config_.on_bad_grad == OnBadGrad::kClip ? 1 : 0;
  gradient.bound = config_.bad_grad_bound;
  return StatusOf(pbx_hbm_merge(open_.table.get(), plan, plan_size, &gradient, stream), "push");
}

Status DeviceBatchTable::Rows::Push(const int32_t* plan, size_t plan_size, size_t n,
                                    const float* grad, float scale, void* stream) {
  return Merge(plan, plan_size, GradientOfRows(n, config_.embedx_dim, grad, scale), stream);
}

Status DeviceBatchTable::Rows::PushPooled(const DeviceBatch& batch, const int32_t* plan,
                                          size_t plan_size, const float* show_click,
                                          const float* grad, void* stream) {
  return Merge(plan, plan_size, GradientOfPooled(batch, config_.embedx_dim, show_click, grad),
               stream);
}

// ---- The table

DeviceBatchTable::DeviceBatchTable(const BatchTableConfig& config, const HbmDeviceConfig& device)
    : RowAccess(config.threads, config.on_bad_grad, config.bad_grad_bound),
      name_(config.name),
      layout_{config.embedx_dim, 0, 0, 0, 0},
      rows_(std::make_unique<Rows>(config, device)) {}

DeviceBatchTable::~DeviceBatchTable() = default;

DeviceRows* DeviceBatchTable::device() const { return rows_.get(); }
Status DeviceBatchTable::Prepare(int32_t stamp, const uint64_t* keys, size_t n, bool read_only) {
  return rows_->Prepare(stamp, keys, n, read_only);
}
Status DeviceBatchTable::Fill(size_t first, const int32_t* at, size_t count, const float* values) {
  return rows_->Fill(first, at, count, values);
}
Status DeviceBatchTable::Open() { return rows_->Open(); }
Status DeviceBatchTable::Merged(float* out) { return rows_->Merged(out); }
size_t DeviceBatchTable::rows() const { return rows_->rows(); }
int32_t DeviceBatchTable::stamp() const { return rows_->stamp(); }

Result<OpenRows> DeviceBatchTable::Open(const char* what) const {
  return Error(Code::kFailedPrecondition,
               "%s: the rows of table '%s' are on the GPU (hbm.place): they are reached by "
               "operators with tensors there",
               what, name_.c_str());
}

Status DeviceBatchTable::Translate(const uint64_t* /*feasigns*/, size_t /*n*/, int32_t* /*out*/) {
  return Open("pull").status();
}

}  // namespace pbx
