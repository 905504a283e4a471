// seqpool_cvm: sums the rows of each slot of each instance and makes features of their counts.
// PaddleBox's fused_seqpool_cvm and its variants are one kernel here. They differ in the counts at
// the front of a row and in the features made of them, which a table describes (SeqpoolPlan::head).
//
// Letters: B = instances, S = slots, D = columns of a row, C = counts at its front, K = concat,
// W = features of a slot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace pbx {

// The counts of a row and their features. l(x) = log(x + 1) of a sum; further counts are copied.
enum class CvmForm {
  kShowClick,  // show, click: l(show), l(click) - l(show)
  kConv,       // show, click, conv: l(show), l(click), l(conv) - l(click)
  kCredit,     // show, click, conv, credit...: l of each
  // show, click, show2, click2, P predicted clicks, P = cvm_offset - 4; C = max_cvm_offset:
  // l(show), l(click) - l(show), then P times l(p) - l(show2), then P times l(p) - l(click2)
  kPcoc,
};

// "show_click", "conv", "credit" or "pcoc".
Result<CvmForm> CvmFormOf(const std::string& name);

struct SeqpoolCvm {
  CvmForm form = CvmForm::kShowClick;
  int slots = 0;            // S
  bool slot_major = false;  // slot s of instance b is segment s * B + b, not b * S + s
  bool use_cvm = true;      // false: no features of counts
  int cvm_offset = 2;       // columns of the CVM input; C except for kPcoc
  int max_cvm_offset = 7;   // kPcoc: C
  // Leaves out one feature: the click's (kShowClick), the show's (kConv, kCredit). Not for kPcoc.
  bool drop_count = false;
  bool click_not_ctr = false;  // kShowClick: the second feature is l(click)
  float pad_value = 0.0f;      // the start value of every sum
  // A row is left out if (show - click) * show_coeff + click * click_coeff is below the threshold
  // of its slot. Empty: no row is left out; one: for all slots; otherwise S thresholds.
  std::vector<float> thresholds;
  float show_coeff = 0.2f;
  float click_coeff = 1.0f;
  // With thresholds: a row is also left out if |e0| + sqrt(e1^2 + ...) over the first embed_columns
  // weights (0: all) is below embed_threshold.
  float embed_threshold = 0.0f;
  int embed_columns = 0;  // without use_cvm, the features leave these weights out
  int quant_ratio = 0;    // weights are rounded to multiples of 1 / quant_ratio; 0: not rounded
  // Above 1: the first K rows are concatenated, not summed. Missing rows are pad_value.
  int concat = 1;
  bool concat_filter = false;  // with concat: rows may be left out (their places stay)
};

// A feature of counts: l(sum[column]) - l(sum[minus]), or sum[column] itself.
struct HeadFeature {
  int column;
  int minus = -1;  // none
  bool logged = true;
};

struct SeqpoolPlan {
  size_t columns = 0;  // D
  size_t counts = 0;   // C
  size_t skipped = 0;  // weights that are left out of the features
  std::vector<HeadFeature> head;
  size_t block = 0;  // features of one sum: head, then D - C - skipped weights
  size_t width = 0;  // W = K * block
};

Result<SeqpoolPlan> PlanSeqpool(const SeqpoolCvm& config, int64_t columns);

// offsets (B * S + 1) ascend from 0 to nnz.
Status CheckSegments(const int32_t* offsets, size_t segments, size_t nnz);

// Joins the offsets (S, B + 1) of slots, which each start at 0, into one (S * B + 1).
Status JoinSlots(const int32_t* offsets, size_t slots, size_t instances,
                 std::vector<int32_t>* joined);

// values (nnz, D) -> out (B, S, W). REQUIRES: plan of config, CheckSegments.
void SeqpoolCvmForward(const SeqpoolCvm& config, const SeqpoolPlan& plan, const float* values,
                       const int32_t* offsets, size_t instances, float* out);

// dvalues (nnz, D), in the form that the push of the rows needs. The count columns hold no
// derivative: they hold the cvm of the instance (B, cvm_offset), then zeros. The other columns hold
// the gradient of the slot's sum, also for a row that was left out. With concat, rows from the K-th
// on hold the gradient of the last place. mask (B): 0 makes dvalues of the instance zeros; null:
// all 1.
void SeqpoolCvmBackward(const SeqpoolCvm& config, const SeqpoolPlan& plan, const int32_t* offsets,
                        size_t instances, const float* cvm, const int64_t* mask, const float* dout,
                        float* dvalues);

}  // namespace pbx
