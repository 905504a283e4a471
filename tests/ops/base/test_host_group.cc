#include "base/host_group.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/host_members.h"
#include "check.h"

namespace pbx {
namespace {

using Bytes = HostGroup::Bytes;

std::vector<unsigned char> Letter(int from, int to, int turn, size_t size) {
  std::vector<unsigned char> bytes(size);
  for (size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<unsigned char>(i * 7 + static_cast<size_t>(from * 31 + to * 5 + turn));
  }
  return bytes;
}

// Of a turn, what `from` sends to `to`: nothing, less than a window, and many of them.
size_t SizeOf(int from, int to, int turn) {
  const size_t sizes[] = {0, 1, 100, kWindow - 8, kWindow, 50000};
  return sizes[static_cast<size_t>(from + 2 * to + turn) % 6];
}

TEST(every_member_gets_what_each_sent_whatever_its_size) {
  for (const int members : {1, 2, 4}) {
    const std::vector<int> outcomes = RunMembers(members, [&](HostGroup* group, int me) {
      for (int turn = 0; turn < 60; ++turn) {
        std::vector<std::vector<unsigned char>> out, into;
        std::vector<Bytes> from, to;
        for (int peer = 0; peer < members; ++peer) {
          out.push_back(Letter(me, peer, turn, SizeOf(me, peer, turn)));
          into.emplace_back(SizeOf(peer, me, turn));
        }
        for (size_t peer = 0; peer < out.size(); ++peer) {
          from.emplace_back(out[peer].data(), out[peer].size());
          to.emplace_back(into[peer].data(), into[peer].size());
        }
        if (!group->Swap(turn % 2, from, to).ok()) return 1;
        for (int peer = 0; peer < members; ++peer) {
          const auto expected = Letter(peer, me, turn, SizeOf(peer, me, turn));
          if (into[static_cast<size_t>(peer)] != expected) return 2;
        }
      }
      return 0;
    });
    CHECK(outcomes == std::vector<int>(static_cast<size_t>(members), 0));
  }
}

TEST(messages_of_sizes_that_the_receiver_does_not_know_arrive_whole) {
  const std::vector<int> outcomes = RunMembers(4, [](HostGroup* group, int me) {
    for (int turn = 0; turn < 60; ++turn) {
      std::vector<std::vector<unsigned char>> out, into(4);
      std::vector<Bytes> from;
      for (int peer = 0; peer < 4; ++peer) {
        out.push_back(Letter(me, peer, turn, SizeOf(me, peer, turn)));
      }
      for (auto& letter : out) from.emplace_back(letter.data(), letter.size());
      const auto room = [&](int member, size_t size, unsigned char** at) {
        into[static_cast<size_t>(member)].resize(size);
        *at = into[static_cast<size_t>(member)].data();
        return Status::Ok();
      };
      if (!group->Exchange(turn % 2, from, room).ok()) return 1;
      for (int peer = 0; peer < 4; ++peer) {
        const size_t size = peer == me ? 0 : SizeOf(peer, me, turn);
        if (into[static_cast<size_t>(peer)] != Letter(peer, me, turn, size)) return 2;
      }
    }
    return 0;
  });
  CHECK(outcomes == std::vector<int>(4, 0));
}

TEST(a_sum_is_added_up_in_the_order_of_members_on_each) {
  const auto value = [](int member, size_t i) {
    return 1.0f / static_cast<float>(i + 1) + 1e6f * static_cast<float>(member % 2);
  };
  for (const size_t n : {size_t{0}, size_t{1}, size_t{3}, size_t{10007}}) {
    const std::vector<int> outcomes = RunMembers(4, [&](HostGroup* group, int me) {
      std::vector<float> values(n);
      for (size_t i = 0; i < n; ++i) values[i] = value(me, i);
      if (!group->Sum(0, values.data(), n).ok()) return 1;
      for (size_t i = 0; i < n; ++i) {
        float expected = value(0, i);
        for (int member = 1; member < 4; ++member) expected += value(member, i);
        if (values[i] != expected) return 2;
      }
      return 0;
    });
    CHECK(outcomes == std::vector<int>(4, 0));
  }
}

// Swaps nothing with each until something goes wrong; 0 when that names rank 2.
int SwapUntilItFails(HostGroup* group, const std::string& word) {
  const std::vector<Bytes> nothing(static_cast<size_t>(group->members()), Bytes{nullptr, 0});
  for (;;) {
    const Status status = group->Swap(1, nothing, nothing);
    if (status.ok()) continue;
    const bool named = status.message().find("rank 2") != std::string::npos &&
                       status.message().find(word) != std::string::npos;
    return status.code() == Code::kPeerGone && named ? 0 : 1;
  }
}

TEST(a_member_that_is_killed_ends_the_waits_of_the_others_and_is_named) {
  const auto outcomes = RunMembers(3, [](HostGroup* group, int me) {
    if (me != 2) {
      const int outcome = SwapUntilItFails(group, "2");
      group->Leave("rank 2 is gone");  // or the other might wait for this one
      return outcome;
    }
    const std::vector<Bytes> nothing(3, Bytes{nullptr, 0});
    for (int turn = 0; turn < 10; ++turn) {
      if (!group->Swap(1, nothing, nothing).ok()) return 1;
    }
    ::raise(SIGKILL);
    return 1;
  });
  CHECK((outcomes == std::vector<int>{0, 0, 128 + SIGKILL}));
}

TEST(a_member_that_leaves_says_why_and_need_not_end) {
  const auto outcomes = RunMembers(3, [](HostGroup* group, int me) {
    if (me != 2) return SwapUntilItFails(group, "a file is missing");
    group->Leave("a file is missing");
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    return 0;
  });
  CHECK((outcomes == std::vector<int>{0, 0, 0}));
}

TEST(what_a_member_sent_before_it_ended_is_read) {
  const auto outcomes = RunMembers(2, [](HostGroup* group, int me) {
    unsigned char mine = static_cast<unsigned char>(me), theirs = 9;
    const std::vector<Bytes> out(2, Bytes{&mine, 1});
    std::vector<Bytes> into(2, Bytes{&theirs, 1});
    into[static_cast<size_t>(me)] = Bytes{&mine, 1};
    if (me == 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    const Status status = group->Swap(0, out, into);
    return status.ok() && theirs == 1 - me ? 0 : 1;
  });
  CHECK_EQ(outcomes[0], 0);
}

TEST(members_that_disagree_about_a_size_find_out) {
  const auto outcomes = RunMembers(2, [](HostGroup* group, int me) {
    std::vector<unsigned char> bytes(64);
    const size_t size = me == 0 ? 16 : 24;  // each expects what it sends itself
    const std::vector<Bytes> same(2, Bytes{bytes.data(), size});
    const Status status = group->Swap(0, same, same);
    return status.code() == Code::kInvalidArgument ? 0 : 1;
  });
  CHECK((outcomes == std::vector<int>{0, 0}));
}

TEST(memory_that_is_another_groups_is_refused) {
  std::unique_ptr<HostGroup> made = std::move(HostGroup::Create(2, Names(2), kWindow).value());
  const std::string where = made->where(), path = where.substr(0, where.find(' '));
  CHECK_CODE(HostGroup::Open(path + " 1", 1, 2, Names(2), kWindow).status(), Code::kIOError);
  CHECK_CODE(HostGroup::Open(where, 1, 3, Names(2), kWindow).status(), Code::kIOError);
  CHECK_CODE(HostGroup::Open("/proc/self/fd/999 1", 1, 2, Names(2), kWindow).status(),
             Code::kIOError);
  CHECK_OK(HostGroup::Open(where, 1, 2, Names(2), kWindow).status());
}

TEST(a_wait_is_broken_off_when_its_owner_says_so) {
  std::unique_ptr<HostGroup> made = std::move(HostGroup::Create(1, Names(2), kWindow).value());
  const std::vector<Bytes> nothing(2, Bytes{nullptr, 0});
  int asked = 0;
  const Status status = made->Swap(0, nothing, nothing, [&asked] { return ++asked < 2; });
  CHECK_CODE(status, Code::kPeerGone);
  CHECK_EQ(asked, 2);
}

}  // namespace
}  // namespace pbx
