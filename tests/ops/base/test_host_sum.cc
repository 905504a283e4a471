#include "base/host_sum.h"

#include <csignal>
#include <cstddef>
#include <string>
#include <vector>

#include "base/host_members.h"
#include "check.h"

namespace pbx {
namespace {

constexpr float kScale = 0.3f;

float Value(int member, int turn, size_t i) {
  return 1.0f / static_cast<float>(i + 1 + static_cast<size_t>(turn)) +
         1e6f * static_cast<float>(member % 2);
}

// A sum of n values in two parts; 0 where each is as added up by hand, in the order of members.
int SumsRight(HostGroup* group, HostSum* sums, int me, int turn, size_t n) {
  std::vector<float> values(n), sum(n, -1.0f);
  for (size_t i = 0; i < n; ++i) values[i] = Value(me, turn, i);
  const std::vector<HostSum::Part> parts = {{values.data(), n / 3},
                                            {values.data() + n / 3, n - n / 3}};
  if (!sums->Add(parts, kScale, sum.data()).ok()) return 1;
  for (size_t i = 0; i < n; ++i) {
    float expected = Value(0, turn, i) * kScale;
    for (int member = 1; member < group->members(); ++member) {
      const float theirs = Value(member, turn, i) * kScale;
      expected += theirs;
    }
    if (sum[i] != expected) return 2;
  }
  return 0;
}

TEST(every_member_gets_the_same_sum_in_the_order_of_members_whatever_their_number) {
  for (const int members : {1, 2, HostSum::kMostMembers, HostSum::kMostMembers + 1}) {
    const auto outcomes = RunMembers(members, [](HostGroup* group, int me) {
      HostSum sums(group, 0);
      for (const size_t n : {size_t{0}, size_t{1}, size_t{3}, size_t{10007}, size_t{4097}}) {
        if (const int wrong = SumsRight(group, &sums, me, 0, n); wrong != 0) return wrong;
      }
      return 0;
    });
    CHECK(outcomes == std::vector<int>(static_cast<size_t>(members), 0));
  }
}

TEST(a_member_that_is_late_still_reads_what_the_others_gave_for_that_sum) {
  const auto outcomes = RunMembers(3, [](HostGroup* group, int me) {
    HostSum sums(group, 1);
    for (int turn = 0; turn < 300; ++turn) {
      if (turn % 3 == me) ::usleep(200);
      if (const int wrong = SumsRight(group, &sums, me, turn, 5000); wrong != 0) return wrong;
    }
    return 0;
  });
  CHECK(outcomes == std::vector<int>(3, 0));
}

TEST(members_that_sum_different_numbers_of_values_are_told) {
  const auto outcomes = RunMembers(2, [](HostGroup* group, int me) {
    HostSum sums(group, 0);
    if (SumsRight(group, &sums, me, 0, 100) != 0) return 1;
    const std::vector<float> values(100);
    std::vector<float> sum(100);
    const size_t n = me == 0 ? 100 : 99;
    const Status status = sums.Add({{values.data(), n}}, 1.0f, sum.data());
    return status.code() == Code::kInvalidArgument ? 0 : 2;
  });
  CHECK(outcomes == std::vector<int>(2, 0));
}

TEST(a_sum_with_a_member_that_is_killed_ends_and_names_it) {
  const auto outcomes = RunMembers(3, [](HostGroup* group, int me) {
    HostSum sums(group, 0);
    if (SumsRight(group, &sums, me, 0, 100) != 0) return 1;
    if (me == 2) ::raise(SIGKILL);
    const std::vector<float> values(100);
    std::vector<float> sum(100);
    const Status status = sums.Add({{values.data(), 100}}, 1.0f, sum.data());
    const bool named = status.message().find("rank 2") != std::string::npos;
    group->Leave("rank 2 is gone");  // or the other might wait for this one
    return status.code() == Code::kPeerGone && named ? 0 : 2;
  });
  CHECK(outcomes == (std::vector<int>{0, 0, 128 + SIGKILL}));
}

}  // namespace
}  // namespace pbx
