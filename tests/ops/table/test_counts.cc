// Tables with counts besides show and click: the counts change nothing else, and pulls, pushes and
// other ranks see them.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "check.h"
#include "every_path.h"
#include "pass_model.h"
#include "row/compact.h"
#include "row/lists.h"
#include "row/plan.h"
#include "table/batch_table.h"
#include "table/table.h"

namespace pbx {
namespace {

using test::Floats;
using test::Ints;
using test::Keys;

constexpr size_t kCounts = 2, kDim = 5, kPlain = 3 + kDim, kWide = kPlain + kCounts;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TableConfig Counting(int threads = 1) {
  TableConfig config = test::SmallConfig();
  config.accessor.layout.counts = kCounts;
  config.threads = threads;
  return config;
}

// The columns of rows of `width`, without the further counts after the first two.
Floats WithoutCounts(const Floats& rows, size_t width) {
  Floats out;
  for (size_t i = 0; i < rows.size(); ++i) {
    const size_t column = i % width;
    if (column < 2 || column >= 2 + kCounts) out.push_back(rows[i]);
  }
  return out;
}

// The same batch with counts: instance i has a first count of i % 3 and a second of 1 - i % 2.
test::Batch WithCounts(const test::Batch& plain) {
  test::Batch batch = plain;
  batch.show_click.clear();
  for (size_t i = 0; i < plain.instances; ++i) {
    const float* from = &plain.show_click[2 * i];
    batch.show_click.insert(batch.show_click.end(), {from[0], from[1], static_cast<float>(i % 3),
                                                     1.0f - static_cast<float>(i % 2)});
  }
  if (!plain.use_cvm) return batch;
  batch.grad.clear();
  for (size_t i = 0; i < plain.grad.size(); ++i) {
    if (i % kPlain == 2) batch.grad.insert(batch.grad.end(), kCounts, 7.0f);  // no push reads it
    batch.grad.push_back(plain.grad[i]);
  }
  return batch;
}

size_t Width(const test::Batch& batch, size_t counts) {
  return 1 + kDim + (batch.use_cvm ? 2 + counts : 0);
}

Floats Pooled(Table* table, const test::Batch& batch, size_t counts) {
  const Ints ids = test::Translated(table, batch.feasigns);
  Floats out(batch.instances * batch.slots * Width(batch, counts));
  CHECK_OK(table->PullPooled(ids.data(), ids.size(), batch.offsets.data(), batch.instances,
                             batch.slots, batch.use_cvm, out.data()));
  return out;
}

// The further counts that a batch adds to each feasign.
void AddCounts(const test::Batch& batch, std::map<uint64_t, Floats>* sums) {
  for (size_t segment = 0; segment + 1 < batch.offsets.size(); ++segment) {
    const float* counts = &batch.show_click[segment / batch.slots * (2 + kCounts) + 2];
    for (int32_t i = batch.offsets[segment]; i < batch.offsets[segment + 1]; ++i) {
      Floats& sum = (*sums)[batch.feasigns[static_cast<size_t>(i)]];
      sum.resize(kCounts);
      for (size_t c = 0; c < kCounts; ++c) sum[c] += counts[c];
    }
  }
  sums->erase(0);
}

TEST(counts_are_summed_and_no_other_column_changes_a_bit) {
  const test::Pass pass = test::MakePass(3, 5000, 3000, kDim);
  for (const Kernels* path : test::Paths()) {
    CHECK_OK(SelectKernels(path->name));
    for (const int threads : {1, 4}) {
      const auto plain = test::OpenTable(test::SmallConfig());
      const auto table = test::OpenTable(Counting(threads));
      for (Table* each : {plain.get(), table.get()}) {
        CHECK_OK(each->Begin(test::StageTrain(each, pass).stamp));
      }
      std::map<uint64_t, Floats> sums;
      for (const test::Batch& batch : pass.batches) {
        const test::Batch counted = WithCounts(batch);
        const Floats pooled = Pooled(table.get(), counted, kCounts);
        const Floats expected = Pooled(plain.get(), batch, 0);
        CHECK((batch.use_cvm ? WithoutCounts(pooled, kWide) : pooled) == expected);
        test::PushBatch(plain.get(), batch);
        test::PushBatch(table.get(), counted);
        AddCounts(counted, &sums);
      }
      Keys feasigns;
      for (const auto& [feasign, sum] : sums) feasigns.push_back(feasign);
      const Ints ids = test::Translated(table.get(), feasigns);
      Floats rows(ids.size() * kWide);
      CHECK_OK(table->Pull(ids.data(), ids.size(), rows.data()));
      test::CheckPull(plain.get(), WithoutCounts(rows, kWide), feasigns);
      size_t wrong = 0;
      for (size_t i = 0; i < feasigns.size(); ++i) {
        const float* const found = &rows[i * kWide + 2];
        wrong += !std::equal(found, found + kCounts, sums[feasigns[i]].data());
      }
      CHECK_EQ(wrong, size_t{0});
    }
  }
  CHECK_OK(SelectKernels("auto"));
}

// Pulls and pushes a batch whose ids have factors. Returns what was pulled.
Floats TrainWithFactors(Table* table, int32_t stamp, const test::Batch& batch, size_t counts) {
  const Ints ids = test::Translated(table, batch.feasigns);
  Floats factors;
  for (size_t i = 0; i < ids.size(); ++i) factors.push_back(static_cast<float>(i % 5) / 3.0f);
  Ints plan;
  BuildPlan(ids.data(), batch.offsets.data(), batch.offsets.size() - 1, stamp, &plan,
            factors.data());
  Floats out(batch.instances * batch.slots * Width(batch, counts));
  CHECK_OK(table->PullPooled(ids.data(), ids.size(), batch.offsets.data(), batch.instances,
                             batch.slots, batch.use_cvm, out.data(), nullptr, 0, {}, plan.data(),
                             plan.size()));
  CHECK_OK(table->PushPooled(ids.data(), ids.size(), batch.offsets.data(), batch.instances,
                             batch.slots, batch.use_cvm, batch.show_click.data(), plan.data(),
                             plan.size(), batch.grad.data()));
  return out;
}

TEST(factors_of_ids_multiply_weights_and_no_count) {
  const test::Pass pass = test::MakePass(5, 2000, 600, kDim);
  const auto plain = test::OpenTable(test::SmallConfig()), table = test::OpenTable(Counting());
  const int32_t stamps[2] = {test::StageTrain(plain.get(), pass).stamp,
                             test::StageTrain(table.get(), pass).stamp};
  CHECK_OK(plain->Begin(stamps[0]));
  CHECK_OK(table->Begin(stamps[1]));
  std::map<uint64_t, Floats> sums;
  for (const test::Batch& batch : pass.batches) {
    const test::Batch counted = WithCounts(batch);
    const Floats logs = Pooled(table.get(), counted, kCounts);  // without factors
    const Floats pooled = TrainWithFactors(table.get(), stamps[1], counted, kCounts);
    const Floats expected = TrainWithFactors(plain.get(), stamps[0], batch, 0);
    CHECK((batch.use_cvm ? WithoutCounts(pooled, kWide) : pooled) == expected);
    size_t wrong = 0;
    for (size_t i = 0; batch.use_cvm && i < pooled.size(); ++i) {
      wrong += i % kWide < 2 + kCounts && pooled[i] != logs[i];
    }
    CHECK_EQ(wrong, size_t{0});
    AddCounts(counted, &sums);
  }
  for (const auto& [feasign, sum] : sums) {
    const Ints id = test::Translated(table.get(), {feasign});
    Floats row(kWide);
    CHECK_OK(table->Pull(id.data(), 1, row.data()));
    CHECK(std::equal(sum.begin(), sum.end(), &row[2]));
    test::CheckPull(plain.get(), WithoutCounts(row, kWide), {feasign});
  }
}

// Key 1 of a pass with counts 3 and 1, key 2 with 0 and 8; 2 clicks each, and enough for embedx.
std::unique_ptr<Table> TwoRows(Ints* ids) {
  auto table = test::OpenTable(Counting());
  test::Pass pass;
  for (const uint64_t feasign : {1, 2}) pass.keys.push_back(KeyOf(feasign));
  std::sort(pass.keys.begin(), pass.keys.end());
  pass.slots = {0, 0};
  CHECK_OK(table->Begin(test::StageTrain(table.get(), pass).stamp));
  *ids = test::Translated(table.get(), {1, 2});
  Floats grad(2 * kWide, 0.0f);
  const Floats counts[2] = {{6, 2, 3, 1}, {4, 2, 0, 8}};
  for (size_t i = 0; i < 2; ++i) std::copy(counts[i].begin(), counts[i].end(), &grad[i * kWide]);
  CHECK_OK(table->Push(ids->data(), 2, grad.data(), 1.0f));
  return table;
}

TEST(a_pooled_slot_has_the_logarithm_of_each_count_per_click) {
  Ints ids;
  const auto table = TwoRows(&ids);
  ids.push_back(-1);
  const int32_t offsets[4] = {0, 3, 3, 3};  // both rows and padding; nothing; nothing
  Floats out(3 * kWide, -1.0f);
  CHECK_OK(table->PullPooled(ids.data(), 3, offsets, 1, 3, true, out.data()));
  CHECK_EQ(out[0], Log(11.0f));
  CHECK_EQ(out[1], Log(5.0f) - Log(11.0f));
  CHECK_EQ(out[2], Log(4.0f) - Log(5.0f));
  CHECK_EQ(out[3], Log(10.0f) - Log(5.0f));
  for (size_t i = kWide; i < out.size(); ++i) CHECK_EQ(out[i], 0.0f);
}

TEST(shared_lists_have_the_counts_in_every_segment) {
  Ints ids;
  const auto table = TwoRows(&ids);
  // 2 lists, 2 instances of 2 slots: (list 0, list 1) and (list 1, list 0); dense behind each.
  const int32_t offsets[3] = {0, 1, 2}, list_of[4] = {0, 1, 1, 0};
  SharedCells shared;
  shared.list_of = list_of;
  shared.lists = 2;
  const Floats dense = {5.0f, 6.0f};
  Floats out(4 * kWide + 2, -1.0f);
  CHECK_OK(
      table->PullPooled(ids.data(), 2, offsets, 2, 2, true, out.data(), dense.data(), 1, shared));
  const auto segment = [&](size_t i) { return Floats(&out[i], &out[i] + kWide); };
  const size_t second = 2 * kWide + 1;  // the second instance
  CHECK(segment(0) == segment(second + kWide));
  CHECK(segment(kWide) == segment(second));
  CHECK_EQ(out[2], Log(4.0f) - Log(3.0f));
  CHECK_EQ(out[kWide + 3], Log(9.0f) - Log(3.0f));
  CHECK_EQ(out[2 * kWide], 5.0f);
  CHECK_EQ(out[4 * kWide + 1], 6.0f);
}

TEST(a_count_that_is_not_finite_changes_no_row) {
  Ints ids;
  const auto table = TwoRows(&ids);
  Floats before(2 * kWide), after(2 * kWide), grad(2 * kWide, 1.0f);
  CHECK_OK(table->Pull(ids.data(), 2, before.data()));
  grad[kWide + 3] = kNan;
  const Status status = table->Push(ids.data(), 2, grad.data(), 1.0f);
  CHECK_CODE(status, Code::kInvalidArgument);
  CHECK(status.message().find("count 1 of instance 1 is") != std::string::npos);
  CHECK_OK(table->Pull(ids.data(), 2, after.data()));
  CHECK(before == after);
}

TEST(a_row_whose_gradient_is_bad_is_not_counted) {
  Ints ids;
  const auto table = TwoRows(&ids);
  Floats rows(2 * kWide), grad(2 * kWide, 1.0f);
  grad[4] = kNan;  // embed_w of the first row
  CHECK_CODE(table->Push(ids.data(), 2, grad.data(), 1.0f), Code::kNotFinite);
  CHECK_OK(table->Pull(ids.data(), 2, rows.data()));
  CHECK_EQ(rows[2], 3.0f);
  CHECK_EQ(rows[kWide + 3], 9.0f);
}

TEST(slots_that_do_not_count_add_no_counts) {
  Ints ids;
  const auto table = TwoRows(&ids);
  const uint8_t none = 0;
  CHECK_OK(table->SetCounted(&none, 1));
  Floats rows(2 * kWide), grad(2 * kWide, 1.0f);
  CHECK_OK(table->Push(ids.data(), 2, grad.data(), 1.0f));
  CHECK_OK(table->Pull(ids.data(), 2, rows.data()));
  CHECK_EQ(rows[0], 6.0f);
  CHECK_EQ(rows[2], 3.0f);
}

// Every third instance is a late line: it has no show and no click.
test::Batch WithLateLines(const test::Batch& batch) {
  test::Batch late = batch;
  const size_t head = batch.show_click.size() / batch.instances;
  for (size_t i = 0; i < batch.instances; i += 3) {
    late.show_click[i * head] = -batch.show_click[i * head];
    late.show_click[i * head + 1] = 0.0f;
  }
  return late;
}

TEST(late_lines_weigh_as_others_and_are_no_shows) {
  const test::Pass pass = test::MakePass(3, 2000, 300, kDim);
  for (const RuleKind rule : {RuleKind::kAdaGrad, RuleKind::kStdAdaGrad}) {
    TableConfig config = test::SmallConfig();
    config.accessor.embed.kind = config.accessor.embedx.kind = rule;
    config.accessor.embedx_threshold = 0.0f;
    const auto shown = test::OpenTable(config), table = test::OpenTable(config);
    for (Table* each : {shown.get(), table.get()}) {
      CHECK_OK(each->Begin(test::StageTrain(each, pass).stamp));
    }
    for (const test::Batch& batch : pass.batches) {
      test::PushBatch(shown.get(), batch);
      test::PushBatch(table.get(), WithLateLines(batch));
    }
    Ints ids(pass.keys.size());
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i);
    Floats expected(ids.size() * kPlain), found(ids.size() * kPlain);
    CHECK_OK(shown->Pull(ids.data(), ids.size(), expected.data()));
    CHECK_OK(table->Pull(ids.data(), ids.size(), found.data()));
    size_t other_weights = 0, fewer_shows = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      const float* const one = &expected[i * kPlain];
      other_weights += !std::equal(one + 2, one + kPlain, &found[i * kPlain + 2]);
      fewer_shows += found[i * kPlain] < one[0];
    }
    CHECK_EQ(other_weights, size_t{0});
    CHECK(fewer_shows > ids.size() / 4);
  }
}

TEST(a_table_of_other_ranks_rows_without_a_column_of_late_lines_refuses_them) {
  BatchTableConfig small;
  small.embedx_dim = kDim;
  BatchTable batch_table(small);
  const uint64_t key = 1;
  CHECK_OK(batch_table.Prepare(1, &key, 1, false));
  CHECK_OK(batch_table.Open());
  const int32_t id = 0, offsets[2] = {0, 1};
  const float show_click[2] = {-1.0f, 0.0f};
  const Floats grad(kPlain, 1.0f);
  const Status status =
      batch_table.PushPooled(&id, 1, offsets, 1, 1, true, show_click, nullptr, 0, grad.data());
  CHECK_CODE(status, Code::kFailedPrecondition);
  CHECK(status.message().find("model.delayed_task") != std::string::npos);
}

TEST(a_bad_count_changes_no_expand_part) {
  TableConfig config = Counting();
  config.accessor.layout.expand_dim = 2;
  config.accessor.embedx_threshold = 0.0f;
  const auto table = test::OpenTable(config);
  test::Pass pass;
  pass.keys = {KeyOf(1)};
  pass.slots = {0};
  CHECK_OK(table->Begin(test::StageTrain(table.get(), pass).stamp));
  const int32_t id = 0;
  Floats grad(kWide + 2, 1.0f), before(kWide + 2), after(kWide + 2);
  CHECK_OK(table->PushExtended(&id, 1, grad.data(), 1.0f));
  CHECK_OK(table->PullExtended(&id, 1, before.data()));
  for (const float bad : {kNan, -1.0f}) {
    grad[3] = bad;
    CHECK_CODE(table->PushExtended(&id, 1, grad.data(), 1.0f), Code::kInvalidArgument);
    CHECK_OK(table->PullExtended(&id, 1, after.data()));
    CHECK(before == after);
  }
}

TEST(another_rank_sees_the_counts_and_its_pushes_arrive) {
  for (const int expand : {0, 3}) {
    const test::Pass pass = test::MakePass(5, 3000, 1000, kDim);
    TableConfig config = Counting();
    config.accessor.layout.expand_dim = expand;
    const auto alone = test::OpenTable(config), owner = test::OpenTable(config);
    const int32_t stamp = test::StageTrain(alone.get(), pass).stamp;
    CHECK_EQ(test::StageTrain(owner.get(), pass).stamp, stamp);
    CHECK_OK(alone->Begin(stamp));
    CHECK_OK(owner->Begin(stamp));
    BatchTableConfig small;
    small.embedx_dim = kDim;
    small.expand_dim = expand;
    small.counts = kCounts;
    small.late = true;
    BatchTable batch_table(small);
    const size_t columns = kWide + static_cast<size_t>(expand);
    CHECK_EQ(batch_table.columns(), columns);
    CHECK_EQ(batch_table.gradient_columns(), columns + 1);
    for (const test::Batch& plain : pass.batches) {
      const test::Batch batch = WithLateLines(WithCounts(plain));
      const Floats expected = Pooled(alone.get(), batch, kCounts);
      test::PushBatch(alone.get(), batch);
      Ints ids = test::Translated(owner.get(), batch.feasigns), plan, rows, offsets, applied;
      const size_t segments = batch.instances * batch.slots;
      BuildPlan(ids.data(), batch.offsets.data(), segments, stamp, &plan);
      CHECK_OK(
          CompactBatch(ids.data(), ids.size(), plan.data(), plan.size(), pass.keys.size(), &rows));
      Keys keys;
      for (const int32_t row : rows) keys.push_back(pass.keys[static_cast<size_t>(row)]);
      Floats values(rows.size() * columns), pooled(expected.size());
      CHECK_OK(expand != 0 ? owner->PullExtended(rows.data(), rows.size(), values.data())
                           : owner->Pull(rows.data(), rows.size(), values.data()));
      CHECK_OK(batch_table.Prepare(stamp, keys.data(), keys.size(), false));
      CHECK_OK(batch_table.Fill(0, nullptr, rows.size(), values.data()));
      CHECK_OK(batch_table.Open());
      CHECK_OK(batch_table.PullPooled(ids.data(), ids.size(), batch.offsets.data(), batch.instances,
                                      batch.slots, batch.use_cvm, pooled.data()));
      CHECK(pooled == expected);
      CHECK_OK(batch_table.PushPooled(ids.data(), ids.size(), batch.offsets.data(), batch.instances,
                                      batch.slots, batch.use_cvm, batch.show_click.data(),
                                      plan.data(), plan.size(), batch.grad.data()));
      for (size_t i = 0; i <= rows.size(); ++i) offsets.push_back(static_cast<int32_t>(i));
      BuildPlan(rows.data(), offsets.data(), rows.size(), stamp, &applied);
      const float* const merged = batch_table.merged();
      CHECK_OK(expand != 0 ? owner->PushExtendedPlanned(applied.data(), applied.size(), rows.size(),
                                                        merged, 1.0f, true)
                           : owner->PushPlanned(applied.data(), applied.size(), rows.size(), merged,
                                                1.0f, true));
    }
    for (Table* table : {alone.get(), owner.get()}) {
      CHECK_OK(table->End(1));
      test::Commit(table);
    }
    CHECK_EQ(owner->Digest().value(), alone->Digest().value());
  }
}

// The digest before rows had further counts. It changes only with the layout of rows, the rules or
// this data.
TEST(a_table_without_counts_has_the_digest_of_before) {
  const auto table = test::OpenTable(test::SmallConfig());
  const test::Pass pass = test::MakePass(3, 500, 300, kDim);
  CHECK_OK(table->Begin(test::StageTrain(table.get(), pass).stamp));
  for (const test::Batch& batch : pass.batches) test::PushBatch(table.get(), batch);
  CHECK_OK(table->End(1));
  test::Commit(table.get());
  CHECK_EQ(table->Digest().value(), std::string("1076c2a139024e85e9ff61ee21d61f26"));
}

TEST(too_many_counts_are_refused) {
  TableConfig config = Counting();
  config.accessor.layout.counts = 17;
  CHECK_CODE(Table::Open(config, {}).status(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace pbx
