#include "row/plan.h"

#include <cstring>
#include <map>

#include "base/hash.h"
#include "check.h"

using namespace pbx;

namespace {

using Ints = std::vector<int32_t>;

// Each id has its index as its factor, or none has a factor.
Ints Build(const Ints& ids, const Ints& offsets, int32_t stamp, bool factors = false) {
  Ints plan = {99, 98};  // overwritten
  std::vector<float> of_ids(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) of_ids[i] = static_cast<float>(i);
  BuildPlan(ids.data(), offsets.data(), offsets.size() - 1, stamp, &plan,
            factors ? of_ids.data() : nullptr);
  return plan;
}

// The same by a map from row to indexes of ids.
Ints Naive(const Ints& ids, const Ints& offsets, int32_t stamp, bool factors = false) {
  std::map<int32_t, Ints> model;
  Ints segment_of;
  for (size_t s = 0; s + 1 < offsets.size(); ++s) {
    for (int32_t i = offsets[s]; i < offsets[s + 1]; ++i) {
      const int32_t id = ids[static_cast<size_t>(i)];
      if (id >= 0) model[id].push_back(i);
      segment_of.push_back(static_cast<int32_t>(s));
    }
  }
  Ints rows, starts = {0}, segments, of_ids, of_occurrences;
  const auto factor_of = [](int32_t index) {
    const float factor = static_cast<float>(index);
    int32_t bits;
    std::memcpy(&bits, &factor, 4);
    return bits;
  };
  for (size_t i = 0; i < ids.size(); ++i) of_ids.push_back(factor_of(static_cast<int32_t>(i)));
  for (const auto& [row, of_row] : model) {
    rows.push_back(row);
    for (const int32_t index : of_row) {
      const int32_t segment = segment_of[static_cast<size_t>(index)];
      segments.push_back(index == of_row[0] ? segment | kFirst : segment);
      of_occurrences.push_back(factor_of(index));
    }
    starts.push_back(static_cast<int32_t>(segments.size()));
  }
  Ints plan = {stamp, static_cast<int32_t>(rows.size()), static_cast<int32_t>(segments.size())};
  plan.insert(plan.end(), rows.begin(), rows.end());
  plan.insert(plan.end(), starts.begin(), starts.end());
  plan.insert(plan.end(), segments.begin(), segments.end());
  if (!factors) return plan;
  plan.insert(plan.end(), of_ids.begin(), of_ids.end());
  plan.insert(plan.end(), of_occurrences.begin(), of_occurrences.end());
  return plan;
}

bool Refused(const Ints& plan, size_t rows, size_t segments) {
  return ViewPlan(plan.data(), plan.size(), rows, segments).status().code() ==
         Code::kInvalidArgument;
}

}  // namespace

// Segments: {5, 2} {} {5, -1, 5} {2}.
TEST(a_plan_worked_by_hand) {
  const Ints plan = Build({5, 2, 5, -1, 5, 2}, {0, 2, 2, 5, 6}, 42);
  const Ints expected = {42,         2, 5,                  // stamp, 2 rows, 5 occurrences
                         2,          5,                     // rows
                         0,          2, 5,                  // starts
                         kFirst | 0, 3, kFirst | 0, 2, 2};  // segments of row 2, then of row 5
  CHECK(plan == expected);
  const Result<PlanView> view = ViewPlan(plan.data(), plan.size(), 6, 4);
  CHECK_OK(view.status());
  CHECK_EQ(view.value().stamp, 42);
  CHECK_EQ(view.value().unique, 2u);
  CHECK_EQ(view.value().occurrences, 5u);
  CHECK_EQ(view.value().rows[1], 5);
  CHECK_EQ(view.value().starts[2], 5);
  CHECK_EQ(view.value().segments[4], 2);
}

TEST(a_batch_without_rows_has_an_empty_plan) {
  const Ints expected = {7, 0, 0, 0};
  CHECK(Build({}, {0}, 7) == expected);
  CHECK(Build({}, {0, 0, 0}, 7) == expected);
  CHECK(Build({-1, -1}, {0, 1, 2}, 7) == expected);
  CHECK_OK(ViewPlan(expected.data(), expected.size(), 0, 0).status());
}

TEST(plans_agree_with_a_map_for_every_width_of_row_id) {
  for (int bits = 1; bits <= 31; ++bits) {
    Ints ids, offsets = {0};
    uint64_t random = static_cast<uint64_t>(bits);
    for (int s = 0; s < 300; ++s) {
      for (uint64_t n = Mix(++random) % 6; n > 0; --n) {
        const uint64_t draw = Mix(++random);
        ids.push_back(draw % 10 == 0 ? -1 : static_cast<int32_t>(draw >> (64 - bits)));
      }
      offsets.push_back(static_cast<int32_t>(ids.size()));
    }
    const Ints plan = Build(ids, offsets, bits);
    CHECK(plan == Naive(ids, offsets, bits));
    CHECK(Build(ids, offsets, bits, true) == Naive(ids, offsets, bits, true));
    CHECK_OK(ViewPlan(plan.data(), plan.size(), size_t{1} << bits, 300).status());
  }
}

TEST(slots_of_one_id_agree_with_a_map) {
  for (const size_t segments : {1u, 2u, 100u, 5000u}) {
    Ints ids, offsets = {0};
    for (size_t s = 0; s < segments; ++s) {
      ids.push_back(static_cast<int32_t>(Mix(s) % 1000) - 1);
      offsets.push_back(static_cast<int32_t>(ids.size()));
    }
    CHECK(Build(ids, offsets, 1) == Naive(ids, offsets, 1));
    CHECK(Build(ids, offsets, 1, true) == Naive(ids, offsets, 1, true));
  }
}

// Half of a row id's 31 bits and 18 bits of a segment are more than 32.
TEST(many_segments_of_large_row_ids_agree_with_a_map) {
  Ints ids, offsets = {0};
  for (uint64_t s = 0; s < 140000; ++s) {
    const uint64_t draw = Mix(s);
    for (uint64_t n = draw % 3; n > 0; --n) {
      ids.push_back(draw % 10 == 0 ? -1 : static_cast<int32_t>(Mix(draw % 50000 + n) >> 33));
    }
    offsets.push_back(static_cast<int32_t>(ids.size()));
  }
  CHECK(Build(ids, offsets, 1) == Naive(ids, offsets, 1));
  CHECK(Build(ids, offsets, 1, true) == Naive(ids, offsets, 1, true));
  // With factors, an index of an id takes the place of the segment.
  const Ints one = {0, static_cast<int32_t>(ids.size())};
  CHECK(Build(ids, one, 1, true) == Naive(ids, one, 1, true));
}

TEST(empty_segments_in_a_row_are_counted_however_many) {
  for (const size_t empty : {1u, 254u, 255u, 256u, 1000u}) {
    Ints offsets = {0, 1};
    offsets.insert(offsets.end(), empty, 1);
    offsets.push_back(2);
    const Ints ids = {3, 3};
    CHECK(Build(ids, offsets, 1) == Naive(ids, offsets, 1));
  }
}

TEST(the_largest_row_id_fits) {
  const Ints ids = {INT32_MAX, 0, INT32_MAX}, offsets = {0, 3};
  CHECK(Build(ids, offsets, 1) == Naive(ids, offsets, 1));
}

TEST(a_view_refuses_what_could_not_be_walked_safely) {
  const Ints good = Build({5, 2, 5, -1, 5, 2}, {0, 2, 2, 5, 6}, 42);
  CHECK(!Refused(good, 6, 4));
  CHECK(Refused(good, 5, 4));  // row 5 outside
  CHECK(Refused(good, 6, 3));  // segment 3 outside
  struct Damage {
    size_t at;
    int32_t value;
  };
  // good = 42, 2, 5 | 2, 5 | 0, 2, 5 | first 0, 3, first 0, 2, 2
  for (const Damage& damage :
       std::vector<Damage>{{1, -1},         {1, 1},  {1, 3}, {1, INT32_MAX}, {2, -1}, {2, 4},
                           {2, INT32_MAX},  {3, -1}, {3, 5}, {4, 1},         {4, 2},  {5, 1},
                           {5, -1},         {6, 0},  {6, 5}, {6, 6},         {7, 4},  {8, 0},
                           {8, kFirst | 4}, {9, -1}, {9, 4}, {10, 3},        {12, 1}}) {
    Ints bad = good;
    bad[damage.at] = damage.value;
    if (Refused(bad, 6, 4)) continue;
    test::Fail(__FILE__, __LINE__,
               "not refused: " + std::to_string(damage.value) + " at " + std::to_string(damage.at));
  }
  for (size_t size = 0; size < good.size(); ++size) {
    CHECK(Refused(Ints(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size)), 6, 4));
  }
  Ints longer = good;
  longer.push_back(0);
  CHECK(Refused(longer, 6, 4));
}
