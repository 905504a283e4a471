// The kernels' promises: every vector path gives the same bits, and those bits are right.
#include "table/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "../row/literal_sum.h"
#include "../rule/float64_rules.h"
#include "../store/scratch.h"
#include "check.h"
#include "every_path.h"
#include "pass_model.h"
#include "row/plan.h"

namespace pbx {
namespace {

using test::Floats;
using test::Ints;
using test::Keys;
using test::Paths;
using test::Random;
using test::SameBits;
using test::Wide;
using test::Wides;

constexpr RuleKind kRules[] = {RuleKind::kNaive,     RuleKind::kAdaGrad, RuleKind::kStdAdaGrad,
                               RuleKind::kAdaGradV2, RuleKind::kAdam,    RuleKind::kSharedAdam,
                               RuleKind::kFtrl};

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
  RowBlock Block(Floats* of) const {
    return {reinterpret_cast<char*>(of->data()), keys.data(), config.layout.bytes(), &config};
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
};

Outputs Run(const Kernels& kernels, const Fixture& f, const Decay* decay = nullptr) {
  Outputs out;
  out.rows = f.rows;
  RowBlock block = f.Block(&out.rows);
  block.decay = decay;
  const size_t segments = Fixture::kInstances * Fixture::kSlots;
  out.pulled.assign(f.ids.size() * static_cast<size_t>(3 + f.dim), -9.0f);
  out.pooled.assign(segments * f.Width(), -9.0f);
  kernels.pull(block, f.ids.data(), f.ids.size(), out.pulled.data());
  kernels.pull_pooled(block, f.ids.data(), f.offsets.data(), 0, segments, f.use_cvm,
                      {out.pooled.data(), Fixture::kSlots, 0});
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
  const double counted = static_cast<double>(accessor::CountedOf(f.config, before));
  size_t wrong =
      static_cast<double>(after[RowLayout::kShow]) != before[RowLayout::kShow] + counted * show;
  wrong +=
      static_cast<double>(after[RowLayout::kClick]) != before[RowLayout::kClick] + counted * click;
  wrong += GetWord(after, RowLayout::kDay) != 20000u;
  const double scale = show > 0 ? show : 1;
  Wides w = wides(RowLayout::kEmbed, 1), state = wides(layout.embed_state_at(), layout.embed_state);
  const float rate = accessor::RateOf(f.config, before);
  test::Step(accessor::RuleFor(f.config.embed, rate), {g[0]}, scale, &w, &state);
  wrong += agree(w, RowLayout::kEmbed) + agree(state, layout.embed_state_at());
  w = wides(layout.embedx_at(), f.dim);
  state = wides(layout.embedx_state_at(), layout.embedx_state);
  const double shows = after[RowLayout::kShow], clicks = after[RowLayout::kClick];
  if (HasEmbedx(before)) {
    test::Step(accessor::RuleFor(f.config.embedx, rate), Wides(g.begin() + 1, g.end()), scale, &w,
               &state);
  } else if ((shows - clicks) / 4 + clicks >= 10) {
    wrong += !HasEmbedx(after);
    for (size_t c = 0; c < w.size(); ++c) {
      w[c] = accessor::InitialWeight(f.config.seed, key, static_cast<uint32_t>(c + 1),
                                     f.config.embedx.initial_range);
    }
    Floats fresh(state.size() + 1);
    const Floats weights(after + layout.embedx_at(), after + layout.embedx_at() + f.dim);
    rule::InitState(f.config.embedx, f.dim, weights.data(), fresh.data());
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
    wrong += ((GetWord(after, 0) >> 16 & kTouched) != 0) != pushed;
    wrong += pushed ? WrongRow(f, before, after, f.keys[id], show, click, g)
                    : std::memcmp(before, after, f.config.layout.bytes()) != 0;
  }
  return wrong;
}

TEST(every_path_gives_the_bits_of_the_plain_one_and_they_are_right) {
  const std::vector<const Kernels*> paths = Paths();
  for (const RuleKind kind : kRules) {
    for (const int dim : {1, 3, 4, 7, 8, 13, 15, 16, 17, 32, 63, 64, 65, 128, 253}) {
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
        }
      }
    }
  }
}

// Weight decay after two steps. Its factors are powers of two, so products are exact.
struct TwoSteps {
  TwoSteps() {
    decay.inverses = inverses;
    decay.product = {0.25, 0.0625};
    decay.step = 2;
  }

  const Decay::Product inverses[3] = {{1, 1}, {2, 4}, {4, 16}};
  Decay decay;
};

// Gives the rows of the fixture an expand part.
void AddExpand(Fixture* f) {
  const auto words = static_cast<size_t>(f->config.layout.words());
  f->config.layout.expand_dim = 3;
  f->config.expand.kind = f->config.embed.kind;
  f->config.layout.expand_state = rule::StateSize(f->config.embed.kind, 3);
  const auto more = static_cast<size_t>(f->config.layout.words()) - words;
  Random random(9);
  Floats rows;
  for (size_t r = 0; r < Fixture::kRows; ++r) {
    const float* const row = f->rows.data() + r * words;
    rows.insert(rows.end(), row, row + words);
    for (size_t i = 0; i < more; ++i) rows.push_back(HasEmbedx(row) ? random.Uniform() : 0.0f);
  }
  f->rows = rows;
}

// A pull and a push of rows that lag behind read and leave what they do with rows that do not lag.
TEST(weight_decay_is_applied_to_what_a_kernel_reads_and_to_rows_that_it_changes) {
  const TwoSteps two;
  for (const RuleKind kind : {RuleKind::kNaive, RuleKind::kAdaGrad, RuleKind::kAdam}) {
    for (const int dim : {1, 3, 4, 7, 8, 15, 16, 17, 32, 63, 64, 65, 253}) {
      Fixture f(kind, dim, true);
      AddExpand(&f);
      const auto words = static_cast<size_t>(f.config.layout.words());
      Fixture scaled = f;
      for (size_t r = 0; r < Fixture::kRows; ++r) {
        const uint32_t step = r % 4 == 3 ? UINT32_MAX : static_cast<uint32_t>(r % 4);
        SetWord(f.rows.data() + r * words, RowLayout::kStep, step);
        float* const row = scaled.rows.data() + r * words;
        const float by = step == 0 ? 0.25f : (step == 1 ? 0.5f : 1.0f);
        accessor::ScaleWeights(f.config.layout, by, by * by, row);
        SetWord(row, RowLayout::kStep, 2);  // as after a push
      }
      Ints alone(Fixture::kRows), ends(alone.size() + 1);  // one id per segment
      for (size_t i = 0; i < alone.size(); ++i) alone[i] = static_cast<int32_t>(i);
      for (size_t i = 0; i < ends.size(); ++i) ends[i] = static_cast<int32_t>(i);
      Floats by_id(f.ids.size());
      for (size_t i = 0; i < by_id.size(); ++i) by_id[i] = static_cast<float>(i % 5) / 3.0f;
      for (const Kernels* path : Paths()) {
        const auto pool = [&](Fixture* of, const Decay* decay, const Ints& ids, const Ints& offsets,
                              size_t extra, const float* factors) {
          RowBlock block = of->Block(&of->rows);
          block.decay = decay;
          const size_t segments = offsets.size() - 1, size = segments * (of->Width() + extra);
          Floats out(2 * size);
          for (const bool use_cvm : {true, false}) {
            PooledOutput output{out.data() + (use_cvm ? 0 : size), 1, extra};
            output.factors = factors;
            path->pull_pooled(block, ids.data(), offsets.data(), 0, segments, use_cvm, output);
          }
          return out;
        };
        for (const size_t extra : {0u, 2u}) {
          CHECK(SameBits(pool(&f, &two.decay, f.ids, f.offsets, extra, nullptr),
                         pool(&scaled, nullptr, f.ids, f.offsets, extra, nullptr)));
          CHECK(SameBits(pool(&f, &two.decay, alone, ends, extra, nullptr),
                         pool(&scaled, nullptr, alone, ends, extra, nullptr)));
          CHECK(SameBits(pool(&f, &two.decay, f.ids, f.offsets, extra, by_id.data()),
                         pool(&scaled, nullptr, f.ids, f.offsets, extra, by_id.data())));
        }
        const Outputs found = Run(*path, f, &two.decay), expected = Run(*path, scaled);
        CHECK(SameBits(found.pulled, expected.pulled));
        size_t changed = 0;
        for (size_t r = 0; r < Fixture::kRows; ++r) {
          const float* const row = f.Row(found.rows, r);
          const bool pushed = (GetWord(row, 0) >> 16 & kTouched) != 0;
          changed += pushed ? 1 : 0;
          const float* const right = pushed ? f.Row(expected.rows, r) : f.Row(f.rows, r);
          CHECK(std::memcmp(row, right, words * sizeof(float)) == 0);
        }
        CHECK(changed > Fixture::kRows / 4 && changed < Fixture::kRows);
      }
    }
  }
}

TEST(a_row_with_a_gradient_that_is_not_finite_is_reported_and_left_or_mended) {
  for (const RuleKind kind : {RuleKind::kAdaGrad, RuleKind::kAdam}) {
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      Fixture f(kind, 8, true);
      const PlanView plan = ViewPlan(f.plan.data(), f.plan.size(), Fixture::kRows, 90).value();
      const auto victim = static_cast<size_t>(plan.rows[5]);
      const auto segment = static_cast<size_t>(plan.segments[plan.starts[5]] & INT32_MAX);
      std::vector<size_t> sharing;  // rows that have this segment too
      for (size_t u = 0; u < plan.unique; ++u) {
        for (int32_t i = plan.starts[u]; i < plan.starts[u + 1]; ++i) {
          if (static_cast<size_t>(plan.segments[i] & INT32_MAX) != segment) continue;
          if (sharing.empty() || sharing.back() != static_cast<size_t>(plan.rows[u])) {
            sharing.push_back(static_cast<size_t>(plan.rows[u]));
          }
        }
      }
      f.grad[segment * f.Width() + 4] = bad;
      for (const Kernels* path : Paths()) {
        for (const BadGrad policy : {BadGrad::kSkip, BadGrad::kClip}) {
          Floats rows = f.rows;
          std::vector<size_t> reported;
          GradientView gradient = f.Gradient();
          gradient.on_bad = policy;
          gradient.context = &reported;
          gradient.report = [](void* context, size_t row) {
            static_cast<std::vector<size_t>*>(context)->push_back(row);
          };
          path->push(f.Block(&rows), plan.rows, plan.starts, plan.segments, 0, plan.unique,
                     gradient, 20000);
          CHECK(reported == sharing);
          const float* after = f.Row(rows, victim);
          const bool same = std::memcmp(after, f.Row(f.rows, victim), f.config.layout.bytes()) == 0;
          CHECK_EQ(same, policy == BadGrad::kSkip);
          for (const float x : rows) {
            uint32_t bits;
            std::memcpy(&bits, &x, 4);
            if ((bits & 0x7f800000u) == 0x7f800000u) test::Fail(__FILE__, __LINE__, "not finite");
          }
        }
      }
    }
  }
}

TEST(a_slot_has_its_own_learning_rate_on_every_path) {
  std::vector<float> rates(1u << 16, 1.0f);
  for (const RuleKind kind : kRules) {
    Fixture f(kind, 8, true);
    const Outputs without = Run(*Paths()[0], f);
    rates[3] = 0.25f;  // the slot of the fixture's rows
    f.config.slot_rates = rates.data();
    const Outputs plain = Run(*Paths()[0], f);
    CHECK_EQ(WrongPushes(f, plain), 0u);
    CHECK(!SameBits(plain.rows, without.rows));
    for (const Kernels* path : Paths()) CHECK(SameBits(Run(*path, f).rows, plain.rows));
    rates[3] = 1.0f;
    CHECK(SameBits(Run(*Paths()[0], f).rows, without.rows));
  }
}

TEST(a_push_to_a_slot_that_is_not_counted_learns_alone_on_every_path) {
  std::vector<float> counted(1u << 16, 1.0f);
  for (const RuleKind kind : kRules) {
    Fixture f(kind, 8, true);
    const Outputs usual = Run(*Paths()[0], f);
    f.config.counted = counted.data();
    CHECK(SameBits(Run(*Paths()[0], f).rows, usual.rows));
    counted[3] = 0.0f;  // the slot of the fixture's rows
    const Outputs plain = Run(*Paths()[0], f);
    CHECK_EQ(WrongPushes(f, plain), 0u);
    for (size_t r = 0; r < Fixture::kRows; ++r) {
      for (const int word : {RowLayout::kShow, RowLayout::kClick, RowLayout::kDeltaScore}) {
        CHECK_EQ(f.Row(plain.rows, r)[word], f.Row(f.rows, r)[word]);
      }
    }
    CHECK(!SameBits(plain.rows, f.rows));
    for (const Kernels* path : Paths()) CHECK(SameBits(Run(*path, f).rows, plain.rows));
    counted[3] = 1.0f;
  }
}

TEST(a_kernel_asked_for_a_part_writes_that_part_alone) {
  const Fixture f(RuleKind::kAdaGrad, 8, true);
  for (const Kernels* path : Paths()) {
    const Outputs whole = Run(*path, f);
    Outputs parts;
    parts.rows = f.rows;
    const RowBlock block = f.Block(&parts.rows);
    parts.pooled.assign(whole.pooled.size(), -9.0f);
    path->pull_pooled(block, f.ids.data(), f.offsets.data(), 10, 20, true,
                      {parts.pooled.data(), Fixture::kSlots, 0});
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

// Long runs of segments with one id each are copied, others summed: here both, in turn, and a run
// that -1 breaks. Pulled one by one, each is a sum.
TEST(a_segment_pulls_the_same_bits_whatever_stands_beside_it) {
  constexpr size_t kSlots = 7, kSegments = 7 * 100;
  for (const int dim : {3, 8, 16}) {
    for (const bool use_cvm : {true, false}) {
      const Fixture f(RuleKind::kAdaGrad, dim, use_cvm);
      Floats rows = f.rows;
      const RowBlock block = f.Block(&rows);
      Ints ids, offsets = {0};
      for (size_t s = 0; s < kSegments; ++s) {
        for (size_t n = s % 230 == 200 ? s % 4 : 1; n > 0; --n) {
          ids.push_back(s == 40 ? -1 : static_cast<int32_t>(Mix(s + n) % Fixture::kRows));
        }
        offsets.push_back(static_cast<int32_t>(ids.size()));
      }
      for (const size_t extra : {0u, 5u}) {
        for (const Kernels* path : Paths()) {
          Floats whole(kSegments * f.Width() + kSegments / kSlots * extra, -9.0f), single = whole;
          path->pull_pooled(block, ids.data(), offsets.data(), 0, kSegments, use_cvm,
                            {whole.data(), kSlots, extra});
          for (size_t s = 0; s < kSegments; ++s) {
            path->pull_pooled(block, ids.data(), offsets.data(), s, s + 1, use_cvm,
                              {single.data(), kSlots, extra});
          }
          CHECK(SameBits(whole, single));
        }
      }
    }
  }
}

// Five floats behind the slots of each instance, in the output and in the gradient.
TEST(what_stands_behind_an_instances_slots_is_left_alone_and_skipped) {
  constexpr size_t kExtra = 5;
  for (const int dim : {3, 8}) {
    const Fixture f(RuleKind::kAdaGrad, dim, true);
    const size_t row = Fixture::kSlots * f.Width();
    for (const Kernels* path : Paths()) {
      const Outputs whole = Run(*path, f);
      Floats rows = f.rows, out(Fixture::kInstances * (row + kExtra), -9.0f), grad(out.size(), NAN);
      const RowBlock block = f.Block(&rows);
      for (const auto& [begin, end] : {std::pair<size_t, size_t>{0, 31}, {31, 90}}) {
        path->pull_pooled(block, f.ids.data(), f.offsets.data(), begin, end, true,
                          {out.data(), Fixture::kSlots, kExtra});
      }
      for (size_t i = 0; i < Fixture::kInstances; ++i) {
        const auto at = static_cast<std::ptrdiff_t>(i * (row + kExtra));
        const auto from = static_cast<std::ptrdiff_t>(i * row);
        CHECK(std::equal(out.begin() + at, out.begin() + at + static_cast<std::ptrdiff_t>(row),
                         whole.pooled.begin() + from));
        for (size_t c = row; c < row + kExtra; ++c) CHECK_EQ(out[i * (row + kExtra) + c], -9.0f);
        std::copy_n(f.grad.begin() + from, row, grad.begin() + at);
      }
      GradientView gradient = f.Gradient();
      gradient.grad = grad.data();
      gradient.extra = kExtra;
      const PlanView plan = ViewPlan(f.plan.data(), f.plan.size(), Fixture::kRows, 90).value();
      path->push(block, plan.rows, plan.starts, plan.segments, 0, plan.unique, gradient, 20000);
      CHECK(SameBits(rows, whole.rows));
    }
  }
}

// The factor of each id, and of each occurrence in the order of a plan.
struct Factors {
  Factors(const Fixture& f, bool ones) {
    Random random(3);
    for (size_t i = 0; i < f.ids.size(); ++i) {
      of_ids.push_back(ones ? 1.0f : static_cast<float>(random.Below(5)) / 3);
    }
    BuildPlan(f.ids.data(), f.offsets.data(), f.offsets.size() - 1, 1, &plan, of_ids.data());
  }
  Floats of_ids;
  Ints plan;
};

// Copies (B, S * width) floats to or from (B, S * width + extra).
void CopySpaced(const Fixture& f, size_t extra, bool spread, Floats* compact, Floats* spaced) {
  const size_t row = Fixture::kSlots * f.Width();
  compact->resize(Fixture::kInstances * row);
  if (spread) spaced->assign(Fixture::kInstances * (row + extra), NAN);
  for (size_t b = 0; b < Fixture::kInstances; ++b) {
    float *const one = compact->data() + b * row, *const other = spaced->data() + b * (row + extra);
    std::copy_n(spread ? one : other, row, spread ? other : one);
  }
}

// The same with factors. sums: what a push adds up for each row, (rows, 3 + dim). extra: floats
// behind the slots of each instance, in the output and in the gradient.
Outputs RunWith(const Kernels& kernels, const Fixture& f, const Factors& factors, Floats* sums,
                size_t extra = 0) {
  Outputs out;
  out.rows = f.rows;
  const RowBlock block = f.Block(&out.rows);
  const size_t segments = Fixture::kInstances * Fixture::kSlots;
  Floats grad = f.grad, spaced(segments * f.Width() + Fixture::kInstances * extra, -9.0f);
  PooledOutput output{spaced.data(), Fixture::kSlots, extra};
  output.factors = factors.of_ids.data();
  kernels.pull_pooled(block, f.ids.data(), f.offsets.data(), 0, segments, f.use_cvm, output);
  CopySpaced(f, extra, false, &out.pooled, &spaced);
  CopySpaced(f, extra, true, &grad, &spaced);
  const PlanView plan =
      ViewPlan(factors.plan.data(), factors.plan.size(), Fixture::kRows, segments, f.ids.size())
          .value();
  GradientView gradient = f.Gradient();
  gradient.grad = spaced.data();
  gradient.extra = extra;
  gradient.factors = plan.factors;
  kernels.push(block, plan.rows, plan.starts, plan.segments, 0, plan.unique, gradient, 20000);
  sums->assign(Fixture::kRows * static_cast<size_t>(3 + f.dim), 0.0f);
  gradient.merged = sums->data();
  kernels.push(block, plan.rows, plan.starts, plan.segments, 0, plan.unique, gradient, 20000);
  return out;
}

// Sums of pulls and pushes with factors in float64; shows and clicks have none.
size_t WrongWith(const Fixture& f, const Factors& factors, const Outputs& out, const Floats& sums) {
  size_t wrong = 0;
  std::vector<Wides> merged(Fixture::kRows, Wides(static_cast<size_t>(3 + f.dim)));
  for (size_t s = 0; s + 1 < f.offsets.size(); ++s) {
    Wides sum(static_cast<size_t>(3 + f.dim));
    const float* const grad = &f.grad[s * f.Width() + (f.use_cvm ? 2 : 0)];
    for (int32_t i = f.offsets[s]; i < f.offsets[s + 1]; ++i) {
      const auto at = static_cast<size_t>(i);
      const double factor = factors.of_ids[at];
      const Wides row = PulledRow(f, f.ids[at]);
      for (size_t c = 2; c < row.size(); ++c) Add(&sum[c], row[c].value * factor);
      if (f.ids[at] < 0) continue;
      Wides& to = merged[static_cast<size_t>(f.ids[at])];
      Add(&to[0], f.show_click[s / Fixture::kSlots * 2]);
      Add(&to[1], f.show_click[s / Fixture::kSlots * 2 + 1]);
      for (size_t c = 2; c < to.size(); ++c) {
        Add(&to[c], static_cast<double>(grad[c - 2]) * factor * Fixture::kInstances);
      }
    }
    const size_t weights_at = f.use_cvm ? 2 : 0;
    for (size_t c = 2; c < sum.size(); ++c) {
      wrong += !sum[c].Agrees(out.pooled[s * f.Width() + weights_at + c - 2]);
    }
  }
  for (size_t r = 0; r < merged.size(); ++r) {
    for (size_t c = 0; c < merged[r].size(); ++c) {
      wrong += !merged[r][c].Agrees(sums[r * merged[r].size() + c]);
    }
  }
  return wrong;
}

TEST(factors_weigh_weights_and_gradients_on_every_path) {
  for (const int dim : {1, 3, 4, 7, 8, 13, 15, 16, 17, 32, 63, 64, 65, 128, 253}) {
    for (const bool use_cvm : {true, false}) {
      const Fixture f(RuleKind::kAdaGrad, dim, use_cvm);
      const Factors factors(f, false);
      const std::vector<const Kernels*> paths = Paths();
      Floats sums, others;
      const Outputs plain = RunWith(*paths[0], f, factors, &sums);
      CHECK_EQ(WrongWith(f, factors, plain, sums), 0u);
      for (const Kernels* path : paths) {
        const Outputs out = RunWith(*path, f, factors, &others);
        CHECK(SameBits(out.pooled, plain.pooled));
        CHECK(SameBits(out.rows, plain.rows));
        CHECK(SameBits(others, sums));
      }
    }
  }
}

TEST(factors_reach_outputs_and_gradients_with_dense_features_behind_the_slots) {
  for (const int dim : {3, 8}) {
    for (const bool use_cvm : {true, false}) {
      const Fixture f(RuleKind::kAdaGrad, dim, use_cvm);
      const Factors factors(f, false);
      for (const Kernels* path : Paths()) {
        Floats sums, others;
        const Outputs plain = RunWith(*path, f, factors, &sums);
        const Outputs behind = RunWith(*path, f, factors, &others, 5);
        CHECK(SameBits(behind.pooled, plain.pooled));
        CHECK(SameBits(behind.rows, plain.rows));
        CHECK(SameBits(others, sums));
      }
    }
  }
}

TEST(factors_of_1_change_no_bit) {
  for (const int dim : {5, 8}) {
    for (const bool use_cvm : {true, false}) {
      const Fixture f(RuleKind::kAdam, dim, use_cvm);
      for (const Kernels* path : Paths()) {
        Floats sums;
        const Outputs with = RunWith(*path, f, Factors(f, true), &sums), without = Run(*path, f);
        CHECK(SameBits(with.pooled, without.pooled));
        CHECK(SameBits(with.rows, without.rows));
      }
    }
  }
}

// Rows of which some occur in several chunks (row/sum_order.h), their occurrences in random places.
struct Frequent {
  static constexpr size_t kSlots = 3;

  Frequent(RuleKind kind, int dim, bool many, bool with_factors)
      : fixture(kind, dim, true), columns(static_cast<size_t>(3 + dim)) {
    Random random(static_cast<uint64_t>(dim));
    std::vector<size_t> counts = test::Frequencies();
    if (!many) counts.pop_back();
    for (size_t r = 0; r < counts.size(); ++r) {
      ids.insert(ids.end(), counts[r], static_cast<int32_t>(7 * r));
    }
    while (ids.size() % kSlots != 0) ids.push_back(-1);
    for (size_t i = ids.size(); i > 1; --i) std::swap(ids[i - 1], ids[random.Below(i)]);
    Ints offsets(ids.size() + 1);
    for (size_t i = 0; i < offsets.size(); ++i) offsets[i] = static_cast<int32_t>(i);
    for (size_t i = 0; i < ids.size(); ++i) factors.push_back(random.Uniform());
    BuildPlan(ids.data(), offsets.data(), ids.size(), 1, &plan,
              with_factors ? factors.data() : nullptr);
    if (!with_factors) factors.assign(ids.size(), 1.0f);
    grad.resize(ids.size() * columns);
    for (float& g : grad) g = random.Uniform() * 0.01f;
    for (size_t i = 0; i < 2 * ids.size() / kSlots; ++i) {
      show_click.push_back(random.Uniform() + 1.0f);
    }
  }

  void Push(const Kernels& kernels, Floats* rows, float* merged) const {
    const PlanView view =
        ViewPlan(plan.data(), plan.size(), Fixture::kRows, ids.size(), ids.size()).value();
    GradientView gradient = fixture.Gradient();
    gradient.grad = grad.data();
    gradient.show_click = show_click.data();
    gradient.factors = view.factors;
    gradient.merged = merged;
    kernels.push(fixture.Block(rows), view.rows, view.starts, view.segments, 0, view.unique,
                 gradient, 20000);
  }

  // (P) of a row.
  Floats Sums(int32_t row) const {
    Floats sums;
    for (size_t c = 0; c < columns; ++c) {
      Floats values;
      for (size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] != row) continue;
        values.push_back(c < 2 ? show_click[i / kSlots * 2 + c]
                               : grad[i * columns + c] * factors[i]);
      }
      const float scale = c < 2 ? 1.0f : static_cast<float>(Fixture::kInstances);
      sums.push_back(test::LiteralSum(values) * scale);
    }
    return sums;
  }

  Fixture fixture;
  size_t columns;
  Ints ids, plan;
  Floats factors, grad, show_click;
};

TEST(frequent_rows_are_summed_in_the_order_of_its_definition_on_every_path) {
  for (const int dim : {3, 8, 16, 20, 32, 64, 253}) {
    for (const bool with_factors : {false, true}) {
      for (const RuleKind kind : {RuleKind::kAdaGrad, RuleKind::kAdam}) {
        if (with_factors && kind == RuleKind::kAdam) continue;
        const Frequent f(kind, dim, dim == 8, with_factors);
        Floats expected(Fixture::kRows * f.columns), rows = f.fixture.rows;
        for (size_t id = 0; id < Fixture::kRows; ++id) {
          if (std::find(f.ids.begin(), f.ids.end(), static_cast<int32_t>(id)) == f.ids.end()) {
            continue;
          }
          const Floats sums = f.Sums(static_cast<int32_t>(id));
          std::copy(sums.begin(), sums.end(), &expected[id * f.columns]);
          const AccessorConfig& config = f.fixture.config;
          Floats g(sums.begin() + 2, sums.end());
          float* const row = &rows[id * static_cast<size_t>(config.layout.words())];
          SetFlag(row, kTouched);
          accessor::Push(config, f.fixture.keys[id], sums[0], sums[1], g.data(), 20000, row);
        }
        for (const Kernels* path : Paths()) {
          Floats merged(expected.size()), pushed = f.fixture.rows, unused = f.fixture.rows;
          f.Push(*path, &unused, merged.data());
          CHECK(SameBits(merged, expected));
          f.Push(*path, &pushed, nullptr);
          CHECK(SameBits(pushed, rows));
        }
      }
    }
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

}  // namespace
}  // namespace pbx
