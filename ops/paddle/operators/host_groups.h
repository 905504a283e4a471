// The ranks over which the operator `box_sum_over_ranks` adds.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "base/host_group.h"
#include "base/host_sum.h"

namespace pbx {

struct SummingGroup {
  // Replaces the sums (n) of this host by the sums of all hosts. It is called without the GIL.
  // pushed: whether all pushes of the step have been done.
  using Between = std::function<Status(float* values, size_t n, bool pushed)>;

  bool joined = false;
  std::weak_ptr<HostGroup> group;
  std::shared_ptr<HostSum> sum;  // valid while `group` is locked; null: there is no group
  Between between;               // null: there is one host
};

// A process has at most one. group and between: both null means that the operator fails. channel: a
// channel of the group that is used for these sums only.
void SetSummingGroup(const std::shared_ptr<HostGroup>& group, int channel,
                     SummingGroup::Between between);
SummingGroup FindSummingGroup();

}  // namespace pbx
