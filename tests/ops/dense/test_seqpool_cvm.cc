#include "dense/seqpool_cvm.h"

#include "base/log.h"
#include "check.h"

using namespace pbx;

namespace {

using Floats = std::vector<float>;
using Offsets = std::vector<int32_t>;

Floats Forward(const SeqpoolCvm& config, const Floats& values, size_t columns,
               const Offsets& offsets) {
  const Result<SeqpoolPlan> made = PlanSeqpool(config, static_cast<int64_t>(columns));
  CHECK_OK(made.status());
  Result<SeqpoolPlan> plan = made;
  const size_t segments = offsets.size() - 1, slots = static_cast<size_t>(config.slots);
  CHECK_OK(CheckSegments(offsets.data(), segments, values.size() / columns));
  Floats out(segments * plan.value().width);
  SeqpoolCvmForward(config, plan.value(), values.data(), offsets.data(), segments / slots,
                    out.data());
  return out;
}

Floats Backward(const SeqpoolCvm& config, size_t columns, const Offsets& offsets, const Floats& cvm,
                const std::vector<int64_t>& mask, const Floats& dout) {
  Result<SeqpoolPlan> plan = PlanSeqpool(config, static_cast<int64_t>(columns));
  CHECK_OK(plan.status());
  Floats dvalues(static_cast<size_t>(offsets.back()) * columns, -1.0f);
  SeqpoolCvmBackward(config, plan.value(), offsets.data(),
                     (offsets.size() - 1) / static_cast<size_t>(config.slots), cvm.data(),
                     mask.empty() ? nullptr : mask.data(), dout.data(), dvalues.data());
  return dvalues;
}

SeqpoolCvm Config(CvmForm form, int cvm_offset) {
  SeqpoolCvm config;
  config.form = form;
  config.slots = 1;
  config.cvm_offset = cvm_offset;
  return config;
}

// l(0) = 0, l(1) = ln 2, l(3) = ln 4, l(7) = ln 8, so every feature is a multiple of ln 2.
float Ln2(int times) { return Log(static_cast<float>(1 << times)); }

}  // namespace

TEST(rows_of_a_slot_are_summed_and_counts_become_logs) {
  const SeqpoolCvm config = Config(CvmForm::kShowClick, 2);
  const Floats out = Forward(config, {1, 1, 5, 2, 0, 6}, 3, {0, 2, 2});
  CHECK(out == Floats({Ln2(2), Ln2(1) - Ln2(2), 11, 0, 0, 0}));
}

TEST(the_click_may_be_left_out_or_stand_by_itself) {
  SeqpoolCvm config = Config(CvmForm::kShowClick, 2);
  config.drop_count = true;
  CHECK(Forward(config, {3, 1, 5}, 3, {0, 1}) == Floats({Ln2(2), 5}));
  config.drop_count = false;
  config.click_not_ctr = true;
  CHECK(Forward(config, {3, 1, 5}, 3, {0, 1}) == Floats({Ln2(2), Ln2(1), 5}));
  config.use_cvm = false;
  CHECK(Forward(config, {3, 1, 5}, 3, {0, 1}) == Floats({5}));
}

TEST(forms_of_conv_credit_and_pcoc) {
  SeqpoolCvm conv = Config(CvmForm::kConv, 3);
  CHECK(Forward(conv, {7, 3, 1, 5}, 4, {0, 1}) == Floats({Ln2(3), Ln2(2), Ln2(1) - Ln2(2), 5}));
  conv.drop_count = true;
  CHECK(Forward(conv, {7, 3, 1, 5}, 4, {0, 1}) == Floats({Ln2(2), Ln2(1) - Ln2(2), 5}));
  SeqpoolCvm credit = Config(CvmForm::kCredit, 4);
  CHECK(Forward(credit, {7, 3, 1, 0, 5}, 5, {0, 1}) == Floats({Ln2(3), Ln2(2), Ln2(1), 0, 5}));
  SeqpoolCvm pcoc = Config(CvmForm::kPcoc, 6);  // two predictions of the three there is room for
  CHECK(Forward(pcoc, {7, 3, 1, 0, 3, 7, 99, 5}, 8, {0, 1}) ==
        Floats({Ln2(3), Ln2(2) - Ln2(3), Ln2(2) - Ln2(1), Ln2(3) - Ln2(1), Ln2(2), Ln2(3), 5}));
}

TEST(slots_may_lie_one_after_another) {
  SeqpoolCvm config = Config(CvmForm::kShowClick, 2);
  config.slots = 2;
  config.use_cvm = false;
  const Floats values = {0, 0, 1, 0, 0, 2, 0, 0, 3, 0, 0, 4};
  const Offsets offsets = {0, 1, 2, 3, 4};
  CHECK(Forward(config, values, 3, offsets) == Floats({1, 2, 3, 4}));
  config.slot_major = true;
  CHECK(Forward(config, values, 3, offsets) == Floats({1, 3, 2, 4}));
  const Floats d = Backward(config, 3, offsets, {0, 0, 0, 0}, {}, {10, 30, 20, 40});
  CHECK_EQ(d[2], 10.0f);
  CHECK_EQ(d[5], 20.0f);
}

TEST(rows_below_the_threshold_of_their_slot_are_left_out) {
  SeqpoolCvm config = Config(CvmForm::kShowClick, 2);
  config.slots = 2;
  config.use_cvm = false;
  config.show_coeff = 0.5f;
  config.thresholds = {1.0f};
  // scores 0.5 * (show - click) + click: 0.5, 1, 1.5 in both slots
  const Floats values = {1, 0, 1, 2, 0, 2, 2, 1, 4, 1, 0, 1, 2, 0, 2, 2, 1, 4};
  CHECK(Forward(config, values, 3, {0, 3, 6}) == Floats({6, 6}));
  config.thresholds = {0.0f, 1.5f};
  CHECK(Forward(config, values, 3, {0, 3, 6}) == Floats({7, 4}));
}

TEST(rows_with_small_weights_are_left_out) {
  SeqpoolCvm config = Config(CvmForm::kShowClick, 2);
  config.use_cvm = false;
  config.thresholds = {0.0f};
  config.embed_threshold = 6.0f;
  // |-1| + sqrt(9 + 16) = 6 stays, |0.5| + 5 goes
  const Floats values = {1, 0, -1, 3, 4, 1, 0, 0.5f, 3, 4};
  CHECK(Forward(config, values, 5, {0, 2}) == Floats({-1, 3, 4}));
  config.embed_columns = 2;  // |-1| + |3| < 6
  CHECK(Forward(config, values, 5, {0, 2}) == Floats({0}));
}

TEST(weights_are_rounded_and_counts_are_not) {
  SeqpoolCvm config = Config(CvmForm::kShowClick, 2);
  config.drop_count = true;
  config.quant_ratio = 4;
  // 0.3 * 4 + 0.5 = 1.7 -> 1; -0.3 * 4 + 0.5 = -0.7 -> 0; past 2^24 steps as they are
  const Floats out = Forward(config, {3, 0.4f, 0.3f, -0.3f, 1e9f}, 5, {0, 1});
  CHECK(out == Floats({Ln2(2), 0.25f, 0, 1e9f}));
}

TEST(the_first_rows_stand_side_by_side) {
  SeqpoolCvm config = Config(CvmForm::kShowClick, 2);
  config.use_cvm = false;
  config.concat = 2;
  config.pad_value = 9;
  const Floats values = {1, 0, 5, 1, 0, 6, 1, 0, 7, 0, 0, 8};
  CHECK(Forward(config, values, 3, {0, 3, 4}) == Floats({14, 15, 17, 9}));
  config.thresholds = {0.1f};  // only with concat_filter
  CHECK(Forward(config, values, 3, {0, 3, 4}) == Floats({14, 15, 17, 9}));
  config.concat_filter = true;
  CHECK(Forward(config, values, 3, {0, 3, 4}) == Floats({14, 15, 9, 9}));
  // The last place's gradient goes to every row from there on.
  const Floats d = Backward(config, 3, {0, 3, 4}, {1, 0, 1, 1}, {}, {10, 20, 30, 40});
  CHECK(d == Floats({1, 0, 10, 1, 0, 20, 1, 0, 20, 1, 1, 30}));
}

TEST(counts_of_a_gradient_are_the_cvm_input) {
  SeqpoolCvm config = Config(CvmForm::kShowClick, 2);
  const Offsets offsets = {0, 2, 3};
  const Floats cvm = {1, 1, 1, 0}, dout = {7, 7, 0.5f, 7, 7, 0.25f};
  CHECK(Backward(config, 3, offsets, cvm, {}, dout) ==
        Floats({1, 1, 0.5f, 1, 1, 0.5f, 1, 0, 0.25f}));
  CHECK(Backward(config, 3, offsets, cvm, {0, 1}, dout) == Floats({0, 0, 0, 0, 0, 0, 1, 0, 0.25f}));
  SeqpoolCvm pcoc = Config(CvmForm::kPcoc, 5);
  pcoc.use_cvm = false;
  CHECK(Backward(pcoc, 8, {0, 1}, {1, 2, 3, 4, 5}, {}, {6}) == Floats({1, 2, 3, 4, 5, 0, 0, 6}));
}

TEST(skipped_weights_have_no_gradient_and_no_counts) {
  SeqpoolCvm config = Config(CvmForm::kShowClick, 2);
  config.use_cvm = false;
  config.embed_columns = 1;
  CHECK(Backward(config, 4, {0, 1}, {1, 1}, {}, {5}) == Floats({0, 0, 0, 5}));
}

TEST(configurations_that_make_no_sense_are_refused) {
  const auto code = [](const SeqpoolCvm& config, int64_t columns) {
    return PlanSeqpool(config, columns).status();
  };
  const SeqpoolCvm good = Config(CvmForm::kShowClick, 2);
  CHECK_OK(code(good, 3));
  CHECK_CODE(code(good, 2), Code::kInvalidArgument);
  CHECK_CODE(code(Config(CvmForm::kShowClick, 1), 3), Code::kInvalidArgument);
  CHECK_CODE(code(Config(CvmForm::kConv, 2), 9), Code::kInvalidArgument);
  CHECK_CODE(code(Config(CvmForm::kPcoc, 8), 9), Code::kInvalidArgument);
  SeqpoolCvm bad = good;
  bad.slots = 0;
  CHECK_CODE(code(bad, 3), Code::kInvalidArgument);
  bad = good;
  bad.concat = 0;
  CHECK_CODE(code(bad, 3), Code::kInvalidArgument);
  bad = good;
  bad.embed_columns = 2;
  CHECK_CODE(code(bad, 3), Code::kInvalidArgument);
  bad = good;
  bad.thresholds = {1, 2};
  CHECK_CODE(code(bad, 3), Code::kInvalidArgument);
  CHECK_CODE(CvmFormOf("cvm").status(), Code::kInvalidArgument);
}

TEST(offsets_that_do_not_ascend_to_the_rows_are_refused) {
  const Offsets good = {0, 2, 3}, down = {0, 3, 2}, late = {1, 2, 3};
  CHECK_OK(CheckSegments(good.data(), 2, 3));
  CHECK_CODE(CheckSegments(good.data(), 2, 4), Code::kInvalidArgument);
  CHECK_CODE(CheckSegments(down.data(), 2, 2), Code::kInvalidArgument);
  CHECK_CODE(CheckSegments(late.data(), 2, 3), Code::kInvalidArgument);
}

TEST(offsets_of_slots_are_joined_and_those_not_from_0_refused) {
  const Offsets good = {0, 2, 3, 0, 0, 4}, late = {0, 2, 3, 1, 1, 4};
  const Offsets huge = {0, 0, INT32_MAX, 0, 0, 1};
  Offsets joined;
  CHECK_OK(JoinSlots(good.data(), 2, 2, &joined));
  CHECK(joined == Offsets({0, 2, 3, 3, 7}));
  CHECK_CODE(JoinSlots(late.data(), 2, 2, &joined), Code::kInvalidArgument);
  CHECK_CODE(JoinSlots(huge.data(), 2, 2, &joined), Code::kInvalidArgument);
}
