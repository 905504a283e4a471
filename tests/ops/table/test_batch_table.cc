// A batch on another rank than its rows: pooled and merged there, applied by the owner.
#include "table/batch_table.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "../row/literal_sum.h"
#include "check.h"
#include "every_path.h"
#include "pass_model.h"
#include "row/compact.h"
#include "row/plan.h"
#include "table/table.h"

namespace pbx {
namespace {

using test::Floats;
using test::Ints;
using test::Keys;

constexpr size_t kColumns = 3 + 5;

BatchTableConfig SmallBatch(int threads = 1) {
  BatchTableConfig config;
  config.embedx_dim = 5;
  config.threads = threads;
  return config;
}

// Zeros for the embedx of rows that have none.
void LeaveOut(const std::vector<uint8_t>& have, Floats* values) {
  for (size_t i = 0; i < have.size(); ++i) {
    if (have[i] != 0) continue;
    const auto row = values->begin() + static_cast<std::ptrdiff_t>(i * kColumns);
    std::fill(row + 3, row + static_cast<std::ptrdiff_t>(kColumns), 0.0f);
  }
}

// One step as ranks make it, with one rank: rows to the batch, what it merged back to the owner.
// bare: without the embedx, and its gradients, of rows that have none.
Floats StepThrough(BatchTable* batch_table, Table* owner, const test::Pass& pass,
                   const test::Batch& batch, int32_t stamp, bool bare) {
  Ints ids = test::Translated(owner, batch.feasigns), plan, rows;
  const size_t segments = batch.instances * batch.slots;
  BuildPlan(ids.data(), batch.offsets.data(), segments, stamp, &plan);
  CHECK_OK(CompactBatch(ids.data(), ids.size(), plan.data(), plan.size(), pass.keys.size(), &rows));
  Keys keys;
  for (const int32_t row : rows) keys.push_back(pass.keys[static_cast<size_t>(row)]);
  Floats values(rows.size() * kColumns);
  CHECK_OK(owner->Pull(rows.data(), rows.size(), values.data()));
  std::vector<uint8_t> have(rows.size(), 1);
  if (bare) CHECK_OK(owner->HaveEmbedx(rows.data(), rows.size(), have.data()));
  LeaveOut(have, &values);
  CHECK_OK(batch_table->Prepare(stamp, keys.data(), keys.size(), false));
  CHECK_OK(batch_table->Fill(0, nullptr, rows.size(), values.data()));
  CHECK_OK(batch_table->Open());
  Floats pooled(segments * (batch.use_cvm ? kColumns : kColumns - 2));
  CHECK_OK(batch_table->PullPooled(ids.data(), ids.size(), batch.offsets.data(), batch.instances,
                                   batch.slots, batch.use_cvm, pooled.data()));
  CHECK_OK(batch_table->PushPooled(ids.data(), ids.size(), batch.offsets.data(), batch.instances,
                                   batch.slots, batch.use_cvm, batch.show_click.data(), plan.data(),
                                   plan.size(), batch.grad.data()));
  Ints offsets(rows.size() + 1), owners_plan;
  for (size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<int32_t>(i);
  BuildPlan(rows.data(), offsets.data(), rows.size(), stamp, &owners_plan);
  Floats merged(batch_table->merged(), batch_table->merged() + rows.size() * kColumns);
  LeaveOut(have, &merged);
  CHECK_OK(
      owner->PushPlanned(owners_plan.data(), owners_plan.size(), rows.size(), merged.data(), 1.0f));
  return pooled;
}

TEST(one_rank_through_a_batch_table_ends_with_the_bits_of_a_table_alone) {
  const test::Pass pass = test::MakePass(3, 5000, 3000, 5);
  for (const Kernels* path : test::Paths()) {
    CHECK_OK(SelectKernels(path->name));
    for (const bool bare : {false, true}) {
      const int threads = bare ? 1 : 4;
      const auto alone = test::OpenTable(test::SmallConfig());
      const auto owner = test::OpenTable(test::SmallConfig());
      const int32_t stamp = test::StageTrain(alone.get(), pass).stamp;
      CHECK_EQ(test::StageTrain(owner.get(), pass).stamp, stamp);
      CHECK_OK(alone->Begin(stamp));
      CHECK_OK(owner->Begin(stamp));
      BatchTable batch_table(SmallBatch(threads));
      for (const test::Batch& batch : pass.batches) {
        const Ints ids = test::Translated(alone.get(), batch.feasigns);
        Floats pooled(batch.instances * batch.slots * (batch.use_cvm ? kColumns : kColumns - 2));
        CHECK_OK(alone->PullPooled(ids.data(), ids.size(), batch.offsets.data(), batch.instances,
                                   batch.slots, batch.use_cvm, pooled.data()));
        CHECK_OK(alone->PushPooled(ids.data(), ids.size(), batch.offsets.data(), batch.instances,
                                   batch.slots, batch.use_cvm, batch.show_click.data(), nullptr, 0,
                                   batch.grad.data()));
        CHECK(StepThrough(&batch_table, owner.get(), pass, batch, stamp, bare) == pooled);
      }
      for (Table* table : {alone.get(), owner.get()}) {
        CHECK_OK(table->End(1));
        CHECK_OK(table->WriteFrozen().status());
        CHECK_OK(table->Publish({}));
      }
      CHECK_EQ(owner->Digest().value(), alone->Digest().value());
    }
  }
  CHECK_OK(SelectKernels("auto"));
}

TEST(rows_with_an_expand_part_end_with_the_bits_of_a_table_alone) {
  TableConfig config = test::SmallConfig();
  config.accessor.layout.expand_dim = 3;
  config.accessor.expand.kind = RuleKind::kAdam;
  config.accessor.expand.initial_range = 0.1f;
  constexpr size_t kWide = kColumns + 3;
  const test::Pass pass = test::MakePass(5, 3000, 1000, 5);
  const auto alone = test::OpenTable(config), owner = test::OpenTable(config);
  const int32_t stamp = test::StageTrain(alone.get(), pass).stamp;
  CHECK_EQ(test::StageTrain(owner.get(), pass).stamp, stamp);
  CHECK_OK(alone->Begin(stamp));
  CHECK_OK(owner->Begin(stamp));
  BatchTableConfig small = SmallBatch(2);
  small.expand_dim = 3;
  BatchTable batch_table(small);
  test::Random random(7);
  bool moved = false;
  for (const test::Batch& batch : pass.batches) {
    const size_t n = batch.feasigns.size();
    Floats grad(n * kWide), one(n * kWide), other(n * kWide);
    for (size_t i = 0; i < n; ++i) {
      const bool asks = batch.feasigns[i] % 3 != 0;  // the slots of the others read no expand
      for (size_t c = 0; c < kWide; ++c) {
        grad[i * kWide + c] = c == 0 ? 1.0f : c >= kColumns && !asks ? 0.0f : random.Uniform();
      }
    }
    const Ints ids = test::Translated(alone.get(), batch.feasigns);
    CHECK_OK(alone->PullExtended(ids.data(), n, one.data()));
    CHECK_OK(alone->PushExtended(ids.data(), n, grad.data(), 8.0f));

    Ints rows(ids), own(n), offsets, plan;
    std::sort(rows.begin(), rows.end());
    rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
    if (!rows.empty() && rows.front() < 0) rows.erase(rows.begin());
    Keys keys;
    for (const int32_t row : rows) keys.push_back(pass.keys[static_cast<size_t>(row)]);
    Floats values(rows.size() * kWide);
    CHECK_OK(owner->PullExtended(rows.data(), rows.size(), values.data()));
    CHECK_OK(batch_table.Prepare(stamp, keys.data(), keys.size(), false));
    CHECK_OK(batch_table.Fill(0, nullptr, rows.size(), values.data()));
    CHECK_OK(batch_table.Open());
    CHECK_OK(batch_table.Translate(batch.feasigns.data(), n, own.data()));
    CHECK_OK(batch_table.PullExtended(own.data(), n, other.data()));
    CHECK(one == other);
    for (size_t i = 0; i < n; ++i) moved = moved || std::abs(one[i * kWide + kColumns]) > 0.11f;
    CHECK_OK(batch_table.PushExtended(own.data(), n, grad.data(), 8.0f));
    for (size_t i = 0; i <= rows.size(); ++i) offsets.push_back(static_cast<int32_t>(i));
    BuildPlan(rows.data(), offsets.data(), rows.size(), stamp, &plan);
    CHECK_OK(owner->PushExtendedPlanned(plan.data(), plan.size(), rows.size(), batch_table.merged(),
                                        1.0f));
  }
  CHECK(moved);
  for (Table* table : {alone.get(), owner.get()}) {
    CHECK_OK(table->End(1));
    CHECK_OK(table->WriteFrozen().status());
    CHECK_OK(table->Publish({}));
  }
  CHECK_EQ(owner->Digest().value(), alone->Digest().value());
}

// Counts, the weights of late lines and expand are summed by other loops than the kernels.
TEST(each_column_of_a_frequent_row_is_summed_in_the_order_of_its_definition) {
  BatchTableConfig config = SmallBatch();
  config.counts = 2;
  config.late = true;
  config.expand_dim = 3;
  const Keys keys = {10, 20, 30, 40, 50, 60, 70, 80};
  Ints ids;
  for (size_t r = 0; r < keys.size(); ++r) {
    ids.insert(ids.end(), test::Frequencies()[r], static_cast<int32_t>(r));
  }
  test::Random random(3);
  for (size_t i = ids.size(); i > 1; --i) std::swap(ids[i - 1], ids[random.Below(i)]);
  for (const int threads : {1, 4}) {
    config.threads = threads;
    BatchTable table(config);
    const size_t columns = table.gradient_columns(), weights_at = 5;
    Floats grad(ids.size() * columns), expected;
    for (float& g : grad) g = std::abs(random.Uniform());
    CHECK_OK(table.Prepare(1, keys.data(), keys.size(), false));
    CHECK_OK(table.Open());
    Ints offsets(ids.size() + 1), plan;
    for (size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<int32_t>(i);
    BuildPlan(ids.data(), offsets.data(), ids.size(), 1, &plan);
    CHECK_OK(
        table.PushExtendedPlanned(plan.data(), plan.size(), ids.size(), grad.data(), 3.0f, true));
    for (size_t r = 0; r < keys.size(); ++r) {
      for (size_t c = 0; c < columns; ++c) {
        Floats values;
        for (size_t i = 0; i < ids.size(); ++i) {
          if (ids[i] == static_cast<int32_t>(r)) values.push_back(grad[i * columns + c]);
        }
        expected.push_back(test::LiteralSum(values) * (c < weights_at ? 1.0f : 3.0f));
      }
    }
    CHECK(test::SameBits(Floats(table.merged(), table.merged() + expected.size()), expected));
  }
}

TEST(only_rows_whose_score_has_reached_the_threshold_have_an_embedx) {
  const auto table = test::OpenTable(test::SmallConfig());  // threshold 1, 1 for a click
  test::Pass pass;
  pass.keys = {3, 4, 5};
  pass.slots = {1, 1, 1};
  const int32_t stamp = test::StageTrain(table.get(), pass).stamp;
  const Ints ids = {2, -1, 0, 1};
  std::vector<uint8_t> have(4, 9);
  CHECK_CODE(table->HaveEmbedx(ids.data(), 4, have.data()), Code::kFailedPrecondition);
  CHECK_OK(table->Begin(stamp));
  Floats grad(2 * kColumns, 0.0f);
  grad[0] = grad[1] = 1.0f;  // a show and a click of row 2
  grad[kColumns] = 1.0f;     // a show of row 0
  const Ints pushed = {2, 0};
  CHECK_OK(table->Push(pushed.data(), 2, grad.data(), 1.0f));
  CHECK_OK(table->HaveEmbedx(ids.data(), 4, have.data()));
  CHECK(have == std::vector<uint8_t>({1, 0, 0, 0}));
  const int32_t outside = 3;
  CHECK_CODE(table->HaveEmbedx(&outside, 1, have.data()), Code::kInvalidArgument);
}

TEST(feasigns_are_found_among_those_of_the_batch) {
  const Keys feasigns = {7, 8, 9};
  Keys keys;
  for (const uint64_t feasign : feasigns) keys.push_back(KeyOf(feasign));
  std::sort(keys.begin(), keys.end());
  BatchTable table(SmallBatch());
  Ints ids(3);
  CHECK_CODE(table.Translate(feasigns.data(), 3, ids.data()), Code::kFailedPrecondition);
  CHECK_OK(table.Prepare(1, keys.data(), keys.size(), false));
  CHECK_OK(table.Open());
  CHECK_OK(table.Translate(feasigns.data(), 3, ids.data()));
  for (size_t i = 0; i < 3; ++i) {
    CHECK_EQ(keys[static_cast<size_t>(ids[i])], KeyOf(feasigns[i]));
  }
  const uint64_t absent = 10, padding = 0;
  CHECK_CODE(table.Translate(&absent, 1, ids.data()), Code::kInvalidArgument);
  CHECK_OK(table.Translate(&padding, 1, ids.data()));
  CHECK_EQ(ids[0], -1);
  CHECK_OK(table.Prepare(2, keys.data(), keys.size(), true));
  CHECK_OK(table.Open());
  CHECK_OK(table.Translate(&absent, 1, ids.data()));
  CHECK_EQ(ids[0], -1);
}

TEST(rows_that_are_not_filled_read_as_zeros_and_the_batch_before_leaves_nothing) {
  const Keys keys = {3, 4};
  const Floats ones(2 * kColumns, 1.0f);
  const Ints ids = {0, 1};
  BatchTable table(SmallBatch());
  Floats out(2 * kColumns);
  for (int round = 0; round < 3; ++round) {  // the memory of two batches is used in turn
    CHECK_OK(table.Prepare(5, keys.data(), 2, false));
    CHECK_OK(table.Fill(0, nullptr, 2, ones.data()));
    CHECK_OK(table.Open());
  }
  const int32_t second = 1;
  CHECK_OK(table.Prepare(6, keys.data(), 2, false));
  CHECK_OK(table.Fill(0, &second, 1, ones.data()));
  CHECK_OK(table.Open());
  CHECK_OK(table.Pull(ids.data(), 2, out.data()));
  CHECK_EQ(out[0], 0.0f);
  CHECK_EQ(out[kColumns - 1], 0.0f);
  CHECK_EQ(out[kColumns], 1.0f);
  CHECK_EQ(table.merged()[0], 0.0f);
}

TEST(what_a_caller_gets_wrong_is_an_error) {
  const Keys keys = {3, 4};
  const Floats ones(3 * kColumns, 1.0f);
  const int32_t outside[2] = {0, 2};
  BatchTable table(SmallBatch());
  CHECK_CODE(table.Open(), Code::kFailedPrecondition);
  CHECK_CODE(table.CheckStamp(1), Code::kFailedPrecondition);
  CHECK_CODE(table.Prepare(0, keys.data(), 2, false), Code::kInvalidArgument);
  CHECK_OK(table.Prepare(1, keys.data(), 2, true));
  CHECK_CODE(table.Fill(0, nullptr, 3, ones.data()), Code::kInvalidArgument);
  CHECK_CODE(table.Fill(0, outside, 2, ones.data()), Code::kInvalidArgument);
  CHECK_OK(table.Open());
  CHECK_CODE(table.Open(), Code::kFailedPrecondition);  // there is no second one
  const Ints ids = {0};
  CHECK_CODE(table.Push(ids.data(), 1, ones.data(), 1.0f), Code::kFailedPrecondition);
  CHECK_CODE(table.PullExtended(ids.data(), 1, nullptr), Code::kFailedPrecondition);
}

TEST(a_gradient_that_is_not_finite_is_named_by_its_feasign_and_not_sent) {
  const Keys keys = {KeyOf(77)};
  const Ints ids = {0};
  Floats grad(kColumns, 1.0f);
  grad[4] = std::numeric_limits<float>::infinity();
  BatchTable table(SmallBatch());
  CHECK_OK(table.Prepare(1, keys.data(), 1, false));
  CHECK_OK(table.Open());
  const Status status = table.Push(ids.data(), 1, grad.data(), 1.0f);
  CHECK_CODE(status, Code::kNotFinite);
  CHECK(status.message().find("77") != std::string::npos);
  CHECK_EQ(table.merged()[0], 0.0f);
}

}  // namespace
}  // namespace pbx
