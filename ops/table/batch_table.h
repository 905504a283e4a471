// BatchTable: the rows of one batch, on the rank that trains it. The rows belong to the tables of
// all ranks. Before the batch they are copied from these owners. After the batch the merged
// gradients go back to the owners, which apply them.
//
//   Prepare(keys) -> Fill ... -> Open -> Pull / Push of the operators -> merged() -> Prepare ...
//
// EndPushes may precede merged(), if the operators go on while the gradients are sent.
//
// Row ids number the unique rows of the batch (CompactBatch in row/compact.h), so the batch takes
// memory for these rows only, and the kernels of a Table work on it. The next batch may be prepared
// and filled while one is open.
//
// Thread safety: one thread at a time calls Prepare and Fill, another one Open, merged and the
// operators. Open must not run at the same time as Prepare or Fill. After EndPushes, which any
// thread may call, merged may run at the same time as operators.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "rule/accessor.h"
#include "table/row_access.h"

namespace pbx {

struct BatchTableConfig {
  std::string name = "default";
  int embedx_dim = 8;  // D
  int expand_dim = 0;  // E; 0: rows have no expand part
  int counts = 0;      // n, counts besides show and click
  bool late = false;   // gradients have a column with the weights of late lines
  int threads = 1;
  OnBadGrad on_bad_grad = OnBadGrad::kError;
  float bad_grad_bound = 10.0f;
};

class BatchTable : public RowAccess {
 public:
  explicit BatchTable(const BatchTableConfig& config);

  const std::string& name() const override { return name_; }
  const RowLayout& layout() const override { return accessor_.layout; }
  // P + E, the columns of a row as ranks exchange it: [show, click, further counts..., embed_w,
  // embedx..., expand...].
  size_t columns() const { return push_columns() + expand_columns(); }

  // Makes room for the next batch. keys: (n) ascending. Its rows are zeros until they are filled.
  // stamp: > 0, as in the batch's plan. read_only: the batch is for evaluation.
  Status Prepare(int32_t stamp, const uint64_t* keys, size_t n, bool read_only);
  // values: (count, P + E) in the form that RowAccess::PullExtended gives (Pull if E is 0). at:
  // (count) indexes of prepared rows; null: rows [first, first + count). InvalidArgument for
  // indexes out of range.
  Status Fill(size_t first, const int32_t* at, size_t count, const float* values);
  // Opens the prepared batch, which replaces the batch that was open.
  Status Open();
  // Ends the step. From now on, a push to the open batch is FailedPrecondition.
  Status EndPushes();

  // The columns of `merged`: those above, and one after the counts if gradients have late lines.
  size_t gradient_columns() const { return columns() + (late_ ? 1 : 0); }

  // (n, gradient_columns): for each row of the open batch the sums over its pushes, with gradients
  // of the sum loss. Zeros for rows without a push. Valid until the next call. REQUIRES: EndStep or
  // EndPushes was called after the last push.
  const float* merged();
  size_t rows() const { return open_.keys.size(); }

  // Looks feasigns up in the batch. A feasign that is not in it is an error in training and -1 in
  // evaluation.
  Status Translate(const uint64_t* feasigns, size_t n, int32_t* out) override;

 protected:
  Result<OpenRows> Open(const char* what) const override;
  int32_t stamp() const override { return open_.stamp; }

 private:
  struct Rows {
    int32_t stamp = 0;  // 0: no batch
    bool read_only = false;
    std::vector<uint64_t> keys;  // (n)
    Buffer rows;                 // n rows or more
    // All are empty in an evaluation.
    std::vector<float> merged;         // (n, 3 + D), without further counts
    std::vector<float> merged_expand;  // (n, E)
    std::vector<float> merged_counts;  // (n, further counts)
    std::vector<float> merged_late;    // (n), empty without late lines, too
  };

  size_t push_columns() const { return static_cast<size_t>(accessor_.layout.pull_columns()); }
  size_t expand_columns() const { return static_cast<size_t>(accessor_.layout.expand_dim); }
  size_t more_counts() const { return static_cast<size_t>(accessor_.layout.counts); }

  std::string name_;
  bool late_;
  AccessorConfig accessor_;  // its rules are never applied
  Rows next_, open_;
  std::atomic<bool> pushes_ended_{false};  // of `open_`
  std::vector<float> whole_;  // result of merged() if it has more columns than Rows::merged
};

}  // namespace pbx
