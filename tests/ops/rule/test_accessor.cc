#include "rule/accessor.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

#include "check.h"

namespace pbx {
namespace {

using Row = std::vector<float>;

constexpr uint64_t kKey = 0x0123456789abcdefu;
constexpr uint32_t kDay = 20000;

// Coefficients that float32 holds exactly: score = (show - click) / 4 + click, embedx from 10 on.
AccessorConfig Config(RuleKind kind, int dim = 2) {
  AccessorConfig config;
  config.nonclk_coeff = 0.25f;
  config.click_coeff = 1.0f;
  config.embedx_threshold = 10.0f;
  config.embed.kind = config.embedx.kind = kind;
  config.embed.learning_rate = config.embedx.learning_rate = 0.5f;
  config.layout.embedx_dim = dim;
  config.layout.embed_state = rule::StateSize(kind, 1);
  config.layout.embedx_state = rule::StateSize(kind, dim);
  return config;
}

Row NewRow(const AccessorConfig& config, uint64_t key = kKey, uint16_t slot = 7) {
  Row row(static_cast<size_t>(config.layout.words()), 123.0f);
  accessor::Create(config, key, slot, row.data());
  return row;
}

const float* Embedx(const AccessorConfig& config, const Row& row) {
  return row.data() + config.layout.embedx_at();
}

// Stored rows were made with these: a change gives every row that is not stored yet another start.
TEST(initial_weights_have_their_golden_values) {
  CHECK_EQ(accessor::InitialWeight(1, 1, 0, 1.0f), 0x1.1cd96p-2f);
  CHECK_EQ(accessor::InitialWeight(1, 1, 1, 1.0f), -0x1.eccbfp-2f);
  CHECK_EQ(accessor::InitialWeight(1, 2, 0, 1.0f), -0x1.9246cp-5f);
  CHECK_EQ(accessor::InitialWeight(2, 1, 0, 1.0f), -0x1.58a698p-2f);
  CHECK_EQ(accessor::InitialWeight(1, UINT64_MAX, 253, 1.0f), -0x1.5fa098p-1f);
}

TEST(initial_weights_fill_their_range_and_never_reach_its_end) {
  for (const float range : {1.0f, 1e-4f, 0.3f}) {
    float low = range, high = -range;
    double sum = 0;
    constexpr int kWeights = 100000;
    for (int i = 0; i < kWeights; ++i) {
      const float w = accessor::InitialWeight(5, Mix(static_cast<uint64_t>(i)),
                                              static_cast<uint32_t>(i) % 254, range);
      low = std::min(low, w);
      high = std::max(high, w);
      sum += w;
    }
    CHECK(low >= -range && low < -0.999f * range);
    CHECK(high < range && high > 0.999f * range);
    // The mean of n uniform draws has the deviation range / sqrt(3 n): 0.0018 of the range.
    CHECK(std::fabs(sum / kWeights) < 0.01 * static_cast<double>(range));
  }
  // The largest draw, 1 - 2^-23, times any range rounds to less than the range.
  for (const float range : {1.0f, 1e-4f, 0.3f, 1.9999999f}) {
    CHECK((1.0f - 0x1p-23f) * range < range);
  }
}

TEST(initial_weights_differ_by_seed_key_and_column) {
  std::set<float> seen;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    for (uint64_t key = 1; key <= 4; ++key) {
      for (uint32_t column = 0; column < 4; ++column) {
        seen.insert(accessor::InitialWeight(seed, key, column, 1.0f));
      }
    }
  }
  CHECK_EQ(seen.size(), 64u);
}

TEST(a_new_row_has_its_slot_its_weight_and_nothing_else) {
  for (const RuleKind kind : {RuleKind::kNaive, RuleKind::kAdaGrad, RuleKind::kAdam}) {
    const AccessorConfig config = Config(kind);
    const Row row = NewRow(config, kKey, 65535);
    CHECK_EQ(SlotOf(row.data()), 65535);
    CHECK(!HasEmbedx(row.data()));
    for (const int word : {1, 2, 3, 4, 5}) CHECK_EQ(GetWord(row.data(), word), 0u);
    CHECK_EQ(row[RowLayout::kEmbed],
             accessor::InitialWeight(config.seed, kKey, 0, config.embed.initial_range));
    for (int i = config.layout.embedx_at(); i < config.layout.words(); ++i) {
      CHECK_EQ(GetWord(row.data(), i), 0u);
    }
  }
  const Row adam = NewRow(Config(RuleKind::kAdam));
  CHECK_EQ(adam[RowLayout::kEmbed + 3], 0.9f);  // after m and v: b1, b2
  CHECK_EQ(adam[RowLayout::kEmbed + 4], 0.999f);
}

TEST(a_push_worked_by_hand) {
  const AccessorConfig config = Config(RuleKind::kNaive);
  Row row = NewRow(config);
  row[RowLayout::kEmbed] = 1.0f;
  const float g[3] = {2.0f, 0.0f, 0.0f};
  accessor::Push(config, kKey, 4.0f, 1.0f, g, kDay, row.data());
  accessor::Push(config, kKey, 2.0f, 2.0f, g, kDay + 1, row.data());
  CHECK_EQ(row[RowLayout::kShow], 6.0f);
  CHECK_EQ(row[RowLayout::kClick], 3.0f);
  CHECK_EQ(row[RowLayout::kDeltaScore], 3.75f);  // (3 / 4 + 1) + (0 / 4 + 2)
  CHECK_EQ(GetWord(row.data(), RowLayout::kDay), kDay + 1);
  CHECK_EQ(GetWord(row.data(), RowLayout::kLifeSeq), 0u);
  CHECK_EQ(row[RowLayout::kEmbed], -1.0f);  // 1 - 0.5 * 2 - 0.5 * 2
  CHECK_EQ(SlotOf(row.data()), 7);
}

TEST(a_push_that_is_not_counted_divides_by_its_shows_all_the_same) {
  std::vector<float> counted(1u << 16, 1.0f);
  counted[7] = 0.0f;
  AccessorConfig config = Config(RuleKind::kAdaGrad);
  Row usual = NewRow(config), row = usual, other = NewRow(config, kKey, 8);
  const float g[3] = {2.0f, 0.0f, 0.0f};
  accessor::Push(config, kKey, 4.0f, 1.0f, g, kDay, usual.data());
  config.counted = counted.data();
  accessor::Push(config, kKey, 4.0f, 1.0f, g, kDay, row.data());
  accessor::Push(config, kKey, 4.0f, 1.0f, g, kDay, other.data());
  CHECK_EQ(row[RowLayout::kShow], 0.0f);
  CHECK_EQ(row[RowLayout::kClick], 0.0f);
  CHECK_EQ(row[RowLayout::kDeltaScore], 0.0f);
  CHECK_EQ(other[RowLayout::kShow], 4.0f);  // of a slot that counts
  CHECK_EQ(GetWord(row.data(), RowLayout::kDay), kDay);
  CHECK_EQ(row[RowLayout::kEmbed], usual[RowLayout::kEmbed]);
  CHECK(row[RowLayout::kEmbed] != 0.0f);
}

TEST(the_push_that_reaches_the_threshold_makes_embedx_and_the_next_one_trains_it) {
  for (const RuleKind kind : {RuleKind::kNaive, RuleKind::kAdaGrad, RuleKind::kAdam}) {
    const AccessorConfig config = Config(kind);
    Row row = NewRow(config);
    const float g[3] = {0.5f, 1.0f, -1.0f};
    // Score 39 / 4 = 9.75: not yet, and the gradient of embedx goes nowhere.
    accessor::Push(config, kKey, 39.0f, 0.0f, g, kDay, row.data());
    CHECK(!HasEmbedx(row.data()));
    for (int i = config.layout.embedx_at(); i < config.layout.words(); ++i) {
      CHECK_EQ(GetWord(row.data(), i), 0u);
    }
    // 40 / 4 = 10.
    accessor::Push(config, kKey, 1.0f, 0.0f, g, kDay, row.data());
    CHECK(HasEmbedx(row.data()));
    CHECK_EQ(SlotOf(row.data()), 7);
    for (uint32_t i = 0; i < 2; ++i) {
      CHECK_EQ(Embedx(config, row)[i],
               accessor::InitialWeight(config.seed, kKey, i + 1, config.embedx.initial_range));
    }
    std::vector<float> fresh(static_cast<size_t>(config.layout.embedx_state) + 1);
    rule::InitState(config.embedx, 2, Embedx(config, row), fresh.data());
    const float* state = row.data() + config.layout.embedx_state_at();
    CHECK(std::equal(state, state + config.layout.embedx_state, fresh.begin()));

    std::vector<float> expected(Embedx(config, row), Embedx(config, row) + 2);
    rule::Update(config.embedx, 2, g + 1, 1.0f, expected.data(), fresh.data());
    accessor::Push(config, kKey, 1.0f, 0.0f, g, kDay, row.data());
    CHECK(std::equal(expected.begin(), expected.end(), Embedx(config, row)));
    CHECK(std::equal(state, state + config.layout.embedx_state, fresh.begin()));
    CHECK(expected[0] < expected[1]);  // it moved against its gradient
  }
}

TEST(clicks_count_for_more_than_shows) {
  const AccessorConfig config = Config(RuleKind::kNaive);
  Row row = NewRow(config);
  const float g[3] = {};
  accessor::Push(config, kKey, 10.0f, 10.0f, g, kDay, row.data());  // score 10
  CHECK(HasEmbedx(row.data()));
}

TEST(the_gradient_is_divided_by_the_shows_of_the_push_where_the_rule_and_the_table_say_so) {
  AccessorConfig config = Config(RuleKind::kAdaGrad);
  const float g[3] = {2.0f, 0.0f, 0.0f};
  const auto pushed = [&](float show) {
    Row row = NewRow(config);
    row[RowLayout::kEmbed] = 1.0f;
    accessor::Push(config, kKey, show, 0.0f, g, kDay, row.data());
    return row;
  };
  CHECK_EQ(pushed(4.0f)[RowLayout::kEmbed], 0.75f);      // 1 - 0.5 * 2 / 4 * sqrt(3 / 3)
  CHECK_EQ(pushed(4.0f)[RowLayout::kEmbed + 1], 0.25f);  // (2 / 4)^2
  CHECK_EQ(pushed(0.0f)[RowLayout::kEmbed], 0.0f);       // no show: as one
  CHECK_EQ(pushed(0.0f)[RowLayout::kEmbed + 1], 4.0f);
  config.show_scale = false;
  CHECK_EQ(pushed(4.0f)[RowLayout::kEmbed], 0.0f);  // 1 - 0.5 * 2
  CHECK_EQ(pushed(4.0f)[RowLayout::kEmbed + 1], 4.0f);
}

TEST(a_rows_end_depends_on_its_pushes_and_not_on_when_it_was_made) {
  const AccessorConfig config = Config(RuleKind::kAdaGrad, 8);
  std::vector<float> g(9, 0.125f);
  Row a = NewRow(config), other = NewRow(config, kKey + 1);
  accessor::Push(config, kKey + 1, 60.0f, 1.0f, g.data(), kDay, other.data());
  Row b = NewRow(config);
  for (int push = 0; push < 3; ++push) {
    accessor::Push(config, kKey, 30.0f, 1.0f, g.data(), kDay, a.data());
    accessor::Push(config, kKey, 30.0f, 1.0f, g.data(), kDay, b.data());
  }
  CHECK(a == b);
  CHECK(!std::equal(Embedx(config, a), Embedx(config, a) + 8, Embedx(config, other)));
}

}  // namespace
}  // namespace pbx
