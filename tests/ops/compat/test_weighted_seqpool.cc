#include "compat/weighted_seqpool.h"

#include "base/log.h"
#include "check.h"

using namespace pbx;

namespace {

using Floats = std::vector<float>;
using Offsets = std::vector<int32_t>;

WeightedSeqpool Config(int64_t columns, int64_t trade_num = 0, int64_t trade_id = -1) {
  WeightedSeqpool config;
  config.columns = columns;
  config.slots = 1;
  config.trade_num = trade_num;
  config.trade_id = trade_id;
  return config;
}

Floats Forward(const WeightedSeqpool& config, const Floats& values, const Offsets& offsets) {
  CHECK_OK(CheckWeightedSeqpool(config));
  const size_t segments = offsets.size() - 1;
  Floats out(segments * static_cast<size_t>(config.Width()), -1);
  WeightedSeqpoolForward(config, values.data(), offsets.data(),
                         segments / static_cast<size_t>(config.slots), out.data());
  return out;
}

Floats Backward(const WeightedSeqpool& config, const Floats& values, const Offsets& offsets,
                const Floats& cvm, const Floats& dout) {
  Floats dvalues(values.size(), -1);
  WeightedSeqpoolBackward(config, values.data(), offsets.data(),
                          (offsets.size() - 1) / static_cast<size_t>(config.slots), cvm.data(),
                          dout.data(), dvalues.data());
  return dvalues;
}

// l(0) = 0, l(1) = ln 2, l(3) = ln 4, l(7) = ln 8, so every feature is a multiple of ln 2.
float Ln2(int times) { return Log(static_cast<float>(1 << times)); }

}  // namespace

TEST(a_weight_of_the_row_multiplies_its_floats_and_not_its_counts) {
  // show, click, two weights, one float
  const Floats rows = {1, 1, 2, 10, 5, 2, 0, 3, 100, 6};
  WeightedSeqpool config = Config(5, 2, 0);
  CHECK(Forward(config, rows, {0, 2, 2}) == Floats({Ln2(2), Ln2(1) - Ln2(2), 28, 0, 0, 0}));
  config.trade_id = 1;
  CHECK(Forward(config, rows, {0, 2}) == Floats({Ln2(2), Ln2(1) - Ln2(2), 650}));
  config.trade_id = -1;
  CHECK(Forward(config, rows, {0, 2}) == Floats({Ln2(2), Ln2(1) - Ln2(2), 11}));
  config.use_cvm = false;
  CHECK(Forward(config, rows, {0, 2}) == Floats({11}));
}

TEST(rows_are_averaged_or_divided_by_the_root_of_their_number) {
  const Floats rows = {4, 1, 8, 4, 1, 0, 2, 1, 0, 2, 1, 8};
  WeightedSeqpool config = Config(3);
  config.pooling = Pooling::kAverage;
  CHECK(Forward(config, rows, {0, 4, 4}) == Floats({Ln2(2), Ln2(1) - Ln2(2), 4, 0, 0, 0}));
  config.pooling = Pooling::kSqrt;
  CHECK(Forward(config, {3, 0, 1, 1, 1, 2, 1, 1, 3, 1, 0, 4}, {0, 4}) ==
        Floats({Ln2(2), Ln2(1) - Ln2(2), 5}));
}

TEST(further_counts_are_passed_on_and_sums_start_from_pad_value) {
  WeightedSeqpool config = Config(4);
  config.cvm_offset = 3;
  config.pad_value = 1;
  CHECK(Forward(config, {2, 0, 5, 7}, {0, 1, 1}) ==
        Floats({Ln2(2), Ln2(1) - Ln2(2), 6, 8, Ln2(1), 0, 1, 1}));
}

TEST(counts_of_a_gradient_are_the_cvm_input_or_zeros_with_a_weight) {
  const Floats rows = {1, 1, 2, 10, 5, 6, 2, 0, 3, 100, 6, 7};  // two weights, two floats
  const Floats cvm = {1, 0};
  WeightedSeqpool config = Config(6, 2);
  CHECK(Backward(config, rows, {0, 2}, cvm, {9, 9, 2, 3}) ==
        Floats({1, 0, 0, 0, 2, 3, 1, 0, 0, 0, 2, 3}));
  config.trade_id = 0;
  CHECK(Backward(config, rows, {0, 2}, cvm, {9, 9, 2, 3}) ==
        Floats({0, 0, 28, 0, 4, 6, 0, 0, 33, 0, 6, 9}));
  config.use_cvm = false;
  config.trade_id = 1;
  CHECK(Backward(config, rows, {0, 2}, cvm, {2, 3}) ==
        Floats({0, 0, 0, 28, 20, 30, 0, 0, 0, 33, 200, 300}));
}

TEST(a_gradient_is_divided_as_the_rows_are_and_its_counts_are_not) {
  const Floats rows(12, 1.0f);
  WeightedSeqpool config = Config(3);
  config.pooling = Pooling::kAverage;
  CHECK(Backward(config, rows, {0, 4}, {1, 0}, {9, 9, 8}) ==
        Floats({1, 0, 2, 1, 0, 2, 1, 0, 2, 1, 0, 2}));
  config.pooling = Pooling::kSqrt;
  CHECK(Backward(config, rows, {0, 4}, {1, 0}, {9, 9, 8}) ==
        Floats({1, 0, 4, 1, 0, 4, 1, 0, 4, 1, 0, 4}));
}

TEST(slots_may_lie_one_after_another) {
  WeightedSeqpool config = Config(3);
  config.slots = 2;
  config.use_cvm = false;
  const Floats rows = {0, 0, 1, 0, 0, 2, 0, 0, 3, 0, 0, 4};
  CHECK(Forward(config, rows, {0, 1, 2, 3, 4}) == Floats({1, 2, 3, 4}));
  config.slot_major = true;
  CHECK(Forward(config, rows, {0, 1, 2, 3, 4}) == Floats({1, 3, 2, 4}));
  CHECK(Backward(config, rows, {0, 1, 2, 3, 4}, {5, 6, 7, 8}, {10, 30, 20, 40}) ==
        Floats({5, 6, 10, 7, 8, 20, 5, 6, 30, 7, 8, 40}));
}

TEST(configurations_that_make_no_sense_are_refused) {
  CHECK_OK(CheckWeightedSeqpool(Config(5, 2, 1)));
  CHECK_CODE(CheckWeightedSeqpool(Config(4, 2, 1)), Code::kInvalidArgument);
  CHECK_CODE(CheckWeightedSeqpool(Config(5, 2, 2)), Code::kInvalidArgument);
  CHECK_CODE(CheckWeightedSeqpool(Config(5, -1, -2)), Code::kInvalidArgument);
  WeightedSeqpool bad = Config(5);
  bad.slots = 0;
  CHECK_CODE(CheckWeightedSeqpool(bad), Code::kInvalidArgument);
  bad = Config(5);
  bad.cvm_offset = 1;
  CHECK_CODE(CheckWeightedSeqpool(bad), Code::kInvalidArgument);
  CHECK_CODE(PoolingOf("sum").status(), Code::kInvalidArgument);
  CHECK(PoolingOf("SQRT").value() == Pooling::kSqrt);
}
