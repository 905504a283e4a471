// The open pass of a Table: checks first, then one kernel call over ranges of work.
#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstring>
#include <numeric>

#include "row/feasign.h"
#include "row/plan.h"
#include "table/table.h"

namespace pbx {
namespace {
// Below this much work a second thread costs more than it brings.
constexpr size_t kSegmentsPerTask = 1024;
constexpr size_t kRowsPerTask = 512;

// Adds the time until it goes out of scope.
class Timed {
 public:
  explicit Timed(std::atomic<uint64_t>* sum)
      : sum_(sum), start_(std::chrono::steady_clock::now()) {}
  ~Timed() {
    const auto passed = std::chrono::steady_clock::now() - start_;
    *sum_ +=
        static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count());
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  std::atomic<uint64_t>* sum_;
  std::chrono::steady_clock::time_point start_;
};

// The rows that a push reports as bad, from whichever thread.
struct BadRows {
  std::mutex mutex;
  std::vector<size_t> rows;

  static void Report(void* context, size_t row) {
    auto* self = static_cast<BadRows*>(context);
    const std::lock_guard<std::mutex> lock(self->mutex);
    self->rows.push_back(row);
  }
};
}  // namespace

Result<std::shared_ptr<PassTable>> Table::OpenPass(const char* what) const {
  const std::lock_guard<std::mutex> open(open_mutex_);
  if (training_ == nullptr) {
    return Error(Code::kFailedPrecondition,
                 "%s: table '%s' has no open pass; begin_pass is missing", what,
                 config_.name.c_str());
  }
  return Result<std::shared_ptr<PassTable>>(training_);
}

RowBlock Table::BlockOf(PassTable* pass) const {
  RowBlock block;
  if (pass->rows() != 0) block.rows = pass->table->row(0);
  block.keys = pass->table->keys().data();
  block.row_bytes = row_bytes();
  block.config = &config_.accessor;
  return block;
}

Status Table::CheckStamp(int32_t stamp) const {
  const int32_t now = this->stamp();
  if (now != 0 && stamp == now) return Status::Ok();
  return Error(Code::kFailedPrecondition,
               "the batch has row ids of pass %d, but %s: pack it again for the open pass", stamp,
               now == 0 ? "no pass is open" : ("pass " + std::to_string(now) + " is open").c_str());
}

Status Table::CheckIds(const PassTable& pass, const int32_t* ids, size_t n) const {
  const size_t rows = pass.rows();
  if (ActiveKernels().check_ids(ids, n, rows)) return Status::Ok();
  size_t at = 0;
  while (ids[at] >= -1 && (ids[at] < 0 || static_cast<size_t>(ids[at]) < rows)) ++at;
  return Error(Code::kInvalidArgument,
               "row ids: found %d at %zu, expected -1 to %lld (rows of pass %d)", ids[at], at,
               static_cast<long long>(rows) - 1, pass.stamp);
}

Status Table::CheckOffsets(const int32_t* offsets, size_t segments, size_t nnz) const {
  const bool ascending = offsets[0] == 0 && ActiveKernels().check_offsets(offsets, segments);
  if (ascending && static_cast<size_t>(offsets[segments]) == nnz) return Status::Ok();
  return Error(Code::kInvalidArgument,
               "offsets: expected %zu ascending values from 0 to %zu (the number of ids), found "
               "first %d, last %d%s",
               segments + 1, nnz, offsets[0], offsets[segments],
               ascending ? "" : ", not ascending or not from 0");
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
                 " is not among the keys of pass %d: a training pass has rows for "
                 "the feasigns that were staged with it",
                 feasigns[i], pass.stamp);
  }
  return Status::Ok();
}

Status Table::Pull(const int32_t* ids, size_t n, float* out) {
  const Timed timed(&pull_ns_);
  Result<std::shared_ptr<PassTable>> open = OpenPass("pull");
  if (!open.ok()) return open.status();
  PBX_RETURN_IF_ERROR(CheckIds(*open.value(), ids, n));
  const RowBlock block = BlockOf(open.value().get());
  const Kernels& kernels = ActiveKernels();
  const size_t width = 3 + static_cast<size_t>(config_.accessor.layout.embedx_dim);
  pool_->ParallelRanges(n, kSegmentsPerTask, [&](size_t begin, size_t end) {
    kernels.pull(block, ids + begin, end - begin, out + begin * width);
  });
  rows_pulled_ += n;
  return Status::Ok();
}

Status Table::PullPooled(const int32_t* ids, size_t nnz, const int32_t* offsets, size_t instances,
                         size_t slots, bool use_cvm, float* out, const float* dense,
                         size_t dense_width, const SharedCells& shared) {
  const Timed timed(&pull_ns_);
  Result<std::shared_ptr<PassTable>> open = OpenPass("pull");
  if (!open.ok()) return open.status();
  PBX_RETURN_IF_ERROR(CheckIds(*open.value(), ids, nnz));
  const size_t segments = instances * slots;
  const size_t lists = shared.list_of != nullptr ? shared.lists : segments;
  PBX_RETURN_IF_ERROR(CheckOffsets(offsets, lists, nnz));
  const RowBlock block = BlockOf(open.value().get());
  const Kernels& kernels = ActiveKernels();
  PooledOutput output{out, slots, dense_width};
  // Kept by the thread: fresh pages for every batch would cost as much as the chains.
  thread_local CellChains chains;
  if (shared.list_of != nullptr) {
    PBX_RETURN_IF_ERROR(ChainCells(shared, segments, &chains));
    output.first = chains.first.data();
    output.next = chains.next.data();
  }
  pool_->ParallelRanges(lists, kSegmentsPerTask, [&](size_t begin, size_t end) {
    kernels.pull_pooled(block, ids, offsets, begin, end, use_cvm, output);
  });
  const size_t width = static_cast<size_t>(config_.accessor.layout.embedx_dim) + (use_cvm ? 3 : 1);
  for (size_t i = 0; dense_width != 0 && i < instances; ++i) {
    std::memcpy(out + i * (slots * width + dense_width) + slots * width, dense + i * dense_width,
                dense_width * sizeof(float));
  }
  rows_pulled_ += nnz;
  return Status::Ok();
}

Status Table::PushPlan(PassTable* pass, const int32_t* plan, size_t plan_size, size_t segments,
                       GradientView gradient) {
  const Timed timed(&push_ns_);
  if (pass->purpose == Purpose::kEvaluate) {
    return Error(Code::kFailedPrecondition,
                 "push: pass %d is an evaluation, its rows do not change", pass->stamp);
  }
  // First the stamp: a plan of another pass would only seem to be malformed.
  if (plan_size != 0) PBX_RETURN_IF_ERROR(CheckStamp(plan[0]));
  Result<PlanView> viewed = ViewPlan(plan, plan_size, pass->rows(), segments);
  if (!viewed.ok()) return viewed.status();
  const PlanView& view = viewed.value();
  const RowBlock block = BlockOf(pass);
  const Kernels& kernels = ActiveKernels();
  BadRows bad;
  gradient.on_bad = config_.on_bad_grad == OnBadGrad::kClip ? BadGrad::kClip : BadGrad::kSkip;
  gradient.bound = config_.bad_grad_bound;
  gradient.report = BadRows::Report;
  gradient.context = &bad;
  pool_->ParallelRanges(view.unique, kRowsPerTask, [&](size_t begin, size_t end) {
    kernels.push(block, view.rows, view.starts, view.segments, begin, end, gradient, pass->day);
  });
  rows_pushed_ += view.unique;
  ids_pushed_ += view.occurrences;
  return bad.rows.empty() ? Status::Ok() : CountBad(*pass, &bad.rows);
}

// Rare: a push met rows whose gradients are not finite.
Status Table::CountBad(const PassTable& pass, std::vector<size_t>* rows) {
  std::sort(rows->begin(), rows->end());  // threads report in any order
  const auto slot_of = [&](size_t row) {
    return SlotOf(reinterpret_cast<const float*>(pass.table->row(row)));
  };
  {
    const std::lock_guard<std::mutex> lock(bad_mutex_);
    for (const size_t row : *rows) ++bad_grads_[slot_of(row)];
  }
  if (config_.on_bad_grad != OnBadGrad::kError) return Status::Ok();
  const size_t first = rows->front();
  return Error(Code::kNotFinite,
               "push: the gradient (or show, click) of %zu rows is NaN or infinite; the first: "
               "feasign %" PRIu64
               ", slot %u. Those rows are as they were, the batch's others have moved: give the "
               "pass up, or set table.on_bad_grad to skip or clip",
               rows->size(), FeasignOf(pass.table->keys()[first]), slot_of(first));
}

// The plan of ids that are segments of their own.
Status Table::PlanOf(const PassTable& pass, const int32_t* ids, size_t n,
                     std::vector<int32_t>* plan) {
  PBX_RETURN_IF_ERROR(CheckIds(pass, ids, n));
  if (n > INT32_MAX - 1) {
    return Error(Code::kInvalidArgument, "push: %zu ids in one call, at most %d are possible", n,
                 INT32_MAX - 1);
  }
  const Timed timed(&plan_ns_);
  std::vector<int32_t> offsets(n + 1);
  std::iota(offsets.begin(), offsets.end(), 0);
  BuildPlan(ids, offsets.data(), n, pass.stamp, plan);
  return Status::Ok();
}

Status Table::Push(const int32_t* ids, size_t n, const float* grad, float scale) {
  Result<std::shared_ptr<PassTable>> open = OpenPass("push");
  if (!open.ok()) return open.status();
  PassTable* pass = open.value().get();
  std::vector<int32_t> plan;
  PBX_RETURN_IF_ERROR(PlanOf(*pass, ids, n, &plan));
  GradientView gradient;
  gradient.grad = gradient.show_click = grad;
  gradient.stride = gradient.show_click_stride =
      3 + static_cast<size_t>(config_.accessor.layout.embedx_dim);
  gradient.weights_at = 2;
  gradient.scale = scale;
  return PushPlan(pass, plan.data(), plan.size(), n, gradient);
}

Status Table::PushPooled(const int32_t* ids, size_t nnz, const int32_t* offsets, size_t instances,
                         size_t slots, bool use_cvm, const float* show_click, const int32_t* plan,
                         size_t plan_size, const float* grad, size_t dense_width,
                         const SharedCells& shared) {
  Result<std::shared_ptr<PassTable>> open = OpenPass("push");
  if (!open.ok()) return open.status();
  PassTable* pass = open.value().get();
  const size_t segments = instances * slots;
  std::vector<int32_t> made;
  if (plan_size == 0) {
    PBX_RETURN_IF_ERROR(CheckIds(*pass, ids, nnz));
    const bool sharing = shared.list_of != nullptr;
    PBX_RETURN_IF_ERROR(CheckOffsets(offsets, sharing ? shared.lists : segments, nnz));
    const Timed timed(&plan_ns_);
    std::vector<int32_t> all_ids, all_offsets;
    if (sharing) {
      CellChains chains;
      PBX_RETURN_IF_ERROR(ChainCells(shared, segments, &chains));
      PBX_RETURN_IF_ERROR(ExpandLists(shared, segments, ids, offsets, &all_ids, &all_offsets));
      ids = all_ids.data();
      offsets = all_offsets.data();
    }
    BuildPlan(ids, offsets, segments, pass->stamp, &made);
    plan = made.data();
    plan_size = made.size();
  }
  GradientView gradient;
  gradient.grad = grad;
  gradient.weights_at = use_cvm ? 2 : 0;
  gradient.stride =
      gradient.weights_at + 1 + static_cast<size_t>(config_.accessor.layout.embedx_dim);
  gradient.show_click = show_click;
  gradient.show_click_stride = 2;
  gradient.segments_per_instance = slots;
  gradient.extra = dense_width;
  gradient.scale = static_cast<float>(instances);
  return PushPlan(pass, plan, plan_size, segments, gradient);
}

}  // namespace pbx
