// seqpool_cvm: sums the rows of each slot of each instance and makes features of their counts.
// PaddleBox's fused_seqpool_cvm and its relatives are one kernel here: they differ in the counts at
// the front of a row and in the features made of them, which is a table (SeqpoolPlan::head).
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

// What the counts are. l(x) = log(x + 1) of a sum; counts past those named are copied.
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
  bool slot_major = false;  // the rows of slot s, instance b are segment s * B + b, not b * S + s
  bool use_cvm = true;      // without it the counts make no features
  int cvm_offset = 2;       // columns of the CVM input; C but for kPcoc
  int max_cvm_offset = 7;   // kPcoc: C
  // Leaves out one feature: the click's (kShowClick), the show's (kConv, kCredit). Not for kPcoc.
  bool drop_count = false;
  bool click_not_ctr = false;  // kShowClick: the second feature is l(click)
  float pad_value = 0.0f;      // what every sum starts from
  // A row is left out when (show - click) * show_coeff + click * click_coeff is below its slot's
  // threshold. None: no row is left out; one: for all slots; else S.
  std::vector<float> thresholds;
  float show_coeff = 0.2f;
  float click_coeff = 1.0f;
  // With thresholds: also left out when |e0| + sqrt(e1^2 + ...) over the first embed_columns
  // weights (0: all) is below it.
  float embed_threshold = 0.0f;
  int embed_columns = 0;  // without use_cvm also left out of the features
  int quant_ratio = 0;    // rounds weights to multiples of 1 / quant_ratio; 0: not
  // Above 1: the first K rows side by side instead of a sum. Fewer leave pad_value.
  int concat = 1;
  bool concat_filter = false;  // with concat: whether a row may be left out (its place stays)
};

// A feature made of counts: l(sum[column]) - l(sum[minus]), or sum[column] as it is.
struct HeadFeature {
  int column;
  int minus = -1;  // none
  bool logged = true;
};

struct SeqpoolPlan {
  size_t columns = 0;  // D
  size_t counts = 0;   // C
  size_t skipped = 0;  // weights left out of the features
  std::vector<HeadFeature> head;
  size_t block = 0;  // features of one sum: head, then D - C - skipped weights
  size_t width = 0;  // W = K * block
};

Result<SeqpoolPlan> PlanSeqpool(const SeqpoolCvm& config, int64_t columns);

// offsets (B * S + 1) ascend from 0 to nnz.
Status CheckSegments(const int32_t* offsets, size_t segments, size_t nnz);

// Makes one (S * B + 1) of the offsets (S, B + 1) of slots that lie one after another, each from 0.
Status JoinSlots(const int32_t* offsets, size_t slots, size_t instances,
                 std::vector<int32_t>* joined);

// values (nnz, D) -> out (B, S, W). REQUIRES: plan of config, CheckSegments.
void SeqpoolCvmForward(const SeqpoolCvm& config, const SeqpoolPlan& plan, const float* values,
                       const int32_t* offsets, size_t instances, float* out);

// dvalues (nnz, D), what the push of the rows wants: in the count columns not a derivative but the
// instance's cvm (B, cvm_offset), zeros past it; in the others the gradient of the slot's sum,
// whether or not the row was left out of it, and with concat the last place's for all rows from
// there on. mask (B): zeros for an instance that has 0; null: for none.
void SeqpoolCvmBackward(const SeqpoolCvm& config, const SeqpoolPlan& plan, const int32_t* offsets,
                        size_t instances, const float* cvm, const int64_t* mask, const float* dout,
                        float* dvalues);

}  // namespace pbx
