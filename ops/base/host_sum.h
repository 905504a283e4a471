// HostSum: the sum over the members of a HostGroup. Each puts its values into memory that all
// share, and when all have, each adds them up where they lie: one wait, and no message but that.
//
//   [member][turn]  values; a member writes to its two in turn, so that nobody waits for those who
//                   still read those of the sum before
//
// A member writes n values and reads M * n. Where it adds up its slice for all and collects theirs
// (HostGroup::Sum) it moves fewer from five members on, but waits twice: so that is done there, and
// where memory for it cannot be shared.
//
// Letters: M = members, n = values.
//
// Thread safety: one thread's at a time.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "base/host_group.h"
#include "base/status.h"

namespace pbx {

class HostSum {
 public:
  using Part = std::pair<const float*, size_t>;  // some of a member's values, where they lie

  static constexpr int kMostMembers = 4;
  static constexpr size_t kMostBytes = size_t{256} << 20;  // of shared memory

  // group: is there as long as sums are made. lane: of it, for these sums alone.
  HostSum(HostGroup* group, int lane) : group_(group), lane_(lane) {}
  ~HostSum() { Unmap(); }
  HostSum(const HostSum&) = delete;
  HostSum& operator=(const HostSum&) = delete;

  // sum: (n) of what all members give, added up in their order: the same bits on each. parts: one
  // after the other this member's (n) values, each of which counts `scale` times. Every member
  // calls it, with the same n: InvalidArgument where they differ. Else as HostGroup::Swap.
  Status Add(const std::vector<Part>& parts, float scale, float* sum,
             const HostGroup::GoOn& go_on = {});

 private:
  Status Share(size_t n, const HostGroup::GoOn& go_on);
  void Unmap();
  float* ValuesOf(int member) const;

  HostGroup* group_;
  int lane_;
  bool by_messages_ = false;
  float* shared_ = nullptr;  // (M, 2, room_)
  size_t room_ = 0, mapped_bytes_ = 0;
  size_t turn_ = 0;
};

}  // namespace pbx
