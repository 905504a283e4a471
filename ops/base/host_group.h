// HostGroup: processes of one host that exchange bytes through memory they share.
//
// The memory is a memfd. It has no name in any folder, so nothing is left behind however the
// processes end. The first member creates it; the others open it through /proc/<pid>/fd.
//
//   [channel][from][to]  a ring of bytes. The writer waits while the ring is full, the reader while
//                        the ring is empty. Both spin briefly, then sleep (futex).
//
// Each message starts with its size, so a member that expects another size gets an error. If a
// member ends, in whatever way, the waits of the others end within a tenth of a second with an
// error that names it. If it calls Leave, they end at once.
//
// Letters: M = members.
//
// Thread safety: one thread at a time may use a channel. Any thread may call Leave.
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

// Sums of one channel since it was created.
struct ChannelCounters {
  uint64_t sent_bytes = 0;
  uint64_t ns = 0;          // time in exchanges, including waits
  uint64_t waiting_ns = 0;  // the part of `ns` with nothing to move
  uint64_t waits = 0;       // number of waits
};

class HostGroup {
 public:
  using Bytes = std::pair<unsigned char*, size_t>;
  // Called every tenth of a second during a wait. If it returns false, the wait ends with an error.
  using GoOn = std::function<bool()>;
  // Called with the size of the message that a member sends. Sets *at to the memory for it.
  // An error refuses it.
  using Room = std::function<Status(int member, size_t size, unsigned char** at)>;

  // Bytes of a ring. With two members, each sends the other half of the rows of a batch; with more
  // members, less. A message that fits is sent without waiting for its reader.
  static constexpr size_t WindowFor(size_t members) {
    return (members <= 2 ? size_t{2} : size_t{1}) << 20;
  }

  // Creates the group as its member 0. names: (M) names of the members in errors. window_bytes:
  // size of a ring; 0: WindowFor. IOError if the system has no memfd.
  static Result<std::unique_ptr<HostGroup>> Create(int channels, std::vector<std::string> names,
                                                   size_t window_bytes = 0);
  // Joins as another member. where: where() of member 0, on this host. IOError if this process may
  // not open that memory, or if it is not a group like this one.
  static Result<std::unique_ptr<HostGroup>> Open(const std::string& where, int member, int channels,
                                                 std::vector<std::string> names,
                                                 size_t window_bytes = 0);
  ~HostGroup();
  HostGroup(const HostGroup&) = delete;
  HostGroup& operator=(const HostGroup&) = delete;

  // The argument of Open: a path, and a number that is unique to this group.
  std::string where() const;
  int members() const { return static_cast<int>(names_.size()); }
  int member() const { return member_; }
  // Starts to notice members that end. Call it once all members have opened the group.
  Status Watch();

  // Sends out[m] to member m and fills into[m] with what m sends. out, into: (M). A member's entry
  // for itself is copied. InvalidArgument if a member sends another size than expected; PeerGone if
  // one has ended or left.
  Status Swap(int channel, const std::vector<Bytes>& out, const std::vector<Bytes>& into,
              const GoOn& go_on = {});
  // As Swap, for messages whose sizes their receiver does not know. room is called once for each
  // other member. A member's entry for itself is not copied.
  Status Exchange(int channel, const std::vector<Bytes>& out, const Room& room,
                  const GoOn& go_on = {});
  // Replaces values (n) by their sums over all members, added in the order of members: every member
  // gets the same bits.
  Status Sum(int channel, float* values, size_t n, const GoOn& go_on = {});

  // PeerGone if that member has left or ended.
  Status CheckPeer(int peer) const;
  // Ends all waits for this member, and its own waits, with an error that contains `why`.
  void Leave(const std::string& why);

  ChannelCounters counters(int channel) const;

 private:
  struct Shared;
  struct Ring;
  struct Bell;
  struct Channel;

  HostGroup(int fd, int member, int channels, std::vector<std::string> names, size_t window_bytes);

  static size_t SizeOf(int members, int channels, size_t window_bytes);
  Status Map(bool create);
  Ring* RingOf(int channel, int from, int to) const;
  Bell* BellOf(int channel, int member) const;
  void RingBell(int channel, int member) const;
  size_t Write(int channel, int to, const unsigned char* bytes, size_t size) const;
  size_t Read(int channel, int from, unsigned char* bytes, size_t size) const;
  Status CheckMessages(int channel, size_t out, size_t into) const;
  Status Move(int channel, const std::vector<Bytes>& out, const Room& room, const GoOn& go_on);
  bool Sleep(int channel, uint32_t rung) const;
  int GoneOf(const std::vector<bool>& awaited, bool closely) const;

  int fd_;
  int member_;
  int channels_;
  std::vector<std::string> names_;  // (M)
  size_t window_;
  unsigned char* base_ = nullptr;
  std::vector<int> processes_;  // (M) pidfd, -1 of itself
  std::vector<std::unique_ptr<Channel>> of_channel_;
};

}  // namespace pbx
