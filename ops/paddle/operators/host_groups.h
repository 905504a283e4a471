// The group over which the operator `box_sum_over_ranks` adds. A process has at most one.
#pragma once

#include <memory>

#include "base/host_group.h"
#include "base/host_sum.h"

namespace pbx {

// group: null means that the operator fails. channel: a channel used for these sums only.
void SetSummingGroup(const std::shared_ptr<HostGroup>& group, int channel);

struct SummingGroup {
  std::weak_ptr<HostGroup> group;
  std::shared_ptr<HostSum> sum;  // valid while `group` is locked
};
SummingGroup FindSummingGroup();

}  // namespace pbx
