// The loops of training: pull and push over the rows of a pass table. Each is compiled three times
// (plain, AVX2, AVX-512: kernels_<path>.cc over kernels.inl) and chosen at run time; all give the
// same bits, because they use IEEE-exact operations only, elementwise, without contraction.
//
// Letters: D = embedx_dim, P = 3 + D pull columns [show, click, embed_w, embedx...], S = sparse
// slots, B = instances, segment = instance * S + slot.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "rule/accessor.h"

namespace pbx {

// What becomes of a row whose merged gradient, show or click is not finite.
enum class BadGrad {
  kSkip,  // the row stays as it is
  kClip,  // NaN counts as 0, an infinity as the nearest finite bound; show and click as 0
};

// Rows of an open pass table.
struct RowBlock {
  char* rows = nullptr;            // (n, row_bytes)
  const uint64_t* keys = nullptr;  // (n)
  uint32_t row_bytes = 0;
  const AccessorConfig* config = nullptr;
};

// Where push finds the gradient of a segment. The gradient's columns are [.., embed_w, embedx...].
struct GradientView {
  const float* grad = nullptr;  // (segments, stride), and `extra` floats behind each instance's
  size_t stride = 0;
  size_t extra = 0;
  size_t weights_at = 0;              // column of embed_w
  const float* show_click = nullptr;  // (segments / per_instance, show_click_stride): columns 0, 1
  size_t show_click_stride = 0;
  size_t segments_per_instance = 1;
  float scale = 1.0f;  // batch size: turns the gradient of a mean into that of a sum
  BadGrad on_bad = BadGrad::kSkip;
  float bound = 10.0f;  // kClip: what an infinity becomes
  // (rows of the block, P): where the merged [show, click, embed_w, embedx...] of each row is added
  // instead of being applied, for whoever owns the row to apply. Null: applied.
  float* merged = nullptr;
  // Called with each bad row, from any thread; may be null.
  void (*report)(void* context, size_t row) = nullptr;
  void* context = nullptr;
};

// Where pull_pooled writes: B * S segments of `width` floats, and behind the S of an instance
// `extra` floats that are left alone.
struct PooledOutput {
  float* out = nullptr;
  size_t slots = 1;  // S
  size_t extra = 0;
  // Where segments share lists (CellChains of row/lists.h): pull_pooled goes through lists then,
  // and writes each to all its segments. Null: list and segment are one.
  const int32_t* first = nullptr;
  const int32_t* next = nullptr;
};

struct Kernels {
  const char* name;

  // True when every id is in [-1, rows).
  bool (*check_ids)(const int32_t* ids, size_t n, size_t rows);

  // True when offsets[0 .. n] ascend.
  bool (*check_offsets)(const int32_t* offsets, size_t n);

  // out: (n, P). ids: (n), -1 gives zeros.
  void (*pull)(const RowBlock& block, const int32_t* ids, size_t n, float* out);

  // Sum-pools segments (or lists) [begin, end) and applies CVM. With use_cvm width = P and columns
  // 0, 1 become log(show + 1) and log(click + 1) - log(show + 1); without, width = P - 2 and they
  // are left out.
  void (*pull_pooled)(const RowBlock& block, const int32_t* ids, const int32_t* offsets,
                      size_t begin, size_t end, bool use_cvm, const PooledOutput& output);

  // Merges the gradient of each unique row [begin, end) of the plan over its segments, in order,
  // applies the accessor's push, and sets kTouched (or see GradientView::merged). rows, starts,
  // segments: as in row/plan.h.
  void (*push)(const RowBlock& block, const int32_t* rows, const int32_t* starts,
               const int32_t* segments, size_t begin, size_t end, const GradientView& gradient,
               uint32_t day);
};

// The kernels in use: the widest path the processor has, unless SelectKernels chose another.
const Kernels& ActiveKernels();

// "avx512", "avx2", "plain" or "auto". InvalidArgument for another name or a path that this
// processor lacks.
Status SelectKernels(const char* name);

}  // namespace pbx
