// The shows and clicks that instances add to rows and see of them, by fold.
#include <memory>
#include <utility>
#include <vector>

#include "base/threads.h"
#include "check.h"
#include "feed/instances/instances.h"
#include "row/feasign.h"

using namespace pbx;

namespace {

// Instances of two slots: one feasign, and two of which the first repeats that of the other slot.
std::unique_ptr<Instances> Three() {
  auto instances = std::make_unique<Instances>(2, 0);
  ParsedChunk chunk;
  chunk.instances = 3;
  chunk.labels = {1, 0, 1};
  chunk.lengths = {1, 2, 1, 0, 0, 1};
  chunk.feasigns = {5, 5, 6, 6, 7};
  CHECK_OK(instances->Append(std::move(chunk)));
  ThreadPool pool(1);
  CHECK_OK(instances->Index(&pool));
  return instances;
}

// The row ids: 0 for feasign 5, 1 for 6, none for 7.
std::vector<int32_t> RowsOf(const Instances& instances) {
  const RangeKeys keys = instances.SelectRange({0, instances.size()}).value();
  std::vector<int32_t> rows;
  for (const uint64_t key : keys.keys) {
    const uint64_t feasign = FeasignOf(key);
    rows.push_back(feasign == 7 ? -1 : static_cast<int32_t>(feasign - 5));
  }
  return rows;
}

NumberedRange All(size_t first) {
  NumberedRange range;
  range.end = 3;
  range.first = first;
  return range;
}

TEST(an_instance_counts_each_occurrence_in_its_fold_and_sees_the_sum_of_a_slot) {
  const auto instances = Three();
  const std::vector<int32_t> rows = RowsOf(*instances);
  const Folds folds{7, 3};
  std::vector<float> counts(2 * 3 * 2, 0.0f), expected(counts);
  CHECK_OK(instances->AddClickCounts(All(100), rows.data(), folds, {0, 1}, 2, counts.data()));
  const auto add = [&](size_t row, size_t number, float show, float click) {
    float* const pair = &expected[(row * 3 + folds.Of(number)) * 2];
    pair[0] += show;
    pair[1] += click;
  };
  add(0, 100, 2, 2);
  add(1, 100, 1, 1);
  add(1, 101, 1, 0);
  CHECK(counts == expected);
  // Without folds an instance sees all counts, those of rows that it has twice included.
  const std::vector<float> known = {10, 3, 4, 1};  // of rows 0 and 1
  std::vector<float> seen(3 * 4, 0.0f);
  CHECK_OK(
      instances->PackClickCounts(All(0), rows.data(), {}, {1, 0}, known.data(), 2, seen.data()));
  CHECK(seen == (std::vector<float>{14, 10, 4, 3, 0, 4, 0, 1, 0, 0, 0, 0}));
}

TEST(only_what_a_batch_gets_in_the_given_slots_is_counted) {
  const auto instances = Three();
  const std::vector<int32_t> rows = RowsOf(*instances);
  std::vector<float> counts(4, 0.0f);
  CHECK_OK(instances->AddClickCounts(All(0), rows.data(), {}, {1}, 2, counts.data()));
  CHECK(counts == (std::vector<float>{1, 1, 1, 1}));
  // The second slot of each instance comes from the one before.
  const std::vector<uint32_t> donors = {2, 0, 1};
  CHECK_OK(instances->FeedFrom({1}, donors.data(), donors.size()));
  counts.assign(4, 0.0f);
  CHECK_OK(instances->AddClickCounts(All(0), rows.data(), {}, {1}, 2, counts.data()));
  CHECK(counts == (std::vector<float>{1, 0, 1, 0}));
  counts.assign(4, 0.0f);
  CHECK_OK(instances->AddClickCounts(All(0), rows.data(), {}, {0, 1}, 2, counts.data()));
  CHECK(counts == (std::vector<float>{2, 1, 2, 0}));
}

TEST(folds_are_of_about_the_same_size_and_depend_on_seed_and_number_alone) {
  std::vector<size_t> sizes(5);
  size_t moved = 0;
  for (size_t number = 0; number < 10000; ++number) {
    ++sizes[Folds{1, 5}.Of(number)];
    moved += Folds{1, 5}.Of(number) != Folds{2, 5}.Of(number) ? 1 : 0;
  }
  for (const size_t size : sizes) CHECK(size > 1800 && size < 2200);
  CHECK(moved > 7500 && moved < 8500);
}

TEST(a_row_or_a_slot_that_does_not_exist_is_refused) {
  const auto instances = Three();
  const std::vector<int32_t> rows = RowsOf(*instances);
  std::vector<float> counts(4, 0.0f), seen(6, 0.0f);
  CHECK_CODE(instances->AddClickCounts(All(0), rows.data(), {}, {0, 1}, 1, counts.data()),
             Code::kInvalidArgument);
  CHECK_CODE(instances->AddClickCounts(All(0), rows.data(), {}, {2}, 2, counts.data()),
             Code::kInvalidArgument);
  CHECK_CODE(
      instances->PackClickCounts(All(0), rows.data(), {}, {0}, counts.data(), 1, seen.data()),
      Code::kInvalidArgument);
  CHECK_CODE(
      instances->PackClickCounts(All(0), rows.data(), {}, {2}, counts.data(), 2, seen.data()),
      Code::kInvalidArgument);
}

}  // namespace
