// The loops of training: pull and push over the rows of a pass table. kernels.inl is compiled three
// times (kernels_<path>.cc: plain, AVX2, AVX-512) and a path is chosen at run time. All paths give
// the same bits because they use IEEE-exact operations only, elementwise, without contraction.
//
// They know no counts besides show and click: count_columns.h handles those.
//
// Letters: D = embedx_dim, P = 3 + D pull columns [show, click, embed_w, embedx...], S = sparse
// slots, B = instances, segment = instance * S + slot.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "rule/accessor.h"

namespace pbx {

// What push does with a row whose merged gradient, show or click is not finite.
enum class BadGrad {
  kSkip,  // leaves the row unchanged
  kClip,  // NaN becomes 0, an infinity +-bound; show and click become 0
};

// Factors of the weights of a row: of embed_w, and of embedx and expand.
struct Factors {
  float embed, embedx;
};

// What weight decay has left to do to rows (table/decay_clock.h).
struct Decay {
  // Products of factors, or their inverses.
  struct Product {
    double embed = 1, embedx = 1;
  };
  const Product* inverses = nullptr;  // (step + 1) of the product of the first s steps
  Product product;                    // of all steps; see DecayClock::Tick
  uint32_t step = 0;                  // the steps that have ended

  PBX_INLINE Factors Of(const float* row) const {
    const uint32_t of_row = GetWord(row, RowLayout::kStep);
    // A row that has not begun has a step beyond the last.
    const Product& inverse = inverses[of_row < step ? of_row : step];
    return {static_cast<float>(product.embed * inverse.embed),
            static_cast<float>(product.embedx * inverse.embedx)};
  }
};

// Rows of an open pass table.
struct RowBlock {
  char* rows = nullptr;            // (n, row_bytes)
  const uint64_t* keys = nullptr;  // (n)
  uint32_t row_bytes = 0;
  const AccessorConfig* config = nullptr;
  const Decay* decay = nullptr;  // null: the rows have no weight decay
};

// Where push finds the gradient of a segment, whose columns are [.., embed_w, embedx...].
struct GradientView {
  const float* grad = nullptr;  // (segments, stride), and `extra` floats after each instance
  size_t stride = 0;
  size_t extra = 0;
  size_t weights_at = 0;              // column of embed_w
  const float* show_click = nullptr;  // (segments / per_instance, show_click_stride): columns 0, 1
  size_t show_click_stride = 0;
  size_t late_at = 0;  // column of show_click with the weights of late lines; 0: there is none
  // (unique rows of the plan) the sums of that column, which the divisor of show_scale has besides
  // the shows; null: nothing.
  const float* late = nullptr;
  size_t segments_per_instance = 1;
  float scale = 1.0f;  // batch size: turns the gradient of a mean into that of a sum
  BadGrad on_bad = BadGrad::kSkip;
  float bound = 10.0f;  // of kClip
  // (occurrences of the plan) factors of gradients; null: each is 1. Shows and clicks have none.
  const float* factors = nullptr;
  // (rows of the block, P). If it is not null, push does not apply the merged [show, click,
  // embed_w, embedx...] of a row but adds them here, because another rank owns the rows.
  float* merged = nullptr;
  // Called for each bad row, from any thread. May be null.
  void (*report)(void* context, size_t row) = nullptr;
  void* context = nullptr;
};

// Where pull_pooled writes: B * S segments of `width` floats. After the S segments of an instance
// there are `extra` floats, which pull_pooled does not write.
struct PooledOutput {
  float* out = nullptr;
  size_t slots = 1;  // S
  size_t extra = 0;
  // CellChains (row/lists.h) if segments share lists: pull_pooled then goes through the lists and
  // writes each to all its segments. Null: each segment has its own list.
  const int32_t* first = nullptr;
  const int32_t* next = nullptr;
  // (ids) factors of embed_w and embedx in the sums; null: each is 1. Then `first` is null.
  const float* factors = nullptr;
};

struct Kernels {
  const char* name;

  // Whether every id is in [-1, rows).
  bool (*check_ids)(const int32_t* ids, size_t n, size_t rows);

  // Whether offsets[0 .. n] ascend.
  bool (*check_offsets)(const int32_t* offsets, size_t n);

  // out: (n, P). ids: (n), -1: zeros.
  void (*pull)(const RowBlock& block, const int32_t* ids, size_t n, float* out);

  // Sum-pools segments (or lists) [begin, end) and applies CVM. With use_cvm, width = P and columns
  // 0, 1 become log(show + 1) and log(click + 1) - log(show + 1). Without it, width = P - 2 and
  // these columns are left out.
  void (*pull_pooled)(const RowBlock& block, const int32_t* ids, const int32_t* offsets,
                      size_t begin, size_t end, bool use_cvm, const PooledOutput& output);

  // For each unique row [begin, end) of the plan: adds up the gradients of its segments (see
  // row/sum_order.h), applies the accessor's push and sets kTouched (but see GradientView::merged).
  // rows, starts, segments: as in row/plan.h.
  void (*push)(const RowBlock& block, const int32_t* rows, const int32_t* starts,
               const int32_t* segments, size_t begin, size_t end, const GradientView& gradient,
               uint32_t day);
};

// The kernels in use: the widest path that the processor supports, unless SelectKernels chose
// another.
const Kernels& ActiveKernels();

// "avx512", "avx2", "plain" or "auto". InvalidArgument for other names, and if this processor does
// not support the path.
Status SelectKernels(const char* name);

}  // namespace pbx
