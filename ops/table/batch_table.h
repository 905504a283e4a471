// BatchTable: the rows of one batch, on the rank that trains it. Their owners are the tables of all
// ranks: rows come from there before the batch, and what the batch's push has merged goes back
// there after it, for each owner to apply.
//
//   Prepare(keys) -> Fill ... -> Open -> Pull / Push of the operators -> merged() -> Prepare ...
//
// Row ids are places among the batch's own rows (CompactBatch of row/compact.h), so that a batch
// takes the room of its unique rows and the kernels are those of a Table. The next batch may be
// prepared and filled while one is open.
//
// Thread safety: Prepare and Fill belong to one thread; Open, merged and the operators to another;
// Open is not called while the other thread is inside Prepare or Fill.
#pragma once

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
  int expand_dim = 0;  // E; 0: rows have no such part
  int threads = 1;
  OnBadGrad on_bad_grad = OnBadGrad::kError;
  float bad_grad_bound = 10.0f;
};

class BatchTable : public RowAccess {
 public:
  explicit BatchTable(const BatchTableConfig& config);

  const std::string& name() const override { return name_; }
  const RowLayout& layout() const override { return accessor_.layout; }
  // Of a row as ranks exchange it, P + E: [show, click, embed_w, embedx..., expand...].
  size_t columns() const { return push_columns() + expand_columns(); }

  // Makes room for the next batch: keys (n) ascending. Its rows read as zeros until they are
  // filled. stamp: > 0, as in the batch's plan. read_only: of an evaluation.
  Status Prepare(int32_t stamp, const uint64_t* keys, size_t n, bool read_only);
  // values: (count, P + E) as RowAccess::Pull (PullExtended) gives them. at: (count) places among
  // the prepared rows, or null: [first, first + count). InvalidArgument for places that are not
  // there.
  Status Fill(size_t first, const int32_t* at, size_t count, const float* values);
  // The prepared batch is the open one from here on; that before it is gone.
  Status Open();

  // (n, P + E) columns as above that pushes have merged for each row of the open batch, scaled as
  // gradients of a sum; zeros for rows that none has reached. Until the next call.
  const float* merged();
  size_t rows() const { return open_.keys.size(); }

  // Feasigns are looked for among the batch's own: those that are not there are an error in
  // training, -1 in evaluation.
  Status Translate(const uint64_t* feasigns, size_t n, int32_t* out) override;

 protected:
  Result<OpenRows> Open(const char* what) const override;
  int32_t stamp() const override { return open_.stamp; }

 private:
  struct Rows {
    int32_t stamp = 0;  // 0: there are none
    bool read_only = false;
    std::vector<uint64_t> keys;  // (n)
    Buffer rows;                 // room for n rows or more
    // Of an evaluation empty.
    std::vector<float> merged;         // (n, P)
    std::vector<float> merged_expand;  // (n, E)
  };

  size_t push_columns() const { return 3 + static_cast<size_t>(accessor_.layout.embedx_dim); }
  size_t expand_columns() const { return static_cast<size_t>(accessor_.layout.expand_dim); }

  std::string name_;
  AccessorConfig accessor_;  // its rules are never applied
  Rows next_, open_;
  std::vector<float> both_;  // of rows with an expand part, what merged() gives
};

}  // namespace pbx
