// RowAccess: pull and push over open rows. The operators call it.
//
// The rows are those of the open pass of a Table, or of one batch in a BatchTable, whose rows other
// ranks own. All checks are made here; then a kernel runs over ranges of work.
//
// A *step* is one or more pulls of a program and the pushes that belong to them. All pulls read the
// rows as they were before the step. The pushes are added up by row, and the rules are applied once
// to the sums, so a program with a pull for each slot trains like one with a single pull of all
// slots. Paddle runs the pushes of a program on several threads, in any order: the sums do not
// depend on the order (RowAccess::BeginPush).
//
// Thread safety: operators may call BeginPull and BeginPush from any thread. All other functions
// must not run at the same time as a push.
//
// Letters: D = embedx_dim, E = expand_dim, n = counts besides show and click, P = 3 + n + D columns
// [show, click, further counts..., embed_w, embedx...].
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/threads.h"
#include "row/lists.h"
#include "row/plan.h"
#include "table/decay_clock.h"
#include "table/kernels.h"

namespace pbx {

// What a push does with a row whose merged gradient, show or click is not finite. kError leaves the
// row unchanged and fails. kSkip leaves it unchanged and counts it. kClip replaces the values that
// are not finite (BadGrad::kClip).
enum class OnBadGrad { kError, kSkip, kClip };

// Open rows. They stay valid as long as `hold` lives.
struct OpenRows {
  RowBlock block;
  size_t rows = 0;
  int32_t stamp = 0;               // identifies the rows; a batch's plan holds it
  uint32_t day = 0;                // written into rows that a push changes
  bool read_only = false;          // in an evaluation: a push is an error
  bool pushes_ended = false;       // BatchTable::EndPushes: a push is an error
  float* merged = nullptr;         // see GradientView
  float* merged_expand = nullptr;  // (rows, E), the same for expand
  float* merged_counts = nullptr;  // (rows, n), the same for further counts
  float* merged_late = nullptr;    // (rows), the same for GradientView::late
  DecayClock* clock = nullptr;     // if the rows have weight decay
  std::shared_ptr<const void> hold;
};

class RowAccess;

// A push of a step, from RowAccess::BeginPush on. No other push or pull of the rows runs meanwhile.
class StepPush {
 public:
  StepPush(RowAccess* rows, std::unique_lock<std::shared_mutex> lock)
      : rows_(rows), lock_(std::move(lock)) {}
  StepPush() = default;  // of an error
  StepPush(StepPush&&) = default;
  StepPush& operator=(StepPush&&) = delete;
  ~StepPush();
  // Call it after the push has succeeded. The last push of a step applies the pushes that are held.
  Status End();

 private:
  RowAccess* rows_ = nullptr;
  std::unique_lock<std::shared_mutex> lock_;
};

// The error of a push after BatchTable::EndPushes.
Status PushAfterEnd(const std::string& table);

// The columns of a pooled slot.
inline size_t PooledWidth(const RowLayout& layout, bool use_cvm) {
  return static_cast<size_t>(use_cvm ? layout.pull_columns() : 1 + layout.embedx_dim);
}

// Sums since the RowAccess was created.
struct AccessCounters {
  uint64_t rows_pulled = 0;  // ids, including repeats and padding
  uint64_t rows_pushed = 0;  // unique rows updated, summed over batches
  uint64_t ids_pushed = 0;   // occurrences merged into these rows
  // Time of the calls, including checks and waits. For rows on a GPU: the time of its kernels,
  // known when the pass has ended.
  uint64_t pull_ns = 0, push_ns = 0, plan_ns = 0;
  std::map<uint16_t, uint64_t> bad_grads;  // rows with a bad gradient, by slot
};

class DeviceRows;

class RowAccess {
 public:
  virtual ~RowAccess() = default;
  RowAccess(const RowAccess&) = delete;
  RowAccess& operator=(const RowAccess&) = delete;

  virtual const std::string& name() const = 0;
  virtual const RowLayout& layout() const = 0;

  // out: (n) row ids of feasigns, -1: no row. FailedPrecondition if no pass is open. A feasign that
  // is not among the keys of the pass is InvalidArgument in training and -1 in evaluation. Feasign
  // 0 is padding, always -1.
  virtual Status Translate(const uint64_t* feasigns, size_t n, int32_t* out) = 0;

  // FailedPrecondition if no rows are open, or stamp is not that of the open rows: ids with another
  // stamp mean other rows.
  Status CheckStamp(int32_t stamp) const;

  // ids: (n), each in [-1, rows). out: (n, P).
  Status Pull(const int32_t* ids, size_t n, float* out);
  // (rows, 2) the show and click of every open row, by row id.
  Result<std::vector<float>> ShowClicks() const;
  // out: (n) 1 if the id has a row with embedx, otherwise 0. For an id with 0, Pull gives zeros for
  // embedx, and a push drops the embedx gradient.
  Status HaveEmbedx(const int32_t* ids, size_t n, uint8_t* out) const;
  // grad: (n, P) with the counts in its first columns; scale: batch size. plan: made with each id
  // as its own segment (row/plan.h). late: grad is (n, P + 1), with the weights of late lines after
  // the counts: gradients are divided by them as by shows (show_scale), but no row counts them.
  Status Push(const int32_t* ids, size_t n, const float* grad, float scale);
  Status PushPlanned(const int32_t* plan, size_t plan_size, size_t n, const float* grad,
                     float scale, bool late = false);

  // FailedPrecondition, naming `what`, if rows have no expand part.
  Status CheckExtended(const char* what) const;
  // The same with the expand part after the other columns: (n, P + E). FailedPrecondition if rows
  // have none. A push leaves the expand part of a row unchanged if its whole gradient is 0.
  Status PullExtended(const int32_t* ids, size_t n, float* out);
  Status PushExtended(const int32_t* ids, size_t n, const float* grad, float scale);
  // plan, late: as in PushPlanned.
  Status PushExtendedPlanned(const int32_t* plan, size_t plan_size, size_t n, const float* grad,
                             float scale, bool late = false);

  // Fused pull + sum-pool + CVM. ids: (nnz), offsets: (instances * slots + 1). out: (instances,
  // slots * width + dense_width), width = P with use_cvm, otherwise 1 + D. dense: (instances,
  // dense_width), copied after the slots, which saves programs a concatenation. shared: if
  // instances share lists, each list is pooled once, and offsets has shared.lists + 1 entries.
  // plan: (plan_size) as in row/plan.h, which may hold factors of the ids; plan_size 0: none.
  // Factors and shared lists exclude each other.
  Status PullPooled(const int32_t* ids, size_t nnz, const int32_t* offsets, size_t instances,
                    size_t slots, bool use_cvm, float* out, const float* dense = nullptr,
                    size_t dense_width = 0, const SharedCells& shared = {},
                    const int32_t* plan = nullptr, size_t plan_size = 0);
  // The backward of PullPooled. plan: (plan_size) as in row/plan.h; if plan_size is 0, the plan is
  // made here. show_click: (instances, 2 + n); a show of -w is that of a late line of weight w
  // (PushPlanned). grad: (instances, slots * width + dense_width). Applies the rules to the
  // gradient times `instances`. The plan names the occurrences in all instances, so sharing lists
  // changes no sum.
  Status PushPooled(const int32_t* ids, size_t nnz, const int32_t* offsets, size_t instances,
                    size_t slots, bool use_cvm, const float* show_click, const int32_t* plan,
                    size_t plan_size, const float* grad, size_t dense_width = 0,
                    const SharedCells& shared = {});

  // ---- The steps of a program: what operators call

  // Begins a pull of an operator, which must hold the lock until it has read the rows. A pull after
  // a push begins a new step: it first applies what is left of the step before.
  Result<std::shared_lock<std::shared_mutex>> BeginPull();
  // Begins a push of this step: the caller makes one of the pushes above, then calls StepPush::End.
  // If the step has one pull, the push is applied at once. If it has more, the merged push is held
  // until there are as many pushes as pulls, or until EndStep. A push beyond the number of pulls is
  // a step of its own.
  Result<StepPush> BeginPush();
  // Adds up the pushes that are held and applies them. Whoever reads the open rows by another way
  // than an operator calls this first.
  Status EndStep();
  // Drops the pushes that are held.
  void DropStep();
  // Within a StepPush: the push is held. Rows on a device are then pushed from the host's memory.
  bool holding() const { return holding_; }

  AccessCounters access_counters() const;

  // The open rows, if they are on a device; otherwise null. The functions above do not work on rows
  // on a device.
  virtual DeviceRows* device() const { return nullptr; }

 protected:
  RowAccess(int threads, OnBadGrad on_bad_grad, float bad_grad_bound);

  // The open rows. FailedPrecondition, naming `what`, if none are open.
  virtual Result<OpenRows> Open(const char* what) const = 0;
  virtual int32_t stamp() const = 0;  // of the open rows, 0: none

  // Adds counts from another place.
  void AddCounters(const AccessCounters& more);

  std::unique_ptr<ThreadPool> pool_;  // for pull and push

  // The rows for which a push is held, of which only the fields besides the rows themselves are
  // read. Rows on a device have them, too.
  virtual Result<OpenRows> OpenToHold() const { return Open("push"); }
  // Applies the pushes of a step. rows: (n) ids, which may repeat. values: (n, P + E), or (n, P + 1
  // + E) with `late`: as for PushExtendedPlanned with scale 1.
  virtual Status PushStep(const OpenRows& open, const std::vector<int32_t>& rows,
                          const std::vector<float>& values, bool late);
  Status PlanOf(const OpenRows& open, const int32_t* ids, size_t n, std::vector<int32_t>* plan);

 private:
  friend class StepPush;
  // A push of this step that was merged by row and not applied yet.
  struct HeldPush {
    std::vector<int32_t> rows;  // (u) ascending
    // (u, P + E), or (u, P + 1 + E) with `late`: as for PushExtendedPlanned with scale 1.
    std::vector<float> values;
    bool late = false;
  };

  Result<OpenRows> OpenToPush() const { return holding_ ? OpenToHold() : Open("push"); }
  Status Hold(const OpenRows& open, const PlanView& view, GradientView gradient);
  Status EndStepLocked();
  Status CheckIds(const OpenRows& open, const int32_t* ids, size_t n) const;
  Status CheckOffsets(const int32_t* offsets, size_t segments, size_t nnz) const;
  // nnz: as for ViewPlan.
  Status PushView(const OpenRows& open, const int32_t* plan, size_t plan_size, size_t segments,
                  GradientView gradient, size_t nnz = 0);
  // FailedPrecondition if the rows belong to other ranks, which get no column of late lines.
  Status CheckTakesLate(const OpenRows& open) const;
  Status CountBad(const OpenRows& open, std::vector<size_t>* rows);

  OnBadGrad on_bad_grad_;
  float bad_grad_bound_;          // of kClip
  std::shared_mutex step_mutex_;  // shared by pulls of operators, exclusive for pushes
  std::atomic<size_t> pulls_{0};  // of this step
  size_t pushes_ = 0;             // of this step, guarded by step_mutex_ like the next two
  bool holding_ = false;          // pushes are held
  std::vector<HeldPush> held_;
  std::vector<float> held_expand_;  // (u, E) of the push that is being held, if it has expand
  std::atomic<uint64_t> rows_pulled_{0}, rows_pushed_{0}, ids_pushed_{0};
  std::atomic<uint64_t> pull_ns_{0}, push_ns_{0}, plan_ns_{0};
  mutable std::mutex bad_mutex_;
  std::map<uint16_t, uint64_t> bad_grads_;
};

}  // namespace pbx
