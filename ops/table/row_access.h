// RowAccess: pull and push over rows that are open, whoever holds them. What the operators call.
//
// A Table gives the rows of its open pass; a BatchTable those of one batch, which other ranks own.
// All checks are made here, then one kernel call runs over ranges of work.
//
// Letters: D = embedx_dim, E = expand_dim, P = 3 + D columns [show, click, embed_w, embedx...].
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/threads.h"
#include "row/lists.h"
#include "table/kernels.h"

namespace pbx {

// What a push does with a row whose merged gradient, show or click is not finite: it leaves the row
// as it is and fails, or only counts it, or clips what is not finite (BadGrad::kClip).
enum class OnBadGrad { kError, kSkip, kClip };

// Rows that are open, and as long as `hold` lives.
struct OpenRows {
  RowBlock block;
  size_t rows = 0;
  int32_t stamp = 0;               // names them; a batch's plan carries it
  uint32_t day = 0;                // written into rows that a push changes
  bool read_only = false;          // of an evaluation: a push is an error
  float* merged = nullptr;         // see GradientView
  float* merged_expand = nullptr;  // (rows, E) likewise of the expand part
  std::shared_ptr<const void> hold;
};

// Sums since it was made.
struct AccessCounters {
  uint64_t rows_pulled = 0;  // ids looked at, repeats and padding included
  uint64_t rows_pushed = 0;  // unique rows updated, once a batch each
  uint64_t ids_pushed = 0;   // occurrences merged into them
  // Of the calls, checks and waits included; of rows on a GPU how long it was at them, and known
  // when the pass has ended.
  uint64_t pull_ns = 0, push_ns = 0, plan_ns = 0;
  std::map<uint16_t, uint64_t> bad_grads;  // rows met with a bad gradient, by slot
};

class DeviceRows;

class RowAccess {
 public:
  virtual ~RowAccess() = default;
  RowAccess(const RowAccess&) = delete;
  RowAccess& operator=(const RowAccess&) = delete;

  virtual const std::string& name() const = 0;
  virtual const RowLayout& layout() const = 0;

  // out: (n) row ids of feasigns, -1 where there is no row. FailedPrecondition when no pass is
  // open. A feasign that is not among the pass's keys has no row: an error in training (names the
  // feasign, "was not in the keys of this pass"), -1 in evaluation. 0 is padding, -1 always.
  virtual Status Translate(const uint64_t* feasigns, size_t n, int32_t* out) = 0;

  // FailedPrecondition when stamp is not that of the open rows (its row ids mean other rows), or
  // none are open.
  Status CheckStamp(int32_t stamp) const;

  // ids: (n), each in [-1, rows). out: (n, P).
  Status Pull(const int32_t* ids, size_t n, float* out);
  // out: (n) 1 for each row that has an embedx, 0 where Pull gives zeros for want of one, or of a
  // row: then a push leaves no trace of its embedx gradient.
  Status HaveEmbedx(const int32_t* ids, size_t n, uint8_t* out) const;
  // grad: (n, P) with show and click in columns 0, 1; scale: batch size. plan: of ids, each a
  // segment of its own (row/plan.h).
  Status Push(const int32_t* ids, size_t n, const float* grad, float scale);
  Status PushPlanned(const int32_t* plan, size_t plan_size, size_t n, const float* grad,
                     float scale);

  // FailedPrecondition, naming what was tried, where rows have no expand part.
  Status CheckExtended(const char* what) const;
  // The same with the expand part behind: (n, P + E). FailedPrecondition for a table whose rows
  // have none. A row whose expand gets a gradient of nothing but zeros keeps it as it is.
  Status PullExtended(const int32_t* ids, size_t n, float* out);
  Status PushExtended(const int32_t* ids, size_t n, const float* grad, float scale);
  // plan: as of PushPlanned.
  Status PushExtendedPlanned(const int32_t* plan, size_t plan_size, size_t n, const float* grad,
                             float scale);

  // Fused pull + sum-pool + CVM. ids: (nnz), offsets: (instances * slots + 1). out: (instances,
  // slots * width + dense_width), width = P with use_cvm, else P - 2. dense: (instances,
  // dense_width), copied behind the slots, so that no program has to copy the slots to join them.
  // shared: where instances share lists, each is pooled once; offsets: (shared.lists + 1) then.
  Status PullPooled(const int32_t* ids, size_t nnz, const int32_t* offsets, size_t instances,
                    size_t slots, bool use_cvm, float* out, const float* dense = nullptr,
                    size_t dense_width = 0, const SharedCells& shared = {});
  // Its backward. plan: (plan_size) as in row/plan.h, or plan_size 0: made here. show_click:
  // (instances, 2). grad: (instances, slots * width + dense_width). Applies the rules, scaled by
  // `instances`. A plan is of the occurrences in all instances, so that shared lists change no sum.
  Status PushPooled(const int32_t* ids, size_t nnz, const int32_t* offsets, size_t instances,
                    size_t slots, bool use_cvm, const float* show_click, const int32_t* plan,
                    size_t plan_size, const float* grad, size_t dense_width = 0,
                    const SharedCells& shared = {});

  AccessCounters access_counters() const;

  // Where the open rows are, if they are on a device: then nothing here reads or changes them.
  virtual DeviceRows* device() const { return nullptr; }

 protected:
  RowAccess(int threads, OnBadGrad on_bad_grad, float bad_grad_bound);

  // The open rows. FailedPrecondition, naming what was tried, where there are none.
  virtual Result<OpenRows> Open(const char* what) const = 0;
  virtual int32_t stamp() const = 0;  // of the open rows, 0 when there are none

  // Adds what was counted elsewhere.
  void AddCounters(const AccessCounters& more);

  std::unique_ptr<ThreadPool> pool_;  // pull, push: the training thread's

 private:
  Status CheckIds(const OpenRows& open, const int32_t* ids, size_t n) const;
  Status CheckOffsets(const int32_t* offsets, size_t segments, size_t nnz) const;
  Status PlanOf(const OpenRows& open, const int32_t* ids, size_t n, std::vector<int32_t>* plan);
  Status PushView(const OpenRows& open, const int32_t* plan, size_t plan_size, size_t segments,
                  GradientView gradient);
  Status CountBad(const OpenRows& open, std::vector<size_t>* rows);

  OnBadGrad on_bad_grad_;
  float bad_grad_bound_;  // kClip: what an infinity becomes
  std::atomic<uint64_t> rows_pulled_{0}, rows_pushed_{0}, ids_pushed_{0};
  std::atomic<uint64_t> pull_ns_{0}, push_ns_{0}, plan_ns_{0};
  mutable std::mutex bad_mutex_;
  std::map<uint16_t, uint64_t> bad_grads_;
};

}  // namespace pbx
