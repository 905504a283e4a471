// The kernels' promises: every vector path gives the same bits, those bits are right, and no thread
// count changes them. What a caller gets wrong is an error.
#include "table/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "../rule/float64_rules.h"
#include "../store/scratch.h"
#include "check.h"
#include "pass_model.h"
#include "row/plan.h"
#include "table/table.h"

namespace pbx {
namespace {

using test::Floats;
using test::Ints;
using test::Keys;
using test::Random;
using test::Wide;
using test::Wides;

constexpr RuleKind kRules[] = {RuleKind::kNaive, RuleKind::kAdaGrad, RuleKind::kAdam};

// The paths this processor has; plain first.
std::vector<const Kernels*> Paths() {
  std::vector<const Kernels*> paths;
  for (const char* name : {"plain", "avx2", "avx512"}) {
    const Status selected = SelectKernels(name);
    if (selected.ok()) {
      paths.push_back(&ActiveKernels());
      CHECK_EQ(std::string(ActiveKernels().name), name);
    } else {
      std::cout << "skipped: " << selected.message() << std::endl;
    }
  }
  CHECK_OK(SelectKernels("auto"));
  CHECK(&ActiveKernels() == paths.back());
  return paths;
}

// Rows in every state, and a batch over them with padding, repeats and empty segments.
struct Fixture {
  static constexpr size_t kRows = 80, kInstances = 30, kSlots = 3;

  Fixture(RuleKind kind, int embedx_dim, bool with_cvm) : dim(embedx_dim), use_cvm(with_cvm) {
    config.embed.kind = kind;
    config.embedx.kind = kind;
    config.nonclk_coeff = 0.25f;  // scores are exact, so no threshold is a matter of rounding
    config.layout.embedx_dim = dim;
    config.layout.embed_state = rule::StateSize(kind, 1);
    config.layout.embedx_state = rule::StateSize(kind, dim);
    Random random(static_cast<uint64_t>(dim) * 8 + static_cast<uint64_t>(kind));
    const size_t words = static_cast<size_t>(config.layout.words());
    for (size_t r = 0; r < kRows; ++r) {
      keys.push_back(random.Next());
      Floats row(words);
      accessor::Create(config, keys.back(), 3, row.data());
      row[RowLayout::kShow] = static_cast<float>(random.Below(45));
      row[RowLayout::kEmbed] = random.Uniform();
      if (r % 3 == 0) {  // with embedx, and after some pushes
        const Floats g(1 + static_cast<size_t>(dim), 0.0f);
        accessor::Push(config, keys.back(), 40.0f, 1.0f, g.data(), 1, row.data());
        Floats moved(g.size());
        for (int push = 0; push < 3; ++push) {
          for (float& x : moved) x = random.Uniform();
          accessor::Push(config, keys.back(), 2.0f, 1.0f, moved.data(), 1, row.data());
        }
        for (int c = 0; c < dim; ++c) {
          row[static_cast<size_t>(config.layout.embedx_at() + c)] += random.Uniform();
        }
      }
      rows.insert(rows.end(), row.begin(), row.end());
    }
    offsets = {0};
    for (size_t s = 0; s < kInstances * kSlots; ++s) {
      for (uint64_t n = s % 7 == 0 ? 0 : random.Below(6); n > 0; --n) {
        ids.push_back(random.Below(8) == 0 ? -1 : static_cast<int32_t>(random.Below(kRows)));
      }
      offsets.push_back(static_cast<int32_t>(ids.size()));
    }
    for (size_t i = 0; i < kInstances; ++i) {
      show_click.push_back(static_cast<float>(random.Below(3)));
      show_click.push_back(static_cast<float>(random.Below(2)));
    }
    grad.resize(kInstances * kSlots * Width());
    for (float& g : grad) g = random.Uniform();
    BuildPlan(ids.data(), offsets.data(), kInstances * kSlots, 1, &plan);
  }

  size_t Width() const { return static_cast<size_t>(dim) + (use_cvm ? 3 : 1); }
  const float* Row(const Floats& of, size_t id) const {
    return of.data() + id * static_cast<size_t>(config.layout.words());
  }
  RowBlock Block(Floats* of, std::vector<uint8_t>* touched) const {
    return {reinterpret_cast<char*>(of->data()), keys.data(), touched->data(),
            config.layout.bytes(), &config};
  }
  GradientView Gradient() const {
    GradientView view;
    view.grad = grad.data();
    view.stride = Width();
    view.weights_at = use_cvm ? 2 : 0;
    view.show_click = show_click.data();
    view.show_click_stride = 2;
    view.segments_per_instance = kSlots;
    view.scale = static_cast<float>(kInstances);
    return view;
  }

  AccessorConfig config;
  int dim;
  bool use_cvm;
  Keys keys;
  Floats rows;
  Ints ids, offsets, plan;
  Floats show_click, grad;
};

struct Outputs {
  Floats pulled, pooled, rows;
  std::vector<uint8_t> touched;
};

bool SameBits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

Outputs Run(const Kernels& kernels, const Fixture& f) {
  Outputs out;
  out.rows = f.rows;
  out.touched.assign(Fixture::kRows, 0);
  const RowBlock block = f.Block(&out.rows, &out.touched);
  const size_t segments = Fixture::kInstances * Fixture::kSlots;
  out.pulled.assign(f.ids.size() * static_cast<size_t>(3 + f.dim), -9.0f);
  out.pooled.assign(segments * f.Width(), -9.0f);
  kernels.pull(block, f.ids.data(), f.ids.size(), out.pulled.data());
  kernels.pull_pooled(block, f.ids.data(), f.offsets.data(), 0, segments, f.use_cvm,
                      out.pooled.data());
  const Result<PlanView> plan = ViewPlan(f.plan.data(), f.plan.size(), Fixture::kRows, segments);
  CHECK_OK(plan.status());
  kernels.push(block, plan.value().rows, plan.value().starts, plan.value().segments, 0,
               plan.value().unique, f.Gradient(), 20000);
  return out;
}

// [show, click, embed_w, embedx...] of a row, or zeros.
Wides PulledRow(const Fixture& f, int32_t id) {
  Wides columns(static_cast<size_t>(3 + f.dim));
  if (id < 0) return columns;
  const float* row = f.Row(f.rows, static_cast<size_t>(id));
  columns[0] = row[RowLayout::kShow];
  columns[1] = row[RowLayout::kClick];
  columns[2] = row[RowLayout::kEmbed];
  for (int c = 0; c < f.dim; ++c) {
    columns[static_cast<size_t>(3 + c)] = row[f.config.layout.embedx_at() + c];
  }
  return columns;
}

void Add(Wide* sum, const Wide& x) { *sum = Wide(sum->value + x.value, sum->size + x.size); }

size_t WrongPulls(const Fixture& f, const Outputs& out) {
  size_t wrong = 0;
  const size_t width = static_cast<size_t>(3 + f.dim);
  for (size_t i = 0; i < f.ids.size(); ++i) {
    const Wides expected = PulledRow(f, f.ids[i]);
    for (size_t c = 0; c < width; ++c) {
      wrong += static_cast<double>(out.pulled[i * width + c]) != expected[c].value;
    }
  }
  return wrong;
}

size_t WrongPools(const Fixture& f, const Outputs& out) {
  size_t wrong = 0;
  for (size_t s = 0; s + 1 < f.offsets.size(); ++s) {
    Wides sum(static_cast<size_t>(3 + f.dim));
    for (int32_t i = f.offsets[s]; i < f.offsets[s + 1]; ++i) {
      const Wides row = PulledRow(f, f.ids[static_cast<size_t>(i)]);
      for (size_t c = 0; c < row.size(); ++c) Add(&sum[c], row[c]);
    }
    if (f.use_cvm) {
      const double shows = std::log(sum[0].value + 1), clicks = std::log(sum[1].value + 1);
      sum[0] = shows;
      sum[1] = Wide(clicks - shows, clicks + shows);
    } else {
      sum.erase(sum.begin(), sum.begin() + 2);
    }
    for (size_t c = 0; c < sum.size(); ++c) wrong += !sum[c].Agrees(out.pooled[s * f.Width() + c]);
  }
  return wrong;
}

// One row after its push, in float64.
size_t WrongRow(const Fixture& f, const float* before, const float* after, uint64_t key,
                double show, double click, const Wides& g) {
  const RowLayout& layout = f.config.layout;
  const auto wides = [&](int at, int n) { return Wides(before + at, before + at + n); };
  const auto agree = [&](const Wides& expected, int at) {
    size_t wrong = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      wrong += !expected[i].Agrees(after[static_cast<size_t>(at) + i]);
    }
    return wrong;
  };
  size_t wrong = static_cast<double>(after[RowLayout::kShow]) != before[RowLayout::kShow] + show;
  wrong += static_cast<double>(after[RowLayout::kClick]) != before[RowLayout::kClick] + click;
  wrong += GetWord(after, RowLayout::kDay) != 20000u;
  const double scale = show > 0 ? show : 1;
  Wides w = wides(RowLayout::kEmbed, 1), state = wides(layout.embed_state_at(), layout.embed_state);
  test::Step(f.config.embed, {g[0]}, scale, &w, &state);
  wrong += agree(w, RowLayout::kEmbed) + agree(state, layout.embed_state_at());
  w = wides(layout.embedx_at(), f.dim);
  state = wides(layout.embedx_state_at(), layout.embedx_state);
  const double shows = after[RowLayout::kShow], clicks = after[RowLayout::kClick];
  if (HasEmbedx(before)) {
    test::Step(f.config.embedx, Wides(g.begin() + 1, g.end()), scale, &w, &state);
  } else if ((shows - clicks) / 4 + clicks >= 10) {
    wrong += !HasEmbedx(after);
    for (size_t c = 0; c < w.size(); ++c) {
      w[c] = accessor::InitialWeight(f.config.seed, key, static_cast<uint32_t>(c + 1),
                                     f.config.embedx.initial_range);
    }
    Floats fresh(state.size() + 1);
    rule::InitState(f.config.embedx, f.dim, fresh.data());
    std::copy(fresh.begin(), fresh.end() - 1, state.begin());
  }
  return wrong + agree(w, layout.embedx_at()) + agree(state, layout.embedx_state_at());
}

size_t WrongPushes(const Fixture& f, const Outputs& out) {
  size_t wrong = 0;
  for (size_t id = 0; id < Fixture::kRows; ++id) {
    double show = 0, click = 0;
    bool pushed = false;
    Wides g(static_cast<size_t>(1 + f.dim));
    for (size_t s = 0; s + 1 < f.offsets.size(); ++s) {
      for (int32_t i = f.offsets[s]; i < f.offsets[s + 1]; ++i) {
        if (f.ids[static_cast<size_t>(i)] != static_cast<int32_t>(id)) continue;
        pushed = true;
        show += f.show_click[s / Fixture::kSlots * 2];
        click += f.show_click[s / Fixture::kSlots * 2 + 1];
        const float* from = &f.grad[s * f.Width() + (f.use_cvm ? 2 : 0)];
        for (size_t c = 0; c < g.size(); ++c) {
          Add(&g[c], static_cast<double>(from[c]) * Fixture::kInstances);
        }
      }
    }
    const float* before = f.Row(f.rows, id);
    const float* after = f.Row(out.rows, id);
    wrong += out.touched[id] != pushed;
    wrong += pushed ? WrongRow(f, before, after, f.keys[id], show, click, g)
                    : std::memcmp(before, after, f.config.layout.bytes()) != 0;
  }
  return wrong;
}

TEST(every_path_gives_the_bits_of_the_plain_one_and_they_are_right) {
  const std::vector<const Kernels*> paths = Paths();
  for (const RuleKind kind : kRules) {
    for (const int dim : {1, 3, 8, 16, 64, 253}) {
      for (const bool use_cvm : {true, false}) {
        const Fixture f(kind, dim, use_cvm);
        const Outputs plain = Run(*paths[0], f);
        CHECK_EQ(WrongPulls(f, plain), 0u);
        CHECK_EQ(WrongPools(f, plain), 0u);
        CHECK_EQ(WrongPushes(f, plain), 0u);
        for (const Kernels* path : paths) {
          const Outputs out = Run(*path, f);
          CHECK(SameBits(out.pulled, plain.pulled));
          CHECK(SameBits(out.pooled, plain.pooled));
          CHECK(SameBits(out.rows, plain.rows));
          CHECK(out.touched == plain.touched);
        }
      }
    }
  }
}

TEST(a_kernel_asked_for_a_part_writes_that_part_alone) {
  const Fixture f(RuleKind::kAdaGrad, 8, true);
  for (const Kernels* path : Paths()) {
    const Outputs whole = Run(*path, f);
    Outputs parts;
    parts.rows = f.rows;
    parts.touched.assign(Fixture::kRows, 0);
    const RowBlock block = f.Block(&parts.rows, &parts.touched);
    parts.pooled.assign(whole.pooled.size(), -9.0f);
    path->pull_pooled(block, f.ids.data(), f.offsets.data(), 10, 20, true, parts.pooled.data());
    for (size_t i = 0; i < parts.pooled.size(); ++i) {
      const size_t segment = i / f.Width();
      CHECK_EQ(parts.pooled[i], segment >= 10 && segment < 20 ? whole.pooled[i] : -9.0f);
    }
    const PlanView plan = ViewPlan(f.plan.data(), f.plan.size(), Fixture::kRows, 90).value();
    for (const auto& [begin, end] : {std::pair<size_t, size_t>{40, plan.unique}, {0, 40}}) {
      path->push(block, plan.rows, plan.starts, plan.segments, begin, end, f.Gradient(), 20000);
    }
    CHECK(SameBits(parts.rows, whole.rows));
  }
}

TEST(an_unknown_path_is_refused_and_changes_nothing) {
  const Kernels* const before = &ActiveKernels();
  for (const char* name : {"", "sse", "AVX2", "avx"}) {
    const Status status = SelectKernels(name);
    CHECK_CODE(status, Code::kInvalidArgument);
    CHECK(test::Contains(status.message(), "avx512"));
  }
  CHECK(&ActiveKernels() == before);
}

// ---- Through a table

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
  for (const Kernels* path : Paths()) {
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
        CHECK(SameBits(pooled, expected));
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
    CHECK(test::Contains(open.Pull(ids).message(), std::to_string(bad)));
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
      if (kind == 1) word += static_cast<int32_t>(random.Below(5)) - 2;
      if (kind == 2) word = -word;
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
