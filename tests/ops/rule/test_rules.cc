#include <cmath>
#include <cstdint>
#include <vector>

#include "base/hash.h"
#include "check.h"
#include "float64_rules.h"
#include "rule/dispatch.h"

namespace pbx {
namespace {

using Floats = std::vector<float>;

constexpr RuleKind kAll[] = {RuleKind::kNaive,     RuleKind::kAdaGrad, RuleKind::kStdAdaGrad,
                             RuleKind::kAdaGradV2, RuleKind::kAdam,    RuleKind::kSharedAdam,
                             RuleKind::kFtrl};

RuleConfig ConfigOf(RuleKind kind) {
  RuleConfig config;
  config.kind = kind;
  return config;
}

// The state beside the initial weights w.
Floats NewState(const RuleConfig& config, const Floats& w) {
  const int d = static_cast<int>(w.size());
  Floats state(static_cast<size_t>(rule::StateSize(config.kind, d)), -1.0f);
  rule::InitState(config, d, w.data(), state.data());
  return state;
}

TEST(naive_worked_by_hand) {
  RuleConfig config = ConfigOf(RuleKind::kNaive);
  config.learning_rate = 0.5f;
  Floats w = {1.0f, -2.0f};
  const Floats g = {2.0f, -1.0f};
  rule::Update(config, 2, g.data(), 7.0f, w.data(), nullptr);  // the scale is ignored
  CHECK_EQ(w[0], 0.0f);                                        //  1 - 0.5 * 2
  CHECK_EQ(w[1], -1.5f);                                       // -2 + 0.5 * 1
}

TEST(adagrad_worked_by_hand) {
  RuleConfig config = ConfigOf(RuleKind::kAdaGrad);
  config.learning_rate = 0.5f;
  config.initial_g2sum = 3.0f;
  Floats w = {1.0f, 2.0f}, state = {9.0f};
  const Floats g = {4.0f, -8.0f};
  rule::Update(config, 2, g.data(), 2.0f, w.data(), state.data());
  // g' = g / 2 = (2, -4); sqrt(3 / (3 + 9)) = 1/2, from the old G.
  CHECK_EQ(w[0], 0.5f);       // 1 - 0.5 * 2 * 0.5
  CHECK_EQ(w[1], 3.0f);       // 2 + 0.5 * 4 * 0.5
  CHECK_EQ(state[0], 19.0f);  // 9 + (2^2 + 4^2) / 2
}

TEST(std_adagrad_worked_by_hand) {
  RuleConfig config = ConfigOf(RuleKind::kStdAdaGrad);
  config.learning_rate = 0.5f;
  config.initial_g2sum = 3.0f;
  Floats w = {1.0f, 2.0f}, state = {9.0f, 0.0f};
  const Floats g = {4.0f, -8.0f};
  rule::Update(config, 2, g.data(), 2.0f, w.data(), state.data());
  // g' = (2, -4); sqrt(3 / (3 + 9)) = 1/2 for the first, sqrt(3 / 3) = 1 for the second.
  CHECK((w == Floats{0.5f, 4.0f}));
  CHECK((state == Floats{13.0f, 16.0f}));
}

TEST(adagrad_v2_worked_by_hand) {
  RuleConfig config = ConfigOf(RuleKind::kAdaGradV2);
  config.learning_rate = 0.5f;
  config.epsilon = 1.0f;
  Floats w = {1.0f, 2.0f}, state = {6.0f};
  const Floats g = {4.0f, -8.0f};
  rule::Update(config, 2, g.data(), 2.0f, w.data(), state.data());
  // G = 6 + (2^2 + 4^2) / 2 = 16 first; then a step of 0.5 / (4 + 1) / 2 = 0.05.
  CHECK_EQ(state[0], 16.0f);
  CHECK_NEAR(w[0], 1 - 0.05 * 4, 1e-6);
  CHECK_NEAR(w[1], 2 + 0.05 * 8, 1e-6);
}

TEST(shared_adam_worked_by_hand) {
  RuleConfig config = ConfigOf(RuleKind::kSharedAdam);
  config.learning_rate = 0.5f;
  config.beta1 = 0.5f;
  config.beta2 = 0.75f;
  config.epsilon = 1.0f;
  Floats w = {1.0f, 1.0f}, state = NewState(config, w);  // m, v, b1^t, b2^t
  CHECK((state == Floats{0.0f, 0.0f, 0.5f, 0.75f}));
  const Floats g = {2.0f, 0.0f};
  rule::Update(config, 2, g.data(), 7.0f, w.data(), state.data());  // the scale is ignored
  // The first weight as in Adam: m = 1, v = 1, lr' = 0.5; the second has m = v = 0.
  CHECK((w == Floats{0.75f, 1.0f}));
  // Kept: the means of (1, 0) and (1, 0).
  CHECK((state == Floats{0.5f, 0.5f, 0.25f, 0.5625f}));
}

TEST(ftrl_worked_by_hand) {
  RuleConfig config = ConfigOf(RuleKind::kFtrl);
  config.learning_rate = 0.5f;
  config.beta = 1.0f;
  config.l1 = 1.0f;
  config.l2 = 2.0f;
  Floats w = {0.0f, 0.0f}, state = NewState(config, w);  // z, z, n, n
  CHECK((state == Floats{0.0f, 0.0f, 0.0f, 0.0f}));
  const Floats g = {8.0f, 2.0f};
  rule::Update(config, 2, g.data(), 2.0f, w.data(), state.data());
  // g' = (4, 1): z = (4, 1), n = (16, 1). The second is within l1.
  // -(4 - 1) / ((1 + 4) / 0.5 + 2) = -3 / 12.
  CHECK((state == Floats{4.0f, 1.0f, 16.0f, 1.0f}));
  CHECK((w == Floats{-0.25f, 0.0f}));
}

TEST(ftrl_starts_from_its_initial_weights_and_not_from_zero) {
  RuleConfig config = ConfigOf(RuleKind::kFtrl);
  config.l1 = 0.5f;
  Floats w = {0.25f, -0.125f}, state = NewState(config, w);
  const Floats g = {1e-6f, 1e-6f};
  rule::Update(config, 2, g.data(), 1.0f, w.data(), state.data());
  CHECK_NEAR(w[0], 0.25, 1e-5);
  CHECK_NEAR(w[1], -0.125, 1e-5);
}

TEST(adam_worked_by_hand) {
  RuleConfig config = ConfigOf(RuleKind::kAdam);
  config.learning_rate = 0.5f;
  config.beta1 = 0.5f;
  config.beta2 = 0.75f;
  config.epsilon = 1.0f;
  Floats w = {1.0f}, state = NewState(config, w);  // m, v, b1^t, b2^t
  CHECK((state == Floats{0.0f, 0.0f, 0.5f, 0.75f}));
  const float first = 2.0f, second = 1.0f;
  rule::Update(config, 1, &first, 7.0f, w.data(), state.data());  // the scale is ignored
  // m = 0.5 * 2 = 1; v = 0.25 * 4 = 1; lr' = 0.5 * sqrt(1 - 0.75) / (1 - 0.5) = 0.5.
  CHECK_EQ(w[0], 0.75f);  // 1 - 0.5 * 1 / (1 + 1)
  CHECK((state == Floats{1.0f, 1.0f, 0.25f, 0.5625f}));
  rule::Update(config, 1, &second, 7.0f, w.data(), state.data());
  // m = 0.5 + 0.5 = 1; v = 0.75 + 0.25 = 1; lr' = 0.5 * sqrt(7/16) / 0.75 = 0.4409586.
  CHECK_NEAR(w[0], 0.75 - 0.4409586 / 2, 1e-7);
  CHECK((state == Floats{1.0f, 1.0f, 0.125f, 0.421875f}));
}

TEST(states_have_the_sizes_of_their_pages) {
  for (const int d : {1, 8, 253}) {
    CHECK_EQ(rule::StateSize(RuleKind::kNaive, d), 0);
    CHECK_EQ(rule::StateSize(RuleKind::kAdaGrad, d), 1);
    CHECK_EQ(rule::StateSize(RuleKind::kStdAdaGrad, d), d);
    CHECK_EQ(rule::StateSize(RuleKind::kAdaGradV2, d), 1);
    CHECK_EQ(rule::StateSize(RuleKind::kAdam, d), 2 * d + 2);
    CHECK_EQ(rule::StateSize(RuleKind::kSharedAdam, d), 4);
    CHECK_EQ(rule::StateSize(RuleKind::kFtrl, d), 2 * d);
  }
}

TEST(the_sum_of_squares_counts_each_component_once) {
  Floats g;
  float sum = 0.0f;
  for (int d = 1; d <= 40; ++d) {
    g.push_back(static_cast<float>(d));
    sum += static_cast<float>(d * d);  // whole numbers below 2^24: exact in every order
    CHECK_EQ(rule::SumOfSquares(g.data(), d), sum);
  }
}

float Uniform(uint64_t* random) {  // [-1, 1)
  return static_cast<float>(Mix(++*random) >> 40) * (2.0f / 16777216.0f) - 1.0f;
}

// Each step starts from the float32 state, so that roundings of earlier steps do not add up (in
// Adam 1 - b2^t alone would make 6e-5 of them).
TEST(each_rule_follows_float64_over_random_sequences) {
  uint64_t random = 1;
  for (const RuleKind kind : kAll) {
    for (const int d : {1, 3, 8, 17}) {
      const RuleConfig config = ConfigOf(kind);
      Floats w(static_cast<size_t>(d)), g(w.size());
      for (float& x : w) x = Uniform(&random);
      Floats state = NewState(config, w);
      size_t wrong = 0;
      for (int step = 0; step < 300; ++step) {
        for (float& x : g) x = Uniform(&random) * std::ldexp(1.0f, step % 12 - 6);
        const float scale = static_cast<float>(1 + Mix(++random) % 20);
        test::Wides exact_w(w.begin(), w.end()), exact_state(state.begin(), state.end());
        test::Step(config, test::Wides(g.begin(), g.end()), scale, &exact_w, &exact_state);
        rule::Update(config, d, g.data(), scale, w.data(), state.data());
        for (size_t i = 0; i < w.size(); ++i) wrong += !exact_w[i].Agrees(w[i]);
        for (size_t i = 0; i < state.size(); ++i) wrong += !exact_state[i].Agrees(state[i]);
      }
      CHECK_EQ(wrong, 0u);
    }
  }
}

TEST(weights_stay_within_their_bounds) {
  for (const RuleKind kind : kAll) {
    RuleConfig config = ConfigOf(kind);
    config.learning_rate = 100.0f;
    config.min_bound = -0.25f;
    config.max_bound = 0.5f;
    for (const float sign : {1.0f, -1.0f}) {
      Floats w(3, 0.0f), state = NewState(config, w);
      const Floats g(3, sign);
      rule::Update(config, 3, g.data(), 1.0f, w.data(), state.data());
      for (const float x : w) CHECK_EQ(x, sign > 0 ? -0.25f : 0.5f);
    }
  }
}

TEST(a_nan_gradient_makes_a_nan_weight_and_only_where_it_was) {
  for (const RuleKind kind : kAll) {
    const RuleConfig config = ConfigOf(kind);
    Floats w(3, 0.5f), state = NewState(config, w);
    const Floats g = {1.0f, NAN, 1.0f};
    rule::Update(config, 3, g.data(), 1.0f, w.data(), state.data());
    CHECK(std::isnan(w[1]));
    // AdaGradV2 takes its step from the sum that already has it.
    if (kind != RuleKind::kAdaGradV2) CHECK(!std::isnan(w[0]) && !std::isnan(w[2]));
    // AdaGrad's one sum has taken it in: the next push shows it in every column.
    if (kind == RuleKind::kAdaGrad || kind == RuleKind::kAdaGradV2) CHECK(std::isnan(state[0]));
  }
}

TEST(a_row_that_got_no_gradient_stays_as_it_is_under_every_rule) {
  for (const RuleKind kind : kAll) {
    const RuleConfig config = ConfigOf(kind);
    uint64_t random = 1;
    Floats w(200);  // enough of them for some to be rounded where FTRL solves for them
    for (float& x : w) x = Uniform(&random);
    const Floats before = w, g(w.size(), 0.0f);
    Floats state = NewState(config, w);
    rule::Update(config, 200, g.data(), 1.0f, w.data(), state.data());
    CHECK(w == before);
  }
}

}  // namespace
}  // namespace pbx
