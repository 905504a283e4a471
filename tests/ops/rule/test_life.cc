#include "rule/life.h"

#include <tuple>
#include <vector>

#include "check.h"

namespace pbx {
namespace {

std::vector<float> Row(float show, float click, float delta, uint32_t day, uint32_t seq) {
  std::vector<float> row(8, 0.5f);
  row[RowLayout::kShow] = show;
  row[RowLayout::kClick] = click;
  row[RowLayout::kDeltaScore] = delta;
  SetWord(row.data(), RowLayout::kDay, day);
  SetWord(row.data(), RowLayout::kLifeSeq, seq);
  return row;
}

// Coefficients 0.1 and 1: a row of 10 shows and 2 clicks scores 2.8.
const AccessorConfig kConfig;

LifeEvent Shrink(uint32_t seq, uint32_t day, float min_score, uint32_t max_unseen) {
  return {seq, LifeKind::kShrink, day, 1, min_score, 0, max_unseen};
}

TEST(a_decay_multiplies_shows_and_clicks_and_nothing_else) {
  std::vector<float> row = Row(10, 2, 3, 100, 0);
  const LifeEvent event{1, LifeKind::kDecay, 101, 0.5f, 0, 0, 0};
  CHECK(life::Apply(kConfig, &event, 1, row.data()));
  CHECK(row == Row(5, 1, 3, 100, 1));
}

TEST(a_row_sees_each_event_once) {
  std::vector<float> row = Row(16, 0, 0, 100, 1);
  const LifeEvent events[3] = {{1, LifeKind::kDecay, 101, 0.5f, 0, 0, 0},
                               {2, LifeKind::kDecay, 102, 0.5f, 0, 0, 0},
                               {3, LifeKind::kDecay, 103, 0.5f, 0, 0, 0}};
  CHECK(life::Apply(kConfig, events, 3, row.data()));
  CHECK(row == Row(4, 0, 0, 100, 3));
  CHECK(life::Apply(kConfig, events, 3, row.data()));
  CHECK(row == Row(4, 0, 0, 100, 3));
}

TEST(a_shrink_deletes_low_scores) {
  std::vector<float> row = Row(10, 2, 0, 100, 0);
  LifeEvent event = Shrink(1, 100, 2.8f, 30);
  CHECK(life::Apply(kConfig, &event, 1, row.data()));
  row = Row(10, 2, 0, 100, 0);
  event = Shrink(1, 100, 2.9f, 30);
  CHECK(!life::Apply(kConfig, &event, 1, row.data()));
}

TEST(a_shrink_deletes_what_was_not_seen_for_longer_than_it_says) {
  for (const auto& [seen, day, lives] : {std::tuple{100u, 130u, true},
                                         {100u, 131u, false},
                                         {0u, 20000u, true},
                                         {140u, 100u, true}}) {
    std::vector<float> row = Row(10, 2, 0, seen, 0);
    const LifeEvent event = Shrink(1, day, 0, 30);
    CHECK_EQ(life::Apply(kConfig, &event, 1, row.data()), lives);
  }
}

TEST(what_happens_in_order_matters) {
  const LifeEvent decay{1, LifeKind::kDecay, 100, 0.5f, 0, 0, 0};
  const LifeEvent first[2] = {decay, Shrink(2, 100, 2.0f, 30)};  // 1.4 is left: deleted
  LifeEvent second[2] = {Shrink(1, 100, 2.0f, 30), decay};       // 2.8, then 1.4
  second[1].seq = 2;
  std::vector<float> row = Row(10, 2, 0, 100, 0);
  CHECK(!life::Apply(kConfig, first, 2, row.data()));
  row = Row(10, 2, 0, 100, 0);
  CHECK(life::Apply(kConfig, second, 2, row.data()));
}

TEST(a_saved_delta_resets_the_rows_that_were_in_it) {
  const LifeEvent event{1, LifeKind::kDeltaReset, 105, 1, 1.5f, 0.25f, 16};
  for (const auto& [show, delta, day, left] : {std::tuple{20.0f, 0.5f, 100u, 0.0f},
                                               {10.0f, 0.5f, 100u, 0.5f},    // low score
                                               {20.0f, 0.2f, 100u, 0.2f},    // little new
                                               {20.0f, 0.5f, 80u, 0.5f}}) {  // long unseen
    std::vector<float> row = Row(show, 0, delta, day, 0);
    CHECK(life::Apply(kConfig, &event, 1, row.data()));
    CHECK_EQ(row[RowLayout::kDeltaScore], left);
  }
}

TEST(a_save_and_the_event_after_it_mean_the_same_rows) {
  // 0.1f * 15 is the float32 that 1.5 is compared with, so rows lie on each bound and beside it.
  size_t saved = 0;
  for (const float show : {14.0f, 15.0f, 16.0f}) {
    for (const float delta : {-0.5f, 0.0f, 0.24f, 0.25f, 0.26f}) {
      for (const uint32_t day : {0u, 88u, 89u, 90u, 106u}) {
        for (const float min_delta : {0.0f, 0.25f}) {
          std::vector<float> row = Row(show, 0, delta, day, 0);
          const SaveFilter filter{105, 1.5f, min_delta, 16};
          const bool in = life::Saved(kConfig, filter, row.data());
          saved += in ? 1 : 0;
          CHECK_EQ(in, show >= 15.0f && delta >= min_delta && day != 88);
          const LifeEvent event{1, LifeKind::kDeltaReset, 105, 1, 1.5f, min_delta, 16};
          CHECK(life::Apply(kConfig, &event, 1, row.data()));
          CHECK_EQ(row[RowLayout::kDeltaScore], in ? 0.0f : delta);
        }
      }
    }
  }
  CHECK_EQ(saved, size_t{2 * 4 * (4 + 2)});
}

}  // namespace
}  // namespace pbx
