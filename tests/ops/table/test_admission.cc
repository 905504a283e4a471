// The admission filter's promises: it admits in time, seldom early, and in no order.
#include "table/admission.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "check.h"

namespace pbx {
namespace {

AdmissionFilter Make(uint64_t bytes, uint32_t threshold) {
  return std::move(AdmissionFilter::Make(bytes, threshold).value());
}

std::vector<uint64_t> Keys(uint64_t first, size_t n) {
  std::vector<uint64_t> keys;
  for (size_t i = 0; i < n; ++i) keys.push_back(Mix(first + i));
  std::sort(keys.begin(), keys.end());
  return keys;
}

TEST(a_key_is_admitted_at_its_count_and_not_before) {
  AdmissionFilter filter = Make(1 << 20, 4);
  const std::vector<uint64_t> keys = Keys(1, 1);
  for (uint32_t pass = 1; pass <= 6; ++pass) {
    filter.Add(keys.data(), nullptr, 1);
    CHECK_EQ(filter.Admits(keys[0]), pass >= 4);
  }
  CHECK_EQ(filter.Estimate(keys[0]), 4u);  // what is admitted is not counted on
}

TEST(counts_of_a_pass_are_added_and_stop_at_what_a_counter_holds) {
  AdmissionFilter filter = Make(1 << 20, 255);
  const std::vector<uint64_t> keys = Keys(1, 1);
  const uint32_t counts[] = {100, 100, 4000000000u};
  filter.Add(keys.data(), counts, 1);
  CHECK_EQ(filter.Estimate(keys[0]), 100u);
  filter.Add(keys.data(), counts + 1, 1);
  CHECK_EQ(filter.Estimate(keys[0]), 200u);
  filter.Add(keys.data(), counts + 2, 1);
  CHECK_EQ(filter.Estimate(keys[0]), 255u);
}

// 20,000 keys of three counters each in 64 KiB: nearly every counter is used.
TEST(no_key_is_ever_estimated_too_low) {
  AdmissionFilter filter = Make(AdmissionFilter::kMinBytes, 10);
  const std::vector<uint64_t> keys = Keys(1, 20000);
  std::vector<uint32_t> counts;
  for (size_t i = 0; i < keys.size(); ++i) counts.push_back(static_cast<uint32_t>(i % 12));
  filter.Add(keys.data(), counts.data(), keys.size());
  size_t wrong = 0;
  for (size_t i = 0; i < keys.size(); ++i) wrong += filter.Estimate(keys[i]) < counts[i];
  CHECK_EQ(wrong, 0u);
}

TEST(with_three_bytes_a_key_one_in_thirty_is_admitted_early) {
  AdmissionFilter filter = Make(1 << 20, 3);
  const std::vector<uint64_t> keys = Keys(1, (1 << 20) / 3);
  filter.Add(keys.data(), nullptr, keys.size());
  size_t early = 0;
  for (const uint64_t key : keys) early += filter.Admits(key);
  CHECK(early > 0);
  CHECK(early < keys.size() / 30);
}

TEST(the_order_of_keys_within_a_pass_does_not_matter) {
  std::vector<uint64_t> keys = Keys(1, 20000);
  std::vector<uint32_t> counts;
  for (const uint64_t key : keys) counts.push_back(static_cast<uint32_t>(key % 7));
  AdmissionFilter forwards = Make(AdmissionFilter::kMinBytes, 5);
  AdmissionFilter backwards = Make(AdmissionFilter::kMinBytes, 5);
  for (int pass = 0; pass < 3; ++pass) {
    forwards.Add(keys.data(), counts.data(), keys.size());
    std::vector<uint64_t> turned(keys.rbegin(), keys.rend());
    std::vector<uint32_t> turned_counts(counts.rbegin(), counts.rend());
    backwards.Add(turned.data(), turned_counts.data(), turned.size());
    CHECK(std::memcmp(forwards.state(), backwards.state(), forwards.bytes()) == 0);
  }
}

TEST(a_state_given_back_goes_on_where_it_was_and_another_size_is_refused) {
  AdmissionFilter filter = Make(AdmissionFilter::kMinBytes, 2);
  const std::vector<uint64_t> keys = Keys(1, 100);
  filter.Add(keys.data(), nullptr, keys.size());
  AdmissionFilter again = Make(AdmissionFilter::kMinBytes, 2);
  CHECK_OK(again.SetState(filter.state(), filter.bytes()));
  again.Add(keys.data(), nullptr, keys.size());
  for (const uint64_t key : keys) CHECK(again.Admits(key));
  CHECK_CODE(again.SetState(filter.state(), 5), Code::kInvalidArgument);
}

TEST(sizes_and_thresholds_that_cannot_be_are_refused) {
  CHECK_CODE(AdmissionFilter::Make(100000, 2).status(), Code::kInvalidArgument);
  CHECK_CODE(AdmissionFilter::Make(1 << 15, 2).status(), Code::kInvalidArgument);
  CHECK_CODE(AdmissionFilter::Make(1 << 20, 1).status(), Code::kInvalidArgument);
  CHECK_CODE(AdmissionFilter::Make(1 << 20, 256).status(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace pbx
