#include "rule/life.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <tuple>
#include <vector>

#include "base/hash.h"
#include "check.h"

namespace pbx {
namespace {

std::vector<float> Row(float show, float click, float delta, uint32_t day, uint32_t seq) {
  std::vector<float> row(static_cast<size_t>(RowLayout().words()), 0.5f);
  row[RowLayout::kShow] = show;
  row[RowLayout::kClick] = click;
  row[RowLayout::kDeltaScore] = delta;
  SetWord(row.data(), RowLayout::kDay, day);
  SetWord(row.data(), RowLayout::kLifeSeq, seq);
  return row;
}

// Coefficients 0.1 and 1: a row of 10 shows and 2 clicks scores 2.8.
const AccessorConfig kConfig;
const RowCodec kCodec;
constexpr uint64_t kKey = 0x123456789abcdef0ULL;

LifeEvent Shrink(uint32_t seq, uint32_t day, float min_score, uint32_t max_unseen) {
  return {seq, LifeKind::kShrink, day, 1, min_score, 0, max_unseen};
}

TEST(a_decay_multiplies_shows_and_clicks_and_nothing_else) {
  std::vector<float> row = Row(10, 2, 3, 100, 0);
  const LifeEvent event{1, LifeKind::kDecay, 101, 0.5f, 0, 0, 0};
  CHECK(life::Apply(kConfig, kCodec, &event, 1, kKey, row.data()));
  CHECK(row == Row(5, 1, 3, 100, 1));
}

TEST(a_row_sees_each_event_once) {
  std::vector<float> row = Row(16, 0, 0, 100, 1);
  const LifeEvent events[3] = {{1, LifeKind::kDecay, 101, 0.5f, 0, 0, 0},
                               {2, LifeKind::kDecay, 102, 0.5f, 0, 0, 0},
                               {3, LifeKind::kDecay, 103, 0.5f, 0, 0, 0}};
  CHECK(life::Apply(kConfig, kCodec, events, 3, kKey, row.data()));
  CHECK(row == Row(4, 0, 0, 100, 3));
  CHECK(life::Apply(kConfig, kCodec, events, 3, kKey, row.data()));
  CHECK(row == Row(4, 0, 0, 100, 3));
}

TEST(a_shrink_deletes_low_scores) {
  std::vector<float> row = Row(10, 2, 0, 100, 0);
  LifeEvent event = Shrink(1, 100, 2.8f, 30);
  CHECK(life::Apply(kConfig, kCodec, &event, 1, kKey, row.data()));
  row = Row(10, 2, 0, 100, 0);
  event = Shrink(1, 100, 2.9f, 30);
  CHECK(!life::Apply(kConfig, kCodec, &event, 1, kKey, row.data()));
}

TEST(a_shrink_deletes_what_was_not_seen_for_longer_than_it_says) {
  for (const auto& [seen, day, lives] : {std::tuple{100u, 130u, true},
                                         {100u, 131u, false},
                                         {0u, 20000u, true},
                                         {140u, 100u, true}}) {
    std::vector<float> row = Row(10, 2, 0, seen, 0);
    const LifeEvent event = Shrink(1, day, 0, 30);
    CHECK_EQ(life::Apply(kConfig, kCodec, &event, 1, kKey, row.data()), lives);
  }
}

TEST(what_happens_in_order_matters) {
  const LifeEvent decay{1, LifeKind::kDecay, 100, 0.5f, 0, 0, 0};
  const LifeEvent first[2] = {decay, Shrink(2, 100, 2.0f, 30)};  // 1.4 is left: deleted
  LifeEvent second[2] = {Shrink(1, 100, 2.0f, 30), decay};       // 2.8, then 1.4
  second[1].seq = 2;
  std::vector<float> row = Row(10, 2, 0, 100, 0);
  CHECK(!life::Apply(kConfig, kCodec, first, 2, kKey, row.data()));
  row = Row(10, 2, 0, 100, 0);
  CHECK(life::Apply(kConfig, kCodec, second, 2, kKey, row.data()));
}

TEST(a_saved_delta_resets_the_rows_that_were_in_it) {
  const LifeEvent event{1, LifeKind::kDeltaReset, 105, 1, 1.5f, 0.25f, 16};
  for (const auto& [show, delta, day, left] : {std::tuple{20.0f, 0.5f, 100u, 0.0f},
                                               {10.0f, 0.5f, 100u, 0.5f},    // low score
                                               {20.0f, 0.2f, 100u, 0.2f},    // little new
                                               {20.0f, 0.5f, 80u, 0.5f}}) {  // long unseen
    std::vector<float> row = Row(show, 0, delta, day, 0);
    CHECK(life::Apply(kConfig, kCodec, &event, 1, kKey, row.data()));
    CHECK_EQ(row[RowLayout::kDeltaScore], left);
  }
}

bool Lives(const LifeEvent& event, uint64_t key, std::vector<float> row) {
  std::vector<float> head = row;
  const bool lives = life::Apply(kConfig, kCodec, &event, 1, key, row.data());
  CHECK_EQ(life::Survives(kConfig, &event, 1, key, head.data()), lives);
  return lives;
}

TEST(an_erasure_deletes_the_rows_of_its_keys_that_are_older) {
  LifeEvent event;
  event.seq = 1;
  event.kind = LifeKind::kErase;
  event.keys = std::make_shared<const std::vector<uint64_t>>(std::vector<uint64_t>{3, kKey});
  CHECK(!Lives(event, kKey, Row(10, 2, 0, 100, 0)));
  CHECK(!Lives(event, 3, Row(10, 2, 0, 100, 0)));
  CHECK(Lives(event, 4, Row(10, 2, 0, 100, 0)));
  CHECK(Lives(event, kKey, Row(10, 2, 0, 100, 1)));  // made after it
}

TEST(an_erasure_of_a_slot_deletes_its_rows) {
  LifeEvent event;
  event.seq = 1;
  event.kind = LifeKind::kErase;
  event.slot = 5;
  std::vector<float> row = Row(10, 2, 0, 100, 0);
  for (const uint32_t slot : {0u, 5u, 6u}) {
    SetWord(row.data(), 0, uint32_t{kHasEmbedx} << 16 | slot);
    CHECK_EQ(Lives(event, kKey, row), slot != 5);
  }
}

TEST(an_eviction_deletes_rows_of_a_lower_score_and_of_equal_ones_those_of_lower_keys) {
  LifeEvent event;
  event.seq = 1;
  event.kind = LifeKind::kEvict;
  event.lowest = life::RankOf(kConfig, false, 1000, Row(10, 2, 0, 7, 0).data());  // 2.8
  CHECK(!Lives(event, 2000, Row(9, 2, 0, 100, 0)));
  CHECK(!Lives(event, 999, Row(10, 2, 0, 100, 0)));
  CHECK(Lives(event, 1000, Row(10, 2, 0, 100, 0)));
  CHECK(Lives(event, 1, Row(11, 2, 0, 1, 0)));
}

TEST(an_eviction_by_day_deletes_rows_of_earlier_days_first) {
  LifeEvent event;
  event.seq = 1;
  event.kind = LifeKind::kEvict;
  event.by_day = true;
  event.lowest = life::RankOf(kConfig, true, 1000, Row(10, 2, 0, 100, 0).data());
  CHECK(!Lives(event, 2000, Row(90, 9, 0, 99, 0)));
  CHECK(!Lives(event, 2000, Row(9, 2, 0, 100, 0)));
  CHECK(!Lives(event, 999, Row(10, 2, 0, 100, 0)));
  CHECK(Lives(event, 1000, Row(10, 2, 0, 100, 0)));
  CHECK(Lives(event, 1, Row(1, 0, 0, 101, 0)));
}

TEST(a_score_that_is_negative_or_no_number_ranks_as_0) {
  for (const float show : {-5.0f, std::nanf("")}) {
    CHECK_EQ(life::RankOf(kConfig, false, 1, Row(show, 0, 0, 0, 0).data()).score, 0u);
  }
}

// A row of the default layout after a push.
std::vector<float> Trained(const AccessorConfig& config) {
  std::vector<float> row(static_cast<size_t>(config.layout.words()));
  const std::vector<float> gradient(static_cast<size_t>(1 + config.layout.embedx_dim), 0.3f);
  accessor::Create(config, kKey, 3, row.data());
  for (int i = 0; i < 3; ++i) {
    accessor::Push(config, kKey, 8, 5, gradient.data(), 100, row.data());
  }
  return row;
}

TEST(a_reset_gives_back_the_weights_of_a_new_row_and_keeps_its_counts) {
  for (const float threshold : {1.0f, 1e6f}) {
    AccessorConfig config;
    config.embedx_threshold = threshold;
    std::vector<float> row = Trained(config), fresh(row.size());
    accessor::Create(config, kKey, 3, fresh.data());
    if (threshold == 1.0f) accessor::CreateEmbedx(config, kKey, fresh.data());
    const auto weights = fresh.begin() + RowLayout::kEmbed;
    CHECK(!std::equal(weights, fresh.end(), row.begin() + RowLayout::kEmbed));
    const std::vector<float> before = row;
    const LifeEvent event{1, LifeKind::kResetRows, 0, 1, 0, 0, 0};
    CHECK(life::Apply(config, kCodec, &event, 1, kKey, row.data()));
    CHECK(std::equal(weights, fresh.end(), row.begin() + RowLayout::kEmbed));
    CHECK(std::equal(before.begin(), before.begin() + RowLayout::kLifeSeq, row.begin()));
    CHECK_EQ(GetWord(row.data(), RowLayout::kLifeSeq), 1u);
  }
}

TEST(a_packed_row_gets_the_bits_of_a_row) {
  AccessorConfig config;
  config.embedx_threshold = 1.0f;
  config.embedx.initial_range = 0.1f;
  const LifeEvent events[2] = {{1, LifeKind::kResetRows, 0, 1, 0, 0, 0},
                               {2, LifeKind::kDecay, 1, 0.5f, 0, 0, 0}};
  for (const Precision precision :
       {Precision::kFloat32, Precision::kFloat16, Precision::kBfloat16}) {
    const RowCodec codec(config.layout, precision);
    std::vector<float> row = Trained(config), unpacked(row.size());
    codec.Round(1, kKey, 1, row.data());
    std::vector<float> packed(codec.bytes() / 4);
    codec.Pack(row.data(), reinterpret_cast<char*>(packed.data()));
    CHECK(life::Apply(config, codec, events, 2, kKey, row.data()));
    CHECK(
        life::ApplyPacked(config, codec, events, 2, kKey, reinterpret_cast<char*>(packed.data())));
    codec.Unpack(reinterpret_cast<const char*>(packed.data()), unpacked.data());
    CHECK(unpacked == row);
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
          CHECK(life::Apply(kConfig, kCodec, &event, 1, kKey, row.data()));
          CHECK_EQ(row[RowLayout::kDeltaScore], in ? 0.0f : delta);
        }
      }
    }
  }
  CHECK_EQ(saved, size_t{2 * 4 * (4 + 2)});
}

TEST(further_counts_decay_with_show_and_click_in_rows_and_in_packed_rows) {
  for (const Precision precision : {Precision::kFloat32, Precision::kFloat16}) {
    AccessorConfig config;
    config.layout.counts = 2;
    const RowCodec codec(config.layout, precision);
    std::vector<float> row(static_cast<size_t>(config.layout.words()), 0.5f);
    SetWord(row.data(), RowLayout::kLifeSeq, 0);
    row[static_cast<size_t>(config.layout.counts_at())] = 12;
    row[static_cast<size_t>(config.layout.counts_at()) + 1] = 4;
    std::vector<float> packed(codec.bytes() / 4), expected = row, unpacked(row.size());
    codec.Pack(row.data(), reinterpret_cast<char*>(packed.data()));
    const LifeEvent event{1, LifeKind::kDecay, 101, 0.5f, 0, 0, 0};
    expected[RowLayout::kShow] = expected[RowLayout::kClick] = 0.25f;
    expected[static_cast<size_t>(config.layout.counts_at())] = 6;
    expected[static_cast<size_t>(config.layout.counts_at()) + 1] = 2;
    SetWord(expected.data(), RowLayout::kLifeSeq, 1);
    CHECK(life::Apply(config, codec, &event, 1, kKey, row.data()));
    CHECK(row == expected);
    CHECK(
        life::ApplyPacked(config, codec, &event, 1, kKey, reinterpret_cast<char*>(packed.data())));
    codec.Unpack(reinterpret_cast<const char*>(packed.data()), unpacked.data());
    CHECK(unpacked == expected);
  }
}

TEST(a_reset_of_weights_keeps_further_counts) {
  AccessorConfig config;
  config.layout.counts = 1;
  std::vector<float> row(static_cast<size_t>(config.layout.words()));
  accessor::Create(config, kKey, 0, row.data());
  row.back() = 3;
  accessor::ResetWeights(config, kKey, row.data());
  CHECK_EQ(row.back(), 3.0f);
}

// Rows of random counts that have seen any number of random events end alike with the list and with
// what Fold leaves of it, whenever it is folded.
TEST(folded_events_change_every_row_as_all_of_them_do) {
  uint64_t state = 7;
  const auto below = [&](uint64_t n) { return (state = Mix(state + 1)) % n; };
  const auto score = [&] { return 0.5f * static_cast<float>(below(6)); };
  size_t left = 0;
  for (int turn = 0; turn < 300; ++turn) {
    std::vector<LifeEvent> all, folded;
    for (uint32_t seq = 1; seq <= 24; ++seq) {
      LifeEvent event{seq, LifeKind::kDecay, 100 + seq / 8};
      switch (below(8)) {
        case 0: event.decay = 0.75f; break;
        case 1: event = Shrink(seq, event.day, 0.25f, 3); break;
        case 2: event.kind = LifeKind::kResetRows; break;
        case 3:
        case 4:
          event.kind = LifeKind::kDeltaReset;
          event.min_score = score();
          event.min_delta_score = score();
          event.max_unseen_days = static_cast<uint32_t>(below(2));
          break;
        default: {
          event.kind = LifeKind::kEvict;
          event.by_day = below(2) == 0;
          const float lowest = score();
          std::memcpy(&event.lowest.score, &lowest, sizeof(lowest));
          event.lowest.day = event.by_day ? static_cast<uint32_t>(98 + below(4)) : 0;
          event.lowest.key = below(2) << 63;
        }
      }
      all.push_back(event);
      folded.push_back(event);
      if (below(3) == 0) life::Fold(&folded);
    }
    life::Fold(&folded);
    CHECK_EQ(folded.back().seq, 24u);
    left += folded.size();
    for (int n = 0; n < 100; ++n) {
      const uint64_t key = Mix(below(1000));
      std::vector<float> row =
          Row(static_cast<float>(below(9)), static_cast<float>(below(3)), score(),
              static_cast<uint32_t>(97 + below(5)), static_cast<uint32_t>(below(25)));
      std::vector<float> other = row;
      const bool lives = life::Apply(kConfig, kCodec, all.data(), all.size(), key, row.data());
      CHECK_EQ(life::Survives(kConfig, folded.data(), folded.size(), key,
                              std::vector<float>(other).data()),
               lives);
      CHECK_EQ(life::Apply(kConfig, kCodec, folded.data(), folded.size(), key, other.data()),
               lives);
      CHECK(!lives || row == other);
    }
  }
  CHECK(left < 300 * 24);
}

TEST(evictions_and_saves_of_a_day_leave_one_event_each) {
  std::vector<LifeEvent> events;
  for (uint32_t seq = 1; seq <= 1000; ++seq) {
    LifeEvent event{seq, seq % 2 == 0 ? LifeKind::kEvict : LifeKind::kDeltaReset, 100};
    event.lowest.key = seq;
    events.push_back(event);
    life::Fold(&events);
    CHECK(events.size() <= 2);
  }
  events.push_back({1001, LifeKind::kDecay, 100, 0.5f});
  events.push_back({1002, LifeKind::kEvict, 101});
  events.back().lowest.key = 2000;
  life::Fold(&events);
  CHECK_EQ(events.size(), 4u);  // a decay changes ranks, so those before it stay
}

}  // namespace
}  // namespace pbx
