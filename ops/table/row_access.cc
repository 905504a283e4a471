#include "table/row_access.h"

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstring>
#include <numeric>

#include "row/feasign.h"
#include "row/plan.h"
#include "table/count_columns.h"

namespace pbx {
namespace {
// With fewer segments per task, a second thread costs more than it saves.
constexpr size_t kSegmentsPerTask = 1024;
constexpr size_t kRowsPerTask = 512;

// Adds the time that passes until the object is destroyed.
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

// Collects the rows that a push reports as bad. Thread safe.
struct BadRows {
  std::mutex mutex;
  std::vector<size_t> rows;

  static void Report(void* context, size_t row) {
    auto* self = static_cast<BadRows*>(context);
    const std::lock_guard<std::mutex> lock(self->mutex);
    self->rows.push_back(row);
  }
};

Status CheckUnshared(bool factors, const SharedCells& shared) {
  if (!factors || shared.list_of == nullptr) return Status::Ok();
  return Error(Code::kInvalidArgument,
               "the plan has factors of ids, but instances share lists: feed a batch that was "
               "packed without shared lists");
}
}  // namespace

RowAccess::RowAccess(int threads, OnBadGrad on_bad_grad, float bad_grad_bound)
    : pool_(std::make_unique<ThreadPool>(threads)),
      on_bad_grad_(on_bad_grad),
      bad_grad_bound_(bad_grad_bound) {}

AccessCounters RowAccess::access_counters() const {
  AccessCounters counters;
  counters.rows_pulled = rows_pulled_.load();
  counters.rows_pushed = rows_pushed_.load();
  counters.ids_pushed = ids_pushed_.load();
  counters.pull_ns = pull_ns_.load();
  counters.push_ns = push_ns_.load();
  counters.plan_ns = plan_ns_.load();
  const std::lock_guard<std::mutex> lock(bad_mutex_);
  counters.bad_grads = bad_grads_;
  return counters;
}

void RowAccess::AddCounters(const AccessCounters& more) {
  rows_pulled_ += more.rows_pulled;
  rows_pushed_ += more.rows_pushed;
  ids_pushed_ += more.ids_pushed;
  pull_ns_ += more.pull_ns;
  push_ns_ += more.push_ns;
  plan_ns_ += more.plan_ns;
  const std::lock_guard<std::mutex> lock(bad_mutex_);
  for (const auto& [slot, count] : more.bad_grads) bad_grads_[slot] += count;
}

Status RowAccess::CheckStamp(int32_t stamp) const {
  const int32_t now = this->stamp();
  if (now != 0 && stamp == now) return Status::Ok();
  return Error(Code::kFailedPrecondition,
               "the batch has row ids of pass %d, but %s: pack it again for the open pass", stamp,
               now == 0 ? "no pass is open" : ("pass " + std::to_string(now) + " is open").c_str());
}

Status RowAccess::CheckIds(const OpenRows& open, const int32_t* ids, size_t n) const {
  const size_t rows = open.rows;
  if (ActiveKernels().check_ids(ids, n, rows)) return Status::Ok();
  size_t at = 0;
  while (ids[at] >= -1 && (ids[at] < 0 || static_cast<size_t>(ids[at]) < rows)) ++at;
  return Error(Code::kInvalidArgument,
               "row ids: found %d at index %zu, expected -1 to %lld (rows of pass %d)", ids[at], at,
               static_cast<long long>(rows) - 1, open.stamp);
}

Status RowAccess::CheckOffsets(const int32_t* offsets, size_t segments, size_t nnz) const {
  const bool ascending = offsets[0] == 0 && ActiveKernels().check_offsets(offsets, segments);
  if (ascending && static_cast<size_t>(offsets[segments]) == nnz) return Status::Ok();
  return Error(Code::kInvalidArgument,
               "offsets: expected %zu ascending values from 0 to %zu (the number of ids), found "
               "first %d, last %d%s",
               segments + 1, nnz, offsets[0], offsets[segments],
               ascending ? "" : ", not ascending or not from 0");
}

Result<std::vector<float>> RowAccess::ShowClicks() const {
  Result<OpenRows> opened = OpenToHold();  // rows on a device: those with which the pass began
  if (!opened.ok()) return opened.status();
  const OpenRows& open = opened.value();
  std::vector<float> out(2 * open.rows);
  for (size_t id = 0; id < open.rows; ++id) {
    const char* const row = open.block.rows + id * open.block.row_bytes;
    std::memcpy(out.data() + 2 * id, row + 4 * RowLayout::kShow, 8);
  }
  return out;
}

Status RowAccess::Pull(const int32_t* ids, size_t n, float* out) {
  const Timed timed(&pull_ns_);
  Result<OpenRows> opened = Open("pull");
  if (!opened.ok()) return opened.status();
  const OpenRows& open = opened.value();
  PBX_RETURN_IF_ERROR(CheckIds(open, ids, n));
  const Kernels& kernels = ActiveKernels();
  const auto width = static_cast<size_t>(layout().pull_columns());
  pool_->ParallelRanges(n, kSegmentsPerTask, [&](size_t begin, size_t end) {
    if (layout().counts == 0) {
      kernels.pull(open.block, ids + begin, end - begin, out + begin * width);
      return;
    }
    for (size_t i = begin; i < end; ++i) {
      CopyColumns(open.block, ids[i], false, out + i * width);
    }
  });
  rows_pulled_ += n;
  return Status::Ok();
}

Status RowAccess::HaveEmbedx(const int32_t* ids, size_t n, uint8_t* out) const {
  Result<OpenRows> opened = Open("have_embedx");
  if (!opened.ok()) return opened.status();
  const OpenRows& open = opened.value();
  PBX_RETURN_IF_ERROR(CheckIds(open, ids, n));
  for (size_t i = 0; i < n; ++i) {
    const size_t at = static_cast<size_t>(ids[i]) * open.block.row_bytes;
    out[i] = ids[i] >= 0 && HasEmbedx(reinterpret_cast<const float*>(open.block.rows + at));
  }
  return Status::Ok();
}

Status RowAccess::PullPooled(const int32_t* ids, size_t nnz, const int32_t* offsets,
                             size_t instances, size_t slots, bool use_cvm, float* out,
                             const float* dense, size_t dense_width, const SharedCells& shared,
                             const int32_t* plan, size_t plan_size) {
  const Timed timed(&pull_ns_);
  Result<OpenRows> opened = Open("pull");
  if (!opened.ok()) return opened.status();
  const OpenRows& open = opened.value();
  PBX_RETURN_IF_ERROR(CheckIds(open, ids, nnz));
  const size_t segments = instances * slots;
  const size_t lists = shared.list_of != nullptr ? shared.lists : segments;
  PBX_RETURN_IF_ERROR(CheckOffsets(offsets, lists, nnz));
  const Kernels& kernels = ActiveKernels();
  PooledOutput output{out, slots, dense_width};
  if (plan_size != 0) {
    Result<const float*> factors = FactorsOf(plan, plan_size, nnz);
    if (!factors.ok()) return factors.status();
    output.factors = factors.value();
    PBX_RETURN_IF_ERROR(CheckUnshared(output.factors != nullptr, shared));
  }
  // Kept per thread: new pages for every batch would cost as much as building the chains.
  thread_local CellChains chains;
  if (shared.list_of != nullptr) {
    PBX_RETURN_IF_ERROR(ChainCells(shared, segments, &chains));
    output.first = chains.first.data();
    output.next = chains.next.data();
  }
  // A list that many cells share is written to each of them: tasks have about as many cells.
  const size_t lists_per_task = kSegmentsPerTask * lists / std::max<size_t>(1, segments);
  pool_->ParallelRanges(lists, lists_per_task, [&](size_t begin, size_t end) {
    if (use_cvm && layout().counts != 0) {
      PullPooledCounts(open.block, ids, offsets, begin, end, output);
    } else {
      kernels.pull_pooled(open.block, ids, offsets, begin, end, use_cvm, output);
    }
  });
  const size_t width = PooledWidth(layout(), use_cvm);
  for (size_t i = 0; dense_width != 0 && i < instances; ++i) {
    std::memcpy(out + i * (slots * width + dense_width) + slots * width, dense + i * dense_width,
                dense_width * sizeof(float));
  }
  rows_pulled_ += nnz;
  return Status::Ok();
}

Status PushAfterEnd(const std::string& table) {
  return Error(Code::kFailedPrecondition,
               "push: table '%s': its gradients of this step are being sent already: call "
               "sum_gradients with pushed=True only after all pushes of the step",
               table.c_str());
}

Status RowAccess::PushView(const OpenRows& open, const int32_t* plan, size_t plan_size,
                           size_t segments, GradientView gradient, size_t nnz) {
  const Timed timed(&push_ns_);
  if (open.read_only) {
    return Error(Code::kFailedPrecondition, "push: pass %d is an evaluation and changes no rows",
                 open.stamp);
  }
  if (open.pushes_ended) return PushAfterEnd(name());
  // The stamp is checked first: a plan of another pass would be reported as malformed.
  if (plan_size != 0) PBX_RETURN_IF_ERROR(CheckStamp(plan[0]));
  Result<PlanView> viewed = ViewPlan(plan, plan_size, open.rows, segments, nnz);
  if (!viewed.ok()) return viewed.status();
  const PlanView& view = viewed.value();
  gradient.factors = view.factors;
  const bool counts = layout().counts != 0;
  if (counts) {
    const size_t instances = segments / gradient.segments_per_instance;
    PBX_RETURN_IF_ERROR(CheckCounts(layout(), gradient, instances));
  }
  if (holding_) return Hold(open, view, gradient);
  const Kernels& kernels = ActiveKernels();
  BadRows bad;
  gradient.on_bad = on_bad_grad_ == OnBadGrad::kClip ? BadGrad::kClip : BadGrad::kSkip;
  gradient.bound = bad_grad_bound_;
  gradient.merged = open.merged;
  gradient.report = BadRows::Report;
  gradient.context = &bad;
  std::vector<float> late(gradient.late_at != 0 ? view.unique : 0);
  if (!late.empty()) {
    PBX_RETURN_IF_ERROR(CheckTakesLate(open));
    pool_->ParallelRanges(view.unique, kRowsPerTask, [&](size_t begin, size_t end) {
      SumLate(view.starts, view.segments, begin, end, gradient, late.data());
    });
    gradient.late = late.data();
  }
  pool_->ParallelRanges(view.unique, kRowsPerTask, [&](size_t begin, size_t end) {
    kernels.push(open.block, view.rows, view.starts, view.segments, begin, end, gradient, open.day);
  });
  std::sort(bad.rows.begin(), bad.rows.end());
  const std::vector<size_t> none;
  const auto& unchanged = gradient.on_bad == BadGrad::kSkip ? bad.rows : none;
  for (size_t u = 0; open.merged_late != nullptr && u < late.size(); ++u) {
    const auto id = static_cast<size_t>(view.rows[u]);
    if (std::binary_search(unchanged.begin(), unchanged.end(), id)) continue;
    open.merged_late[id] += late[u];
  }
  if (counts) {
    pool_->ParallelRanges(view.unique, kRowsPerTask, [&](size_t begin, size_t end) {
      PushCounts(open.block, view.rows, view.starts, view.segments, begin, end, gradient, unchanged,
                 open.merged_counts);
    });
  }
  rows_pushed_ += view.unique;
  ids_pushed_ += view.occurrences;
  if (open.clock != nullptr) open.clock->Tick(*open.block.config);
  return bad.rows.empty() ? Status::Ok() : CountBad(open, &bad.rows);
}

Status RowAccess::CheckTakesLate(const OpenRows& open) const {
  if (open.merged == nullptr || open.merged_late != nullptr) return Status::Ok();
  return Error(Code::kFailedPrecondition,
               "push: the batch has late lines (a negative show), but table '%s' sends its owners "
               "no column of them: set model.delayed_task, or give late lines a show of 0",
               name().c_str());
}

// Counts rows whose gradients are not finite, which is rare.
Status RowAccess::CountBad(const OpenRows& open, std::vector<size_t>* rows) {
  std::sort(rows->begin(), rows->end());  // threads report in any order
  const auto slot_of = [&](size_t row) {
    return SlotOf(reinterpret_cast<const float*>(open.block.rows + row * open.block.row_bytes));
  };
  {
    const std::lock_guard<std::mutex> lock(bad_mutex_);
    for (const size_t row : *rows) ++bad_grads_[open.block.rows != nullptr ? slot_of(row) : 0];
  }
  if (on_bad_grad_ != OnBadGrad::kError) return Status::Ok();
  const size_t first = rows->front();
  if (open.block.rows == nullptr) {
    return Error(Code::kNotFinite,
                 "push: the gradient (or show, click) of %zu rows is NaN or infinite. These rows "
                 "are unchanged: abandon the pass, or set table.on_bad_grad to skip or clip",
                 rows->size());
  }
  return Error(Code::kNotFinite,
               "push: the gradient (or show, click) of %zu rows is NaN or infinite; the first: "
               "feasign %" PRIu64
               ", slot %u. These rows are unchanged, the other rows of the batch are updated: "
               "abandon the pass, or set table.on_bad_grad to skip or clip",
               rows->size(), FeasignOf(open.block.keys[first]), slot_of(first));
}

// The plan of ids, with each id as its own segment.
Status RowAccess::PlanOf(const OpenRows& open, const int32_t* ids, size_t n,
                         std::vector<int32_t>* plan) {
  PBX_RETURN_IF_ERROR(CheckIds(open, ids, n));
  if (n > INT32_MAX - 1) {
    return Error(Code::kInvalidArgument, "push: %zu ids in one call, expected at most %d", n,
                 INT32_MAX - 1);
  }
  const Timed timed(&plan_ns_);
  std::vector<int32_t> offsets(n + 1);
  std::iota(offsets.begin(), offsets.end(), 0);
  BuildPlan(ids, offsets.data(), n, open.stamp, plan);
  return Status::Ok();
}

Status RowAccess::Push(const int32_t* ids, size_t n, const float* grad, float scale) {
  Result<OpenRows> opened = OpenToPush();
  if (!opened.ok()) return opened.status();
  std::vector<int32_t> plan;
  PBX_RETURN_IF_ERROR(PlanOf(opened.value(), ids, n, &plan));
  return PushPlanned(plan.data(), plan.size(), n, grad, scale);
}

Status RowAccess::PushPlanned(const int32_t* plan, size_t plan_size, size_t n, const float* grad,
                              float scale, bool late) {
  Result<OpenRows> opened = OpenToPush();
  if (!opened.ok()) return opened.status();
  GradientView gradient;
  gradient.grad = gradient.show_click = grad;
  const size_t more = late ? 1 : 0, head = static_cast<size_t>(layout().head_columns());
  gradient.stride = gradient.show_click_stride =
      static_cast<size_t>(layout().pull_columns()) + more;
  gradient.late_at = more * head;
  gradient.weights_at = head + more;
  gradient.scale = scale;
  return PushView(opened.value(), plan, plan_size, n, gradient);
}

Status RowAccess::PushPooled(const int32_t* ids, size_t nnz, const int32_t* offsets,
                             size_t instances, size_t slots, bool use_cvm, const float* show_click,
                             const int32_t* plan, size_t plan_size, const float* grad,
                             size_t dense_width, const SharedCells& shared) {
  Result<OpenRows> opened = OpenToPush();
  if (!opened.ok()) return opened.status();
  const OpenRows& open = opened.value();
  const size_t segments = instances * slots;
  std::vector<int32_t> made;
  if (plan_size == 0) {
    PBX_RETURN_IF_ERROR(CheckIds(open, ids, nnz));
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
    BuildPlan(ids, offsets, segments, open.stamp, &made);
    plan = made.data();
    plan_size = made.size();
  }
  GradientView gradient;
  gradient.grad = grad;
  gradient.stride = PooledWidth(layout(), use_cvm);
  gradient.weights_at = gradient.stride - 1 - static_cast<size_t>(layout().embedx_dim);
  gradient.show_click = show_click;
  gradient.show_click_stride = static_cast<size_t>(layout().head_columns());
  gradient.segments_per_instance = slots;
  gradient.extra = dense_width;
  const std::vector<float> with_late = WithLate(show_click, instances, gradient.show_click_stride);
  if (!with_late.empty()) {
    gradient.show_click = with_late.data();
    gradient.late_at = gradient.show_click_stride++;
  }
  gradient.scale = static_cast<float>(instances);
  return PushView(open, plan, plan_size, segments, gradient, nnz);
}

}  // namespace pbx
