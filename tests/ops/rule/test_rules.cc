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

constexpr RuleKind kAll[] = {RuleKind::kNaive, RuleKind::kAdaGrad, RuleKind::kAdam};

RuleConfig ConfigOf(RuleKind kind) {
  RuleConfig config;
  config.kind = kind;
  return config;
}

Floats NewState(const RuleConfig& config, int d) {
  Floats state(static_cast<size_t>(rule::StateSize(config.kind, d)), -1.0f);
  rule::InitState(config, d, state.data());
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

TEST(adam_worked_by_hand) {
  RuleConfig config = ConfigOf(RuleKind::kAdam);
  config.learning_rate = 0.5f;
  config.beta1 = 0.5f;
  config.beta2 = 0.75f;
  config.epsilon = 1.0f;
  Floats w = {1.0f}, state = NewState(config, 1);  // m, v, b1^t, b2^t
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
    CHECK_EQ(rule::StateSize(RuleKind::kAdam, d), 2 * d + 2);
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
      Floats state = NewState(config, d), w(static_cast<size_t>(d)), g(w.size());
      for (float& x : w) x = Uniform(&random);
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
      Floats w(3, 0.0f), state = NewState(config, 3);
      const Floats g(3, sign);
      rule::Update(config, 3, g.data(), 1.0f, w.data(), state.data());
      for (const float x : w) CHECK_EQ(x, sign > 0 ? -0.25f : 0.5f);
    }
  }
}

TEST(a_nan_gradient_makes_a_nan_weight_and_only_where_it_was) {
  for (const RuleKind kind : kAll) {
    const RuleConfig config = ConfigOf(kind);
    Floats w(3, 0.5f), state = NewState(config, 3);
    const Floats g = {1.0f, NAN, 1.0f};
    rule::Update(config, 3, g.data(), 1.0f, w.data(), state.data());
    CHECK(std::isnan(w[1]));
    CHECK(!std::isnan(w[0]) && !std::isnan(w[2]));
    // AdaGrad's one sum has taken it in: the next push shows it in every column.
    if (kind == RuleKind::kAdaGrad) CHECK(std::isnan(state[0]));
  }
}

TEST(a_row_that_got_no_gradient_stays_as_it_is_under_every_rule) {
  for (const RuleKind kind : kAll) {
    const RuleConfig config = ConfigOf(kind);
    Floats w = {0.5f, -0.25f}, state = NewState(config, 2);
    const Floats g(2, 0.0f);
    rule::Update(config, 2, g.data(), 1.0f, w.data(), state.data());
    CHECK((w == Floats{0.5f, -0.25f}));
  }
}

}  // namespace
}  // namespace pbx
