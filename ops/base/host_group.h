// HostGroup: processes of one host that exchange bytes through memory they share.
//
// The memory is a memfd: it has no name in any folder, so that nothing of it is left behind however
// its processes end. The first one makes it, the others open it through /proc/<pid>/fd.
//
//   [lane][from][to]  a ring of bytes; who writes waits where it is full, who reads where it is
//                     empty, both asleep (futex) after a short while
//
// Each message carries its size, so that members that disagree about one find out. A member that
// ends, however it does, ends the waits of the others within a tenth of a second, with an error
// that names it; one that calls Leave at once.
//
// Letters: M = members.
//
// Thread safety: each lane is one thread's at a time; Leave any thread's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace pbx {

// What one lane has done since it was made.
struct LaneCounters {
  uint64_t sent_bytes = 0;
  uint64_t ns = 0;          // in exchanges, waits included
  uint64_t waiting_ns = 0;  // of them, with nothing to move
  uint64_t waits = 0;       // how many waits that were
};

class HostGroup {
 public:
  using Bytes = std::pair<unsigned char*, size_t>;
  // Asked every tenth of a second of a wait: false ends it, with an error.
  using GoOn = std::function<bool()>;

  // Of a ring. Two members send each other half of a batch's rows, more of them less: what fits is
  // sent without a wait for who reads it.
  static constexpr size_t WindowFor(size_t members) {
    return (members <= 2 ? size_t{2} : size_t{1}) << 20;
  }

  // As member 0 of `members`. names: (M) what errors call them. IOError where the system has no
  // memfd. window_bytes: 0: WindowFor.
  static Result<std::unique_ptr<HostGroup>> Create(int lanes, std::vector<std::string> names,
                                                   size_t window_bytes = 0);
  // As another member. where: the first one's where(), on this host; IOError where this process may
  // not open it, or it is something else.
  static Result<std::unique_ptr<HostGroup>> Open(const std::string& where, int member, int lanes,
                                                 std::vector<std::string> names,
                                                 size_t window_bytes = 0);
  ~HostGroup();
  HostGroup(const HostGroup&) = delete;
  HostGroup& operator=(const HostGroup&) = delete;

  // For Open: a path, and a number that only this group has.
  std::string where() const;
  int members() const { return static_cast<int>(names_.size()); }
  int member() const { return member_; }
  // Once all have opened it: from here on members that end are noticed.
  Status Watch();

  // Sends out[m] to member m and fills into[m] from there. out, into: (M); what a member has for
  // itself is copied. InvalidArgument where a member sends another size than this one expects,
  // PeerGone where one has ended or left.
  Status Swap(int lane, const std::vector<Bytes>& out, const std::vector<Bytes>& into,
              const GoOn& go_on = {});
  // values: (n) become the sums over all members, added up in their order: the same bits on each.
  Status Sum(int lane, float* values, size_t n, const GoOn& go_on = {});

  // PeerGone where that member has left or ended.
  Status CheckPeer(int peer) const;
  // The others' waits for this member, and its own, end with an error that has `why`.
  void Leave(const std::string& why);

  LaneCounters counters(int lane) const;

 private:
  struct Shared;
  struct Ring;
  struct Bell;
  struct Lane;

  HostGroup(int fd, int member, int lanes, std::vector<std::string> names, size_t window_bytes);

  static size_t SizeOf(int members, int lanes, size_t window_bytes);
  Status Map(bool create);
  Ring* RingOf(int lane, int from, int to) const;
  Bell* BellOf(int lane, int member) const;
  void RingBell(int lane, int member) const;
  size_t Write(int lane, int to, const unsigned char* bytes, size_t size) const;
  size_t Read(int lane, int from, unsigned char* bytes, size_t size) const;
  Status Move(int lane, const std::vector<Bytes>& out, const std::vector<Bytes>& into,
              const GoOn& go_on);
  bool Sleep(int lane, uint32_t rung) const;
  int GoneOf(const std::vector<bool>& awaited, bool closely) const;

  int fd_;
  int member_;
  int lanes_;
  std::vector<std::string> names_;  // (M)
  size_t window_;
  unsigned char* base_ = nullptr;
  std::vector<int> processes_;  // (M) pidfd, -1 of itself
  std::vector<std::unique_ptr<Lane>> of_lane_;
};

}  // namespace pbx
