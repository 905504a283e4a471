// HostSum: the sum over the members of a HostGroup. Each member writes its values to shared memory.
// After one wait for all members, each member adds up the values of all.
//
//   [member][turn]  values. A member alternates between its two places, so that it need not wait
//                   for members that still read the values of the previous sum.
//
// A member writes n values and reads M * n. With five members or more, HostGroup::Sum moves fewer
// values, although it waits twice: each member adds up one slice and collects the other slices.
// HostGroup::Sum is also used if no memory can be shared.
//
// Letters: M = members, n = values.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "base/host_group.h"
#include "base/status.h"

namespace pbx {

class HostSum {
 public:
  using Part = std::pair<const float*, size_t>;  // a contiguous part of a member's values

  static constexpr int kMostMembers = 4;
  static constexpr size_t kMostBytes = size_t{256} << 20;  // of shared memory

  // group: must outlive this object. channel: a channel of the group that only this object uses.
  HostSum(HostGroup* group, int channel) : group_(group), channel_(channel) {}
  ~HostSum() { Unmap(); }
  HostSum(const HostSum&) = delete;
  HostSum& operator=(const HostSum&) = delete;

  // Adds up the values of all members, in the order of members: every member gets the same bits.
  // parts: this member's n values, in order; each is multiplied by `scale`. sum: (n). Every member
  // calls it with the same n; otherwise InvalidArgument. Other errors: see HostGroup::Swap.
  Status Add(const std::vector<Part>& parts, float scale, float* sum,
             const HostGroup::GoOn& go_on = {});

 private:
  Status Share(size_t n, const HostGroup::GoOn& go_on);
  void Unmap();
  float* ValuesOf(int member) const;

  HostGroup* group_;
  int channel_;
  bool by_messages_ = false;
  float* shared_ = nullptr;  // (M, 2, room_)
  size_t room_ = 0, mapped_bytes_ = 0;
  size_t turn_ = 0;
};

}  // namespace pbx
