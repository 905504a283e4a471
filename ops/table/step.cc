// The steps of a program: pushes of several pulls are added up by row and applied once.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <tuple>

#include "row/plan.h"
#include "table/count_columns.h"
#include "table/row_access.h"

namespace pbx {
namespace {

constexpr size_t kRowsPerTask = 512;

// Any total order of contents will do: pushes that compare as equal are interchangeable.
int Compare(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return a.size() < b.size() ? -1 : 1;
  return a.empty() ? 0 : std::memcmp(a.data(), b.data(), a.size() * sizeof(float));
}

}  // namespace

Result<std::shared_lock<std::shared_mutex>> RowAccess::BeginPull() {
  for (;;) {
    std::shared_lock<std::shared_mutex> lock(step_mutex_);
    if (pushes_ == 0) {
      ++pulls_;
      return Result<std::shared_lock<std::shared_mutex>>(std::move(lock));
    }
    lock.unlock();
    PBX_RETURN_IF_ERROR(EndStep());
  }
}

Result<StepPush> RowAccess::BeginPush() {
  std::unique_lock<std::shared_mutex> lock(step_mutex_);
  if (pushes_ >= pulls_) PBX_RETURN_IF_ERROR(EndStepLocked());  // a step without a pull
  ++pushes_;
  holding_ = pulls_ > 1;
  return Result<StepPush>(StepPush(this, std::move(lock)));
}

StepPush::~StepPush() {
  if (!lock_.owns_lock()) return;
  rows_->holding_ = false;
  rows_->held_expand_.clear();
}

Status StepPush::End() {
  const bool last = rows_->holding_ && rows_->pushes_ >= rows_->pulls_;
  rows_->holding_ = false;
  rows_->held_expand_.clear();
  return last ? rows_->EndStepLocked() : Status::Ok();
}

Status RowAccess::EndStep() {
  const std::lock_guard<std::shared_mutex> lock(step_mutex_);
  return EndStepLocked();
}

void RowAccess::DropStep() {
  const std::lock_guard<std::shared_mutex> lock(step_mutex_);
  pulls_ = pushes_ = 0;
  held_.clear();
}

Status RowAccess::Hold(const OpenRows& open, const PlanView& view, GradientView gradient) {
  const size_t unique = view.unique;
  const auto head = static_cast<size_t>(layout().head_columns()), counts = head - 2;
  const auto dim = static_cast<size_t>(layout().embedx_dim), plain = 3 + dim;
  const auto expand = static_cast<size_t>(layout().expand_dim);
  std::vector<float> merged(unique * plain), further(unique * counts);
  std::vector<float> late(gradient.late_at != 0 ? unique : 0);
  std::vector<int32_t> places(unique);  // rows are merged into places that follow each other
  std::iota(places.begin(), places.end(), 0);
  RowBlock block = open.block;
  if (block.rows == nullptr) block.rows = reinterpret_cast<char*>(merged.data());
  std::mutex bad_mutex;
  std::vector<size_t> bad;
  const auto report = [&](size_t place) {
    const std::lock_guard<std::mutex> lock(bad_mutex);
    bad.push_back(place);
  };
  gradient.on_bad = on_bad_grad_ == OnBadGrad::kClip ? BadGrad::kClip : BadGrad::kSkip;
  gradient.bound = bad_grad_bound_;
  gradient.merged = merged.data();
  gradient.context = const_cast<void*>(static_cast<const void*>(&report));
  gradient.report = [](void* context, size_t place) {
    (*static_cast<decltype(report)*>(context))(place);
  };
  pool_->ParallelRanges(unique, kRowsPerTask, [&](size_t begin, size_t end) {
    if (!late.empty()) SumLate(view.starts, view.segments, begin, end, gradient, late.data());
    ActiveKernels().push(block, places.data(), view.starts, view.segments, begin, end, gradient,
                         open.day);
  });
  std::sort(bad.begin(), bad.end());
  const std::vector<size_t> left_out = gradient.on_bad == BadGrad::kSkip ? bad : decltype(bad)();
  if (counts != 0) {
    PushCounts(block, places.data(), view.starts, view.segments, 0, unique, gradient, left_out,
               further.data());
  }
  HeldPush held;
  held.late = !late.empty();
  held.values.reserve(unique * (head + (held.late ? 1 : 0) + 1 + dim + expand));
  for (size_t u = 0; u < unique; ++u) {
    if (std::binary_search(left_out.begin(), left_out.end(), u)) continue;
    const float* const from = merged.data() + u * plain;
    const auto add = [&](const float* values, size_t n) {
      held.values.insert(held.values.end(), values, values + n);
    };
    held.rows.push_back(view.rows[u]);
    add(from, 2);
    add(further.data() + u * counts, counts);
    if (held.late) add(&late[u], 1);
    add(from + 2, 1 + dim);
    if (held_expand_.empty()) {
      held.values.insert(held.values.end(), expand, 0.0f);
    } else {
      add(held_expand_.data() + u * expand, expand);
    }
  }
  ids_pushed_ += view.occurrences;
  held_.push_back(std::move(held));
  if (bad.empty()) return Status::Ok();
  for (size_t& place : bad) place = static_cast<size_t>(view.rows[place]);
  return CountBad(open, &bad);
}

Status RowAccess::EndStepLocked() {
  pulls_ = pushes_ = 0;
  std::vector<HeldPush> held = std::move(held_);
  held_.clear();
  if (held.empty()) return Status::Ok();
  Result<OpenRows> opened = OpenToHold();
  if (!opened.ok()) return opened.status();
  std::sort(held.begin(), held.end(), [](const HeldPush& a, const HeldPush& b) {
    if (a.rows != b.rows) return a.rows < b.rows;
    if (a.late != b.late) return b.late;
    return Compare(a.values, b.values) < 0;
  });
  const bool late = std::any_of(held.begin(), held.end(), [](const auto& h) { return h.late; });
  const auto head = static_cast<size_t>(layout().head_columns());
  const size_t columns = head + 1 + static_cast<size_t>(layout().embedx_dim) +
                         static_cast<size_t>(layout().expand_dim);
  std::vector<int32_t> rows;
  std::vector<float> values;
  for (const HeldPush& push : held) {
    rows.insert(rows.end(), push.rows.begin(), push.rows.end());
    if (push.late == late) {
      values.insert(values.end(), push.values.begin(), push.values.end());
      continue;
    }
    for (auto from = push.values.begin(); from != push.values.end();
         from += static_cast<ptrdiff_t>(columns)) {
      const auto rest = from + static_cast<ptrdiff_t>(head);
      values.insert(values.end(), from, rest);
      values.push_back(0.0f);
      values.insert(values.end(), rest, from + static_cast<ptrdiff_t>(columns));
    }
  }
  return PushStep(opened.value(), rows, values, late);
}

Status RowAccess::PushStep(const OpenRows& open, const std::vector<int32_t>& rows,
                           const std::vector<float>& values, bool late) {
  std::vector<int32_t> plan;
  PBX_RETURN_IF_ERROR(PlanOf(open, rows.data(), rows.size(), &plan));
  ids_pushed_ -= rows.size();  // Hold has counted the ids
  const auto push =
      layout().expand_dim != 0 ? &RowAccess::PushExtendedPlanned : &RowAccess::PushPlanned;
  return (this->*push)(plan.data(), plan.size(), rows.size(), values.data(), 1.0f, late);
}

}  // namespace pbx
