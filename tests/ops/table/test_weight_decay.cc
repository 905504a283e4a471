// Weight decay that is applied when a row is needed equals a decay of all rows in each step.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>
#include <string>
#include <thread>

#include "../store/scratch.h"
#include "check.h"
#include "pass_model.h"
#include "table/table.h"

using namespace pbx;
using test::Floats;
using test::Keys;
using test::Model;

namespace {

constexpr float kDecay = 0.2f;
constexpr int kDim = 5;

TableConfig Config(RuleKind kind, float decay) {
  TableConfig config = test::SmallConfig();
  config.accessor.weight_decay = decay;
  config.accessor.embed.kind = config.accessor.embedx.kind = kind;
  config.accessor.embed.learning_rate = 0.04f;
  config.accessor.embedx.learning_rate = 0.02f;
  config.mem_budget_bytes = 64 << 20;
  return config;
}

// One instance of three slots with a feasign each.
test::Batch BatchOf(const Keys& feasigns, uint64_t step) {
  test::Batch batch;
  batch.instances = 1;
  batch.slots = feasigns.size();
  batch.feasigns = feasigns;
  batch.show_click = {1, static_cast<float>(step % 2)};
  for (size_t i = 0; i <= feasigns.size(); ++i) batch.offsets.push_back(static_cast<int32_t>(i));
  const size_t width = 3 + kDim;
  for (size_t i = 0; i < feasigns.size() * width; ++i) {
    batch.grad.push_back(0.5f * std::sin(static_cast<float>(i + 7 * step)));
  }
  return batch;
}

test::Pass PassOf(uint64_t first, uint64_t last, uint64_t steps) {
  test::Pass pass;
  pass.day = 20000;
  for (uint64_t f = first; f <= last; ++f) pass.keys.push_back(KeyOf(f));
  std::sort(pass.keys.begin(), pass.keys.end());
  pass.slots.assign(pass.keys.size(), 0);
  test::Random random(first);
  for (uint64_t step = 0; step < steps; ++step) {
    std::set<uint64_t> chosen;
    while (chosen.size() < 3) chosen.insert(first + random.Below(last - first + 1));
    pass.batches.push_back(BatchOf(Keys(chosen.begin(), chosen.end()), step));
  }
  return pass;
}

void CheckNear(const Floats& found, const Floats& expected) {
  CHECK_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) CHECK(std::fabs(found[i] - expected[i]) < 1e-6f);
}

Floats Pulled(Table* table, const Keys& feasigns) {
  const test::Ints ids = test::Translated(table, feasigns);
  Floats out(feasigns.size() * (3 + kDim));
  CHECK_OK(table->Pull(ids.data(), ids.size(), out.data()));
  return out;
}

Keys Range(uint64_t first, uint64_t last) {
  Keys feasigns;
  for (uint64_t f = first; f <= last; ++f) feasigns.push_back(f);
  return feasigns;
}

TEST(a_lazy_decay_equals_one_of_all_rows_in_each_step) {
  for (const RuleKind kind : {RuleKind::kNaive, RuleKind::kAdaGrad, RuleKind::kAdam}) {
    const TableConfig config = Config(kind, kDecay);
    const auto table = test::OpenTable(config);
    Model model(Config(kind, 0));  // its rows are scaled in each step
    // Rows 1 to 9 are absent from the second pass, rows 31 to 40 from the first.
    uint64_t step = 0;
    for (const test::Pass& pass : {PassOf(1, 30, 250), PassOf(10, 40, 250)}) {
      CHECK_OK(table->Begin(test::StageTrain(table.get(), pass).stamp));
      for (const test::Batch& batch : pass.batches) {
        const float rate = step++ % 3 == 0 ? 0.5f : 1.0f;  // a schedule
        CHECK_OK(table->SetRate(rate));
        model.SetRate(rate);
        CheckNear(Pulled(table.get(), batch.feasigns),
                  test::PulledOf(model, &pass, batch.feasigns));
        test::PushBatch(table.get(), batch);
        model.Push(pass, batch);
        model.Scale(1 - double{0.04f} * rate * kDecay, 1 - double{0.02f} * rate * kDecay);
      }
      CHECK_OK(table->End());
      test::Commit(table.get());
      model.EndPass(0);
    }
    const Keys all = Range(1, 40);
    Keys keys;
    for (const uint64_t f : all) keys.push_back(KeyOf(f));
    std::sort(keys.begin(), keys.end());
    const auto staged =
        table->Stage(keys.data(), nullptr, keys.size(), Purpose::kEvaluate, 0).value();
    CHECK_OK(table->Begin(staged.stamp));
    CheckNear(Pulled(table.get(), all), test::PulledOf(model, nullptr, all));
  }
}

TEST(the_end_of_a_pass_adds_one_event_that_a_merge_applies_once_it_is_durable) {
  const test::Scratch scratch;
  TableConfig config = Config(RuleKind::kNaive, kDecay);
  config.ssd_folder = scratch.path();
  const auto table = test::OpenTable(config);
  std::vector<SegmentDescriptor> segments;
  std::vector<LifeEvent> events;
  const auto train = [&](const test::Pass& pass) {
    CHECK_OK(table->Begin(test::StageTrain(table.get(), pass).stamp));
    for (const test::Batch& batch : pass.batches) test::PushBatch(table.get(), batch);
    CHECK_OK(table->End());
    for (const LifeEvent& event : table->TakePassEvents()) events.push_back(event);
    CHECK(table->TakePassEvents().empty());
    for (const SegmentDescriptor& one : test::Commit(table.get())) segments.push_back(one);
  };
  train(PassOf(1, 20, 9));
  table->NoteDurableEvents();
  train(PassOf(1, 20, 4));
  table->NoteDurableEvents();
  const auto before = segments;
  const std::vector<LifeEvent> of_before = events;
  const std::string digest = test::DigestOf(test::OpenTable(config, before).get());
  train(PassOf(50, 70, 9));  // its event is not durable yet
  CHECK_EQ(events.size(), 3u);
  CHECK_EQ(events[2].seq, 3u);
  CHECK(std::fabs(events[2].embed_decay - std::pow(1 - 0.04f * kDecay, 9.0f)) < 1e-6f);
  CHECK(std::fabs(events[2].embedx_decay - std::pow(1 - 0.02f * kDecay, 9.0f)) < 1e-6f);
  const auto merged = table->Merge({before[0].id, before[1].id}, false);
  CHECK_OK(merged.status());
  // A crash now: the merge is in a version, the last pass and its event are not.
  TableConfig reopened = config;
  reopened.events = of_before;
  const auto with = test::OpenTable(reopened, merged.value().segments);
  const auto without = test::OpenTable(reopened, before);
  CHECK_EQ(test::DigestOf(with.get()), test::DigestOf(without.get()));
  CHECK(test::DigestOf(without.get()) != digest);  // `digest` was read without the events
}

TEST(a_new_row_begins_to_decay_with_its_first_batch) {
  TableConfig config = Config(RuleKind::kNaive, kDecay);
  config.accessor.embed.initial_range = 0.5f;
  const auto table = test::OpenTable(config);
  const test::Pass pass = PassOf(1, 30, 20);
  CHECK_OK(table->Begin(test::StageTrain(table.get(), pass).stamp));
  test::PushBatch(table.get(), BatchOf({7, 8, 9}, 0));
  const Floats first = Pulled(table.get(), {7});
  for (uint64_t step = 0; step < 20; ++step) {
    test::PushBatch(table.get(), BatchOf({20, 21, 22}, step));
  }
  const float scale = std::pow(1 - 0.04f * kDecay, 20.0f);
  CHECK(std::fabs(Pulled(table.get(), {7})[2] - first[2] * scale) < 1e-6f);
  Floats fresh(static_cast<size_t>(table->layout().words()));
  accessor::Create(table->config().accessor, KeyOf(10), 0, fresh.data());
  CHECK_EQ(Pulled(table.get(), {10})[2], fresh[RowLayout::kEmbed]);
}

TEST(expand_decays_before_a_push) {
  TableConfig config = Config(RuleKind::kNaive, kDecay);
  config.accessor.layout.expand_dim = 3;
  config.accessor.expand.kind = RuleKind::kNaive;
  config.accessor.expand.initial_range = 0.1f;
  config.accessor.expand.learning_rate = 0.02f;
  config.accessor.embedx_threshold = 0;
  constexpr size_t kPlain = 3 + kDim, kWide = kPlain + 3;
  const auto table = test::OpenTable(config);
  CHECK_OK(table->Begin(test::StageTrain(table.get(), PassOf(1, 9, 0)).stamp));
  const auto push = [&](const Keys& feasigns) {
    const test::Ints ids = test::Translated(table.get(), feasigns);
    Floats grad(ids.size() * kWide, 0.5f);
    for (size_t i = 0; i < ids.size(); ++i) grad[i * kWide] = 1;  // shows
    CHECK_OK(table->PushExtended(ids.data(), ids.size(), grad.data(), 1.0f));
  };
  const auto expand_of = [&](uint64_t feasign) {
    const test::Ints ids = test::Translated(table.get(), {feasign});
    Floats out(kWide);
    CHECK_OK(table->PullExtended(ids.data(), 1, out.data()));
    return Floats(out.begin() + kPlain, out.end());
  };
  push({7});  // creates the row's expand
  const Floats before = expand_of(7);
  for (int step = 0; step < 20; ++step) push({1, 2});
  push({7});
  const Floats after = expand_of(7);
  const float factor = 1 - 0.02f * kDecay;
  for (size_t c = 0; c < 3; ++c) {
    CHECK(before[c] != 0);
    const float expected = (before[c] * std::pow(factor, 20.0f) - 0.02f * 0.5f) * factor;
    CHECK(std::fabs(after[c] - expected) < 1e-6f);
  }
}

// A pass deletes nothing, so a row that died before it is as new in it and in the pass staged while
// it trains. The events of the passes do not touch such a row before its first batch.
TEST(a_dead_row_begins_to_decay_with_its_first_batch) {
  const test::Scratch scratch;
  TableConfig config = Config(RuleKind::kNaive, kDecay);
  config.accessor.embed.initial_range = 0.5f;
  config.ssd_folder = scratch.path();
  config.mem_budget_bytes = 1 << 20;
  const auto table = test::OpenTable(config);
  Floats fresh(static_cast<size_t>(table->layout().words()));
  accessor::Create(table->config().accessor, KeyOf(7), 0, fresh.data());
  test::Pass pass = PassOf(1, 100000, 0);
  pass.batches = {BatchOf({7, 8, 9}, 0), BatchOf({8, 9, 10}, 1)};
  CHECK_OK(table->Begin(test::StageTrain(table.get(), pass).stamp));
  test::PushBatch(table.get(), pass.batches[0]);
  CHECK_OK(table->End());
  test::Commit(table.get());
  LifeEvent shrink;
  shrink.seq = 2;
  shrink.kind = LifeKind::kShrink;
  shrink.day = pass.day;
  shrink.min_score = 1e6f;
  CHECK_OK(table->AppendEvents({shrink}));
  for (int round = 0; round < 20; round += test::kSanitized ? 4 : 1) {
    CHECK_OK(table->Begin(test::StageTrain(table.get(), pass).stamp));
    test::PushBatch(table.get(), pass.batches[1]);
    StagedPass next;
    std::thread stages([&] { next = test::StageTrain(table.get(), pass); });
    std::this_thread::sleep_for(std::chrono::milliseconds(round));  // before, in and after Stage
    CHECK_OK(table->End());
    stages.join();
    test::Commit(table.get());
    CHECK_OK(table->Begin(next.stamp));
    CHECK_EQ(Pulled(table.get(), {7})[2], fresh[RowLayout::kEmbed]);
    CHECK_OK(table->End());
    test::Commit(table.get());
  }
}

TEST(a_pull_changes_nothing) {
  const TableConfig config = Config(RuleKind::kNaive, kDecay);
  const test::Pass pass = PassOf(1, 9, 40);
  std::vector<std::string> digests;
  for (const bool pulls : {true, false}) {
    const auto table = test::OpenTable(config);
    CHECK_OK(table->Begin(test::StageTrain(table.get(), pass).stamp));
    for (const test::Batch& batch : pass.batches) {
      if (pulls) Pulled(table.get(), Range(1, 9));
      test::PushBatch(table.get(), batch);
    }
    CHECK_OK(table->End());
    test::Commit(table.get());
    digests.push_back(test::DigestOf(table.get()));
  }
  CHECK_EQ(digests[0], digests[1]);
}

// The product of these steps is 1e-400, which no double can hold.
TEST(factors_are_right_however_small_the_product_of_a_pass_becomes) {
  AccessorConfig config;
  config.embed.learning_rate = 0.875f;
  config.embedx.learning_rate = 0.5f;
  config.weight_decay = 1;
  DecayClock clock;
  std::vector<Floats> rows;
  for (uint32_t step = 0; step <= 450; ++step) {
    Floats row(16);
    SetWord(row.data(), RowLayout::kStep, step);
    rows.push_back(row);
    for (uint32_t back = 0; back <= std::min(step, 40u); ++back) {
      const Factors by = clock.decay().Of(rows[step - back].data());
      CHECK(std::fabs(by.embed / std::pow(0.125, back) - 1) < 1e-6);
      CHECK(std::fabs(by.embedx / std::pow(0.5, back) - 1) < 1e-6);
    }
    CHECK(step < 300 || clock.decay().Of(rows[0].data()).embed == 0);
    clock.Tick(config);
  }
  CHECK_EQ(static_cast<float>(clock.total().embed), 0.0f);
}

TEST(rows_of_16_bits_have_no_weight_decay) {
  TableConfig config = Config(RuleKind::kNaive, kDecay);
  config.precision = Precision::kBfloat16;
  CHECK_CODE(Table::Open(config, {}).status(), Code::kInvalidArgument);
}

}  // namespace
