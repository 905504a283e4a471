// The group whose members add up what a program's `box_sum_over_ranks` is given. One of a process.
#pragma once

#include <memory>

#include "base/host_group.h"
#include "base/host_sum.h"

namespace pbx {

// lane: for sums alone. Null: programs that sum over ranks fail.
void SetSummingGroup(const std::shared_ptr<HostGroup>& group, int lane);

struct SummingGroup {
  std::weak_ptr<HostGroup> group;
  std::shared_ptr<HostSum> sum;  // usable while the group is held
};
SummingGroup FindSummingGroup();

}  // namespace pbx
