// pull_box_extended_sparse: rows with a second embedding, expand, beside embedx. These are plain
// loops: only the fused pull of embedx has to be fast.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "row/plan.h"
#include "table/count_columns.h"
#include "table/row_access.h"

namespace pbx {
namespace {

constexpr size_t kRowsPerTask = 512;

// Updates expand of one row by the gradients of its occurrences segments[begin, end), whose last E
// columns are those of expand. If sums, (E), is not null, adds the gradient there instead, for the
// owner of the row. False if the merged gradient is not finite.
bool PushExpand(const AccessorConfig& config, const int32_t* segments, int32_t begin, int32_t end,
                const GradientView& gradient, float* row, float* sums) {
  const auto dim = static_cast<size_t>(config.layout.expand_dim);
  const size_t expand_column = gradient.stride - dim;
  ColumnSums merged{std::vector<float>(dim + 2)};  // expand, show, late
  const auto add = [&](int64_t i, ColumnSums* to) {
    const float* from =
        gradient.grad + static_cast<size_t>(segments[i] & INT32_MAX) * gradient.stride;
    for (size_t c = 0; c < dim; ++c) to->of[c] += from[expand_column + c];
    to->of[dim] += from[0];
    if (gradient.late_at != 0) to->of[dim + 1] += from[gradient.late_at];
  };
  SumInOrder(begin, end, add, &merged);
  float* const expand = merged.of.data();
  float size = 0.0f;
  for (size_t c = 0; c < dim; ++c) {
    expand[c] *= gradient.scale;
    size += std::abs(expand[c]);
  }
  if (sums == nullptr)
    return accessor::PushExpand(config, expand[dim], expand, row, expand[dim + 1]);
  if (!(size < INFINITY)) return false;
  for (size_t c = 0; c < dim; ++c) sums[c] += expand[c];
  return true;
}

}  // namespace

Status RowAccess::CheckExtended(const char* what) const {
  if (layout().expand_dim != 0) return Status::Ok();
  return Error(Code::kFailedPrecondition,
               "%s: the rows of table '%s' have no expand part; set table.expand_dim", what,
               name().c_str());
}

Status RowAccess::PullExtended(const int32_t* ids, size_t n, float* out) {
  PBX_RETURN_IF_ERROR(CheckExtended("pull_box_extended_sparse"));
  Result<OpenRows> opened = Open("pull");
  if (!opened.ok()) return opened.status();
  const OpenRows& open = opened.value();
  PBX_RETURN_IF_ERROR(CheckIds(open, ids, n));
  const auto plain = static_cast<size_t>(layout().pull_columns());
  const size_t width = plain + static_cast<size_t>(layout().expand_dim);
  pool_->ParallelRanges(n, kRowsPerTask, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) { CopyColumns(open.block, ids[i], true, out + i * width); }
  });
  rows_pulled_ += n;
  return Status::Ok();
}

Status RowAccess::PushExtended(const int32_t* ids, size_t n, const float* grad, float scale) {
  PBX_RETURN_IF_ERROR(CheckExtended("push_box_extended_sparse"));
  Result<OpenRows> opened = OpenToPush();
  if (!opened.ok()) return opened.status();
  std::vector<int32_t> plan;
  PBX_RETURN_IF_ERROR(PlanOf(opened.value(), ids, n, &plan));
  return PushExtendedPlanned(plan.data(), plan.size(), n, grad, scale);
}

Status RowAccess::PushExtendedPlanned(const int32_t* plan, size_t plan_size, size_t n,
                                      const float* grad, float scale, bool late) {
  PBX_RETURN_IF_ERROR(CheckExtended("push_box_extended_sparse"));
  Result<OpenRows> opened = OpenToPush();
  if (!opened.ok()) return opened.status();
  const OpenRows& open = opened.value();
  const RowLayout& layout = this->layout();
  const auto expand_dim = static_cast<size_t>(layout.expand_dim);
  const size_t more = late ? 1 : 0, head = static_cast<size_t>(layout.head_columns());
  GradientView gradient;
  gradient.grad = gradient.show_click = grad;
  gradient.stride = gradient.show_click_stride =
      static_cast<size_t>(layout.pull_columns()) + more + expand_dim;
  gradient.late_at = more * head;
  gradient.weights_at = head + more;
  gradient.scale = scale;
  if (plan_size != 0) PBX_RETURN_IF_ERROR(CheckStamp(plan[0]));
  Result<PlanView> viewed = ViewPlan(plan, plan_size, open.rows, n);
  if (!viewed.ok()) return viewed.status();
  const PlanView& view = viewed.value();
  if (!open.read_only) {
    if (layout.counts != 0) PBX_RETURN_IF_ERROR(CheckCounts(layout, gradient, n));
    // Before the push of embedx, so that the push that creates both parts only initialises them.
    std::vector<size_t> bad;
    std::mutex bad_mutex;
    if (holding_) held_expand_.assign(view.unique * expand_dim, 0.0f);
    pool_->ParallelRanges(view.unique, kRowsPerTask, [&](size_t begin, size_t end) {
      for (size_t u = begin; u < end; ++u) {
        const auto id = static_cast<size_t>(view.rows[u]);
        float *row = nullptr, *sums = nullptr;
        if (holding_) {
          sums = held_expand_.data() + u * expand_dim;
        } else {
          row = reinterpret_cast<float*>(open.block.rows + id * open.block.row_bytes);
          if (open.clock != nullptr) open.clock->CatchUp(layout, row);
          if (open.merged_expand != nullptr) sums = open.merged_expand + id * expand_dim;
        }
        if (PushExpand(*open.block.config, view.segments, view.starts[u], view.starts[u + 1],
                       gradient, row, sums)) {
          continue;
        }
        const std::lock_guard<std::mutex> lock(bad_mutex);
        bad.push_back(id);
      }
    });
    if (!bad.empty()) PBX_RETURN_IF_ERROR(CountBad(open, &bad));
  }
  return PushView(open, plan, plan_size, n, gradient);
}

}  // namespace pbx
