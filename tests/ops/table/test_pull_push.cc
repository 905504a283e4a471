// Pull and push through a table: no thread count and no vector path changes a bit, and what a
// caller gets wrong is an error.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "every_path.h"
#include "pass_model.h"
#include "row/plan.h"
#include "table/table.h"

namespace pbx {
namespace {

using test::Floats;
using test::Ints;
using test::Keys;
using test::Random;

// Batches large enough to be cut into several ranges on every thread count.
test::Pass LargePass() {
  test::Pass pass = test::MakePass(3, 20000, 12000, 5);
  test::Batch& first = pass.batches[0];
  Random random(9);
  while (first.instances < 2500) {
    for (size_t s = 0; s < first.slots; ++s) {
      for (uint64_t n = random.Below(4); n > 0; --n) {
        first.feasigns.push_back(FeasignOf(pass.keys[random.Below(pass.keys.size())]));
      }
      first.offsets.push_back(static_cast<int32_t>(first.feasigns.size()));
      for (int c = 0; c < 8; ++c) first.grad.push_back(random.Uniform() * 0.001f);
    }
    first.show_click.insert(first.show_click.end(), {1.0f, static_cast<float>(random.Below(2))});
    ++first.instances;
  }
  return pass;
}

TEST(no_thread_count_and_no_path_changes_a_bit_of_pulls_and_rows) {
  const test::Pass pass = LargePass();
  const test::Batch& batch = pass.batches[0];
  test::Model model_of_table(test::SmallConfig());
  model_of_table.Train(pass);
  Floats expected;
  for (const Kernels* path : test::Paths()) {
    CHECK_OK(SelectKernels(path->name));
    for (const int threads : {1, 2, 4}) {
      for (const bool planned : {false, true}) {
        TableConfig config = test::SmallConfig();
        config.threads = threads;
        const auto table = test::OpenTable(config);
        const int32_t stamp = test::StageTrain(table.get(), pass).stamp;
        CHECK_OK(table->Begin(stamp));
        for (const test::Batch& each : pass.batches) {
          const Ints ids = test::Translated(table.get(), each.feasigns);
          Ints plan;
          if (planned) {
            BuildPlan(ids.data(), each.offsets.data(), each.instances * each.slots, stamp, &plan);
          }
          CHECK_OK(table->PushPooled(ids.data(), ids.size(), each.offsets.data(), each.instances,
                                     each.slots, each.use_cvm, each.show_click.data(), plan.data(),
                                     plan.size(), each.grad.data()));
        }
        const Ints ids = test::Translated(table.get(), batch.feasigns);
        Floats pooled(batch.instances * batch.slots * 8), pulled(ids.size() * 8);
        CHECK_OK(table->PullPooled(ids.data(), ids.size(), batch.offsets.data(), batch.instances,
                                   batch.slots, true, pooled.data()));
        CHECK_OK(table->Pull(ids.data(), ids.size(), pulled.data()));
        pooled.insert(pooled.end(), pulled.begin(), pulled.end());
        if (expected.empty()) expected = pooled;
        CHECK(test::SameBits(pooled, expected));
        CHECK_OK(table->End());
        test::Commit(table.get());
        CHECK_EQ(test::DigestOf(table.get()), model_of_table.Digest());
      }
    }
  }
  CHECK_OK(SelectKernels("auto"));
}

// Push of single ids is PushPooled with one id a segment and the counts in the gradient.
TEST(a_push_of_ids_and_a_pooled_push_of_the_same_agree) {
  const Keys keys = [] {
    Keys all;
    for (uint64_t i = 1; i <= 50; ++i) all.push_back(KeyOf(i));
    std::sort(all.begin(), all.end());
    return all;
  }();
  Random random(4);
  Ints ids, offsets = {0};
  Floats grad, show_click;
  for (int i = 0; i < 200; ++i) {
    ids.push_back(static_cast<int32_t>(random.Below(51)) - 1);
    offsets.push_back(i + 1);
    for (int c = 0; c < 8; ++c) {
      grad.push_back(c < 2 ? static_cast<float>(random.Below(3)) : random.Uniform());
    }
    show_click.insert(show_click.end(), grad.end() - 8, grad.end() - 6);
  }
  std::string digests[2];
  for (const bool pooled : {false, true}) {
    const auto table = test::OpenTable(test::SmallConfig());
    const auto staged = table->Stage(keys.data(), nullptr, keys.size(), Purpose::kTrain, 1);
    CHECK_OK(table->Begin(staged.value().stamp));
    CHECK_OK(pooled ? table->PushPooled(ids.data(), 200, offsets.data(), 200, 1, true,
                                        show_click.data(), nullptr, 0, grad.data())
                    : table->Push(ids.data(), 200, grad.data(), 200.0f));
    CHECK_OK(table->End());
    test::Commit(table.get());
    digests[pooled] = test::DigestOf(table.get());
  }
  CHECK_EQ(digests[0], digests[1]);
}

// ---- What a caller gets wrong

struct OpenPass {
  OpenPass() : pass(test::MakePass(1, 500, 100, 5)), table(test::OpenTable(test::SmallConfig())) {
    stamp = test::StageTrain(table.get(), pass).stamp;
    CHECK_OK(table->Begin(stamp));
    ids = test::Translated(table.get(), batch().feasigns);
    BuildPlan(ids.data(), batch().offsets.data(), segments(), stamp, &plan);
    out.resize(std::max(ids.size(), segments()) * 8);
  }
  const test::Batch& batch() const { return pass.batches[0]; }
  size_t segments() const { return batch().instances * batch().slots; }
  Status Pull(const Ints& of) { return table->Pull(of.data(), of.size(), out.data()); }
  Status PullPooled(const Ints& of, const Ints& offsets) {
    return table->PullPooled(of.data(), of.size(), offsets.data(), batch().instances, batch().slots,
                             true, out.data());
  }
  Status PushPooled(const Ints& of, const Ints& offsets, const Ints& by_plan) {
    return table->PushPooled(of.data(), of.size(), offsets.data(), batch().instances, batch().slots,
                             true, batch().show_click.data(), by_plan.data(), by_plan.size(),
                             batch().grad.data());
  }

  test::Pass pass;
  std::unique_ptr<Table> table;
  int32_t stamp = 0;
  Ints ids, plan;
  Floats out;
};

TEST(ids_outside_the_pass_are_refused) {
  OpenPass open;
  const int32_t rows = static_cast<int32_t>(open.pass.keys.size());
  for (const int32_t bad : {-2, INT32_MIN, rows, INT32_MAX}) {
    Ints ids = open.ids;
    ids[ids.size() / 2] = bad;
    CHECK_CODE(open.Pull(ids), Code::kInvalidArgument);
    CHECK_CODE(open.PullPooled(ids, open.batch().offsets), Code::kInvalidArgument);
    CHECK_CODE(open.PushPooled(ids, open.batch().offsets, {}), Code::kInvalidArgument);
    CHECK_CODE(open.table->Push(ids.data(), ids.size(), open.out.data(), 1.0f),
               Code::kInvalidArgument);
    CHECK(open.Pull(ids).message().find(std::to_string(bad)) != std::string::npos);
  }
  CHECK_OK(open.Pull(open.ids));
}

TEST(offsets_that_do_not_ascend_from_0_to_the_count_are_refused) {
  OpenPass open;
  const Ints& good = open.batch().offsets;
  const size_t middle = good.size() / 2;
  for (const auto& [at, value] :
       std::vector<std::pair<size_t, int32_t>>{{0, 1},
                                               {0, -1},
                                               {middle, -1},
                                               {middle, INT32_MAX},
                                               {middle, INT32_MIN},
                                               {good.size() - 1, good.back() + 1},
                                               {good.size() - 1, 0}}) {
    Ints bad = good;
    bad[at] = value;
    CHECK_CODE(open.PullPooled(open.ids, bad), Code::kInvalidArgument);
    CHECK_CODE(open.PushPooled(open.ids, bad, {}), Code::kInvalidArgument);
  }
  CHECK_OK(open.PullPooled(open.ids, good));
}

TEST(a_plan_of_another_pass_is_refused_as_such_whatever_its_rows) {
  OpenPass open;
  Ints other = open.plan;
  other[0] = open.stamp + 1;
  CHECK_CODE(open.PushPooled(open.ids, open.batch().offsets, other), Code::kFailedPrecondition);
  other[2 + static_cast<size_t>(other[1])] = 1000000;  // a row that this pass does not have
  CHECK_CODE(open.PushPooled(open.ids, open.batch().offsets, other), Code::kFailedPrecondition);
  other[0] = open.stamp;
  CHECK_CODE(open.PushPooled(open.ids, open.batch().offsets, other), Code::kInvalidArgument);
  CHECK_OK(open.PushPooled(open.ids, open.batch().offsets, open.plan));
}

TEST(a_damaged_plan_is_refused_or_walked_within_bounds) {
  OpenPass open;
  Random random(5);
  size_t refused = 0;
  for (int round = 0; round < 3000; ++round) {
    Ints plan = open.plan;
    for (uint64_t n = 1 + random.Below(3); n > 0; --n) {
      const uint64_t kind = random.Below(4);
      int32_t& word = plan[random.Below(plan.size())];
      if (kind == 0) word = static_cast<int32_t>(random.Next());
      const auto bits = static_cast<uint32_t>(word);  // which wrap around
      if (kind == 1) word = static_cast<int32_t>(bits + static_cast<uint32_t>(random.Below(5)) - 2);
      if (kind == 2) word = static_cast<int32_t>(0 - bits);
      if (kind == 3) plan.resize(1 + random.Below(plan.size()));
    }
    const Status status = open.PushPooled(open.ids, open.batch().offsets, plan);
    refused += !status.ok();
    CHECK(status.ok() || status.code() == Code::kInvalidArgument ||
          status.code() == Code::kFailedPrecondition);
  }
  CHECK(refused > 1000);
}

TEST(a_batch_of_nothing_is_legal) {
  OpenPass open;
  const Ints zero = {0};
  CHECK_OK(open.table->Pull(nullptr, 0, nullptr));
  CHECK_OK(open.table->PullPooled(nullptr, 0, zero.data(), 0, 3, true, nullptr));
  CHECK_OK(
      open.table->PushPooled(nullptr, 0, zero.data(), 0, 3, true, nullptr, nullptr, 0, nullptr));
  CHECK_OK(open.table->Push(nullptr, 0, nullptr, 1.0f));
}

}  // namespace
}  // namespace pbx
