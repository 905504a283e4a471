// What ranks make of keys and batches: keys merged by their owner, batches of their own rows.
#include "row/compact.h"

#include <cstdint>
#include <vector>

#include "check.h"
#include "row/plan.h"

namespace pbx {
namespace {

using Ints = std::vector<int32_t>;

TEST(an_owner_gets_each_key_once_with_the_lowest_slot_and_all_counts) {
  const std::vector<uint64_t> a = {2, 5, 9}, b = {1, 5}, c = {};
  const std::vector<uint16_t> slots_a = {3, 7, 1}, slots_b = {4, 2};
  const std::vector<uint32_t> counts_a = {1, UINT32_MAX - 1, 3}, counts_b = {6, 5};
  MergedKeys merged;
  CHECK_OK(MergeKeys({{a.data(), slots_a.data(), counts_a.data(), a.size()},
                      {b.data(), slots_b.data(), counts_b.data(), b.size()},
                      {c.data(), nullptr, nullptr, 0}},
                     &merged));
  CHECK(merged.keys == std::vector<uint64_t>({1, 2, 5, 9}));
  CHECK(merged.slots == std::vector<uint16_t>({4, 3, 2, 1}));
  CHECK(merged.counts == std::vector<uint32_t>({6, 1, UINT32_MAX, 3}));
  CHECK_EQ(merged.places.size(), 3u);
  CHECK(merged.places[0] == Ints({1, 2, 3}));
  CHECK(merged.places[1] == Ints({0, 2}));
  CHECK(merged.places[2].empty());
}

TEST(lists_that_lack_slots_or_counts_give_none) {
  const std::vector<uint64_t> a = {2, 5};
  const std::vector<uint16_t> slots = {1, 1};
  MergedKeys merged;
  CHECK_OK(
      MergeKeys({{a.data(), slots.data(), nullptr, 2}, {a.data(), nullptr, nullptr, 2}}, &merged));
  CHECK(merged.keys == a);
  CHECK(merged.slots.empty());
  CHECK(merged.counts.empty());
}

TEST(keys_that_do_not_ascend_are_refused) {
  const std::vector<uint64_t> keys = {5, 5};
  MergedKeys merged;
  CHECK_CODE(MergeKeys({{keys.data(), nullptr, nullptr, 2}}, &merged), Code::kInvalidArgument);
}

TEST(a_batch_names_its_own_rows) {
  Ints ids = {40, -1, 7, 40, 90};
  const Ints offsets = {0, 1, 3, 5};
  Ints plan, rows;
  BuildPlan(ids.data(), offsets.data(), 3, 11, &plan);
  CHECK_OK(CompactBatch(ids.data(), ids.size(), plan.data(), plan.size(), 100, &rows));
  CHECK(rows == Ints({7, 40, 90}));
  CHECK(ids == Ints({1, -1, 0, 1, 2}));
  const Result<PlanView> view = ViewPlan(plan.data(), plan.size(), 3, 3);
  CHECK_OK(view.status());
  CHECK_EQ(view.value().stamp, 11);
  CHECK_EQ(view.value().rows[2], 2);
}

TEST(an_id_that_the_plan_lacks_is_refused_and_the_next_batch_is_right) {
  Ints ids = {3, 4};
  const Ints offsets = {0, 2};
  Ints plan, rows;
  BuildPlan(ids.data(), offsets.data(), 1, 1, &plan);
  Ints wrong = {3, 5};
  Ints copy = plan;
  CHECK_CODE(CompactBatch(wrong.data(), 2, copy.data(), copy.size(), 10, &rows),
             Code::kInvalidArgument);
  Ints outside = {3, 10};
  copy = plan;
  CHECK_CODE(CompactBatch(outside.data(), 2, copy.data(), copy.size(), 10, &rows),
             Code::kInvalidArgument);
  CHECK_OK(CompactBatch(ids.data(), 2, plan.data(), plan.size(), 10, &rows));
  CHECK(ids == Ints({0, 1}));
}

TEST(rows_of_the_batch_before_are_not_rows_of_this_one) {
  const Ints offsets = {0, 1};
  Ints ids = {3}, other = {4}, plan, rows;
  BuildPlan(ids.data(), offsets.data(), 1, 1, &plan);
  CHECK_OK(CompactBatch(ids.data(), 1, plan.data(), plan.size(), 10, &rows));
  BuildPlan(other.data(), offsets.data(), 1, 1, &plan);
  ids = {3};
  CHECK_CODE(CompactBatch(ids.data(), 1, plan.data(), plan.size(), 10, &rows),
             Code::kInvalidArgument);
}

}  // namespace
}  // namespace pbx
