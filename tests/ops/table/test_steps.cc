// The steps of a program: pulls see the rows from before the step, and pushes are added up by row
// and applied once, whichever thread makes them and in whatever order.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"
#include "pass_model.h"
#include "table/batch_table.h"
#include "table/table.h"

namespace pbx {
namespace {

using test::Floats;
using test::Ints;
using test::Keys;

constexpr size_t kDim = 4, kWidth = 3 + kDim, kExpand = 2;
const Keys kFeasigns = {5, 9, 12};

TableConfig Config(int expand = 0) {
  TableConfig config;
  config.accessor.layout.embedx_dim = kDim;
  config.accessor.layout.expand_dim = expand;
  config.accessor.embedx_threshold = 0.0f;
  config.threads = 2;
  return config;
}

std::unique_ptr<Table> Opened(const TableConfig& config) {
  std::unique_ptr<Table> table = test::OpenTable(config);
  test::Pass pass;
  pass.day = 20000;
  for (const uint64_t feasign : kFeasigns) pass.keys.push_back(KeyOf(feasign));
  std::sort(pass.keys.begin(), pass.keys.end());
  pass.slots.assign(pass.keys.size(), 0);
  CHECK_OK(table->Begin(test::StageTrain(table.get(), pass).stamp));
  return table;
}

// A push of one id for each feasign. Gradients are sums of powers of two, so every order of adding
// them up gives the same bits, and those of one push of all.
struct One {
  Keys feasigns;
  Floats grad;  // (n, width)
};

One PushOf(const Keys& feasigns, float value, size_t width = kWidth) {
  One push{feasigns, Floats(feasigns.size() * width, value)};
  for (size_t i = 0; i < feasigns.size(); ++i) push.grad[i * width] = 1.0f;  // show
  return push;
}

const std::vector<One>& Three() {
  static const std::vector<One> pushes = {PushOf({5, 9}, 0.5f), PushOf({9, 12, 9}, -0.25f),
                                          PushOf({5}, 0.125f)};
  return pushes;
}

Status Apply(Table* table, const One& push) {
  const Ints ids = test::Translated(table, push.feasigns);
  const bool extended = push.grad.size() != ids.size() * kWidth;
  return extended ? table->PushExtended(ids.data(), ids.size(), push.grad.data(), 2.0f)
                  : table->Push(ids.data(), ids.size(), push.grad.data(), 2.0f);
}

Status InStep(Table* table, const One& push) {
  Result<StepPush> begun = table->BeginPush();
  if (!begun.ok()) return begun.status();
  PBX_RETURN_IF_ERROR(Apply(table, push));
  return begun.value().End();
}

void PullTimes(Table* table, size_t n) {
  for (; n != 0; --n) CHECK_OK(table->BeginPull().status());
}

Floats Rows(Table* table) {
  const Ints ids = test::Translated(table, kFeasigns);
  const size_t width = kWidth + static_cast<size_t>(table->layout().expand_dim);
  Floats out(ids.size() * width);
  CHECK_OK(width == kWidth ? table->Pull(ids.data(), ids.size(), out.data())
                           : table->PullExtended(ids.data(), ids.size(), out.data()));
  return out;
}

// Two steps of all pushes, each made as one push.
Floats RowsOfWholePushes(const std::vector<One>& pushes, const TableConfig& config) {
  const auto table = Opened(config);
  One all;
  for (const One& push : pushes) {
    all.feasigns.insert(all.feasigns.end(), push.feasigns.begin(), push.feasigns.end());
    all.grad.insert(all.grad.end(), push.grad.begin(), push.grad.end());
  }
  for (int step = 0; step < 2; ++step) CHECK_OK(Apply(table.get(), all));
  return Rows(table.get());
}

TEST(every_order_of_pushes_gives_the_bits_of_one_push_of_all) {
  const Floats expected = RowsOfWholePushes(Three(), Config());
  std::array<size_t, 3> order = {0, 1, 2};
  do {
    const auto table = Opened(Config());
    for (int step = 0; step < 2; ++step) {
      PullTimes(table.get(), 3);
      for (const size_t i : order) CHECK_OK(InStep(table.get(), Three()[i]));
    }
    CHECK_EQ(Rows(table.get()) == expected, true);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(inexact_sums_do_not_depend_on_the_order) {
  // (1e8 + 1) - 1e8 is 0, and (1e8 - 1e8) + 1 is 1.
  const std::vector<One> pushes = {PushOf({5}, 1e8f), PushOf({5}, 1.0f), PushOf({5}, -1e8f)};
  std::vector<Floats> found;
  std::array<size_t, 3> order = {0, 1, 2};
  do {
    const auto table = Opened(Config());
    CHECK_OK(Apply(table.get(), PushOf({5}, 0.5f)));  // creates embedx
    PullTimes(table.get(), 3);
    for (const size_t i : order) CHECK_OK(InStep(table.get(), pushes[i]));
    found.push_back(Rows(table.get()));
  } while (std::next_permutation(order.begin(), order.end()));
  for (const Floats& one : found) CHECK_EQ(one == found[0], true);
}

TEST(threads_that_push_at_the_same_time_give_the_same_bits) {
  const Floats expected = RowsOfWholePushes(Three(), Config());
  for (int run = 0; run < 20; ++run) {
    const auto table = Opened(Config());
    for (int step = 0; step < 2; ++step) {
      const auto each = [&](const std::function<void(size_t)>& work) {
        std::vector<std::thread> threads;
        for (size_t i = 0; i < 3; ++i) {
          threads.emplace_back([&, i] {
            std::this_thread::sleep_for(std::chrono::microseconds(run * (i * 7 % 5) * 20));
            work(i);
          });
        }
        for (std::thread& thread : threads) thread.join();
      };
      Floats out(kWidth);
      each([&](size_t) {
        const auto pulling = table->BeginPull();
        CHECK_OK(pulling.status());
        const int32_t id = 0;
        Floats row(kWidth);
        CHECK_OK(table->Pull(&id, 1, row.data()));
      });
      each([&](size_t i) { CHECK_OK(InStep(table.get(), Three()[i])); });
    }
    CHECK_EQ(Rows(table.get()) == expected, true);
  }
}

TEST(the_rule_sees_the_sum_of_a_step) {
  // AdaGrad: g2sum grows by the square of the whole gradient, not by those of its parts.
  const auto summed = Opened(Config()), apart = Opened(Config());
  const One one = PushOf({5}, 0.5f);
  for (int step = 0; step < 2; ++step) {
    PullTimes(summed.get(), 2);
    for (int i = 0; i < 2; ++i) CHECK_OK(InStep(summed.get(), one));
    for (int i = 0; i < 2; ++i) CHECK_OK(Apply(apart.get(), one));
  }
  CHECK_EQ(Rows(summed.get()) == Rows(apart.get()), false);
  CHECK_EQ(Rows(summed.get())[0], 4.0f);  // shows
}

TEST(pulls_of_a_step_see_no_push_of_it_and_the_next_pull_sees_all) {
  const auto table = Opened(Config());
  PullTimes(table.get(), 3);
  CHECK_OK(InStep(table.get(), Three()[0]));
  CHECK_OK(InStep(table.get(), Three()[1]));
  CHECK_EQ(Rows(table.get())[0], 0.0f);  // held: one pull has no push yet
  PullTimes(table.get(), 1);             // of the next step
  CHECK_EQ(Rows(table.get())[0], 1.0f);
  CHECK_EQ(Rows(table.get())[kWidth], 3.0f);
}

TEST(a_step_with_one_pull_is_applied_at_once) {
  const auto table = Opened(Config());
  PullTimes(table.get(), 1);
  CHECK_OK(InStep(table.get(), Three()[2]));
  CHECK_EQ(Rows(table.get())[0], 1.0f);
  CHECK_OK(InStep(table.get(), Three()[2]));  // a step of its own
  CHECK_EQ(Rows(table.get())[0], 2.0f);
}

TEST(the_end_of_a_pass_applies_what_is_held_and_abandoning_drops_it) {
  const auto table = Opened(Config());
  PullTimes(table.get(), 2);
  CHECK_OK(InStep(table.get(), Three()[2]));
  CHECK_OK(table->End());
  Floats row(static_cast<size_t>(table->layout().words()));
  uint8_t found = 0;
  const uint64_t key = KeyOf(5);
  test::Commit(table.get());
  CHECK_OK(table->Lookup(&key, 1, row.data(), &found));
  CHECK_EQ(row[RowLayout::kShow], 1.0f);

  const auto dropped = Opened(Config());
  PullTimes(dropped.get(), 2);
  CHECK_OK(InStep(dropped.get(), Three()[2]));
  CHECK_OK(dropped->Abandon());
  CHECK_OK(dropped->EndStep());
}

TEST(weight_decay_counts_steps_and_not_pushes) {
  TableConfig config = Config();
  config.accessor.weight_decay = 0.25f;
  const Floats expected = RowsOfWholePushes(Three(), config);
  const auto table = Opened(config);
  for (int step = 0; step < 2; ++step) {
    PullTimes(table.get(), 3);
    for (size_t i = 3; i != 0; --i) CHECK_OK(InStep(table.get(), Three()[i - 1]));
  }
  CHECK_EQ(Rows(table.get()) == expected, true);
}

TEST(extended_and_plain_pushes_of_a_step_are_summed) {
  const TableConfig config = Config(kExpand);
  const std::vector<One> extended = {PushOf({5, 9}, 0.5f, kWidth + kExpand),
                                     PushOf({9, 12}, 0.25f, kWidth + kExpand)};
  const Floats expected = RowsOfWholePushes(extended, config);
  const auto table = Opened(config);
  for (int step = 0; step < 2; ++step) {
    PullTimes(table.get(), 2);
    for (size_t i = 2; i != 0; --i) CHECK_OK(InStep(table.get(), extended[i - 1]));
  }
  CHECK_EQ(Rows(table.get()) == expected, true);

  // A plain push leaves expand as it is.
  const Floats before = Rows(table.get());
  PullTimes(table.get(), 2);
  for (int i = 0; i < 2; ++i) CHECK_OK(InStep(table.get(), PushOf({5}, 0.5f)));
  const Floats after = Rows(table.get());
  CHECK_EQ(after[0], before[0] + 2);
  for (size_t c = 0; c < kExpand; ++c) CHECK_EQ(after[kWidth + c], before[kWidth + c]);
}

TEST(a_push_that_is_not_finite_fails_and_the_rest_of_the_step_is_applied) {
  const auto table = Opened(Config());
  PullTimes(table.get(), 2);
  One bad = PushOf({5, 9}, 0.5f);
  bad.grad[kWidth + 3] = NAN;
  CHECK_CODE(InStep(table.get(), bad), Code::kNotFinite);
  CHECK_OK(InStep(table.get(), PushOf({5}, 0.5f)));
  CHECK_EQ(Rows(table.get())[0], 2.0f);
  CHECK_EQ(Rows(table.get())[kWidth], 0.0f);
}

TEST(a_rank_sends_the_sums_of_a_step) {
  BatchTableConfig config;
  config.embedx_dim = kDim;
  BatchTable batch(config);
  const Keys keys = {KeyOf(5), KeyOf(9)};
  const int32_t ids[] = {0, 1, 1};
  const Floats grad(3 * kWidth, 0.5f);
  const auto push = [&]() -> Status {
    Result<StepPush> begun = batch.BeginPush();
    if (!begun.ok()) return begun.status();
    PBX_RETURN_IF_ERROR(batch.Push(ids, 3, grad.data(), 2.0f));
    return begun.value().End();
  };
  for (int step = 0; step < 3; ++step) {
    CHECK_OK(batch.Prepare(1, keys.data(), keys.size(), false));
    CHECK_OK(batch.Open());
    CHECK_OK(batch.BeginPull().status());
    CHECK_OK(batch.BeginPull().status());
    for (int i = 0; i < (step == 0 ? 2 : 1); ++i) { CHECK_OK(push()); }
    if (step == 1) continue;  // the batch is dropped with the push that is held
    CHECK_OK(batch.EndPushes());
    const float* const merged = batch.merged();
    CHECK_EQ(merged[0], step == 0 ? 1.0f : 0.5f);
    CHECK_EQ(merged[2], step == 0 ? 2.0f : 1.0f);
    CHECK_EQ(merged[kWidth + 2], step == 0 ? 4.0f : 2.0f);
    CHECK_CODE(push(), Code::kFailedPrecondition);
  }
}

}  // namespace
}  // namespace pbx
