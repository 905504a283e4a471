// The ranks over which the operator `box_sum_over_ranks` adds.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "base/host_group.h"
#include "base/host_sum.h"

namespace pbx {

struct SummingGroup {
  // Replaces values (n) by their sums over the ranks of all hosts. It is called without the GIL.
  // pushed: whether all pushes of the step have been done.
  using OfHosts = std::function<Status(float* values, size_t n, bool pushed)>;

  std::weak_ptr<HostGroup> group;  // of one host
  std::shared_ptr<HostSum> sum;    // valid while `group` is locked; null: there is no group
  OfHosts of_hosts;                // null: there is one host
};

// A process has at most one. group and of_hosts: both null means that the operator fails. channel:
// a channel of the group that is used for these sums only.
void SetSummingGroup(const std::shared_ptr<HostGroup>& group, int channel,
                     SummingGroup::OfHosts of_hosts);
SummingGroup FindSummingGroup();

}  // namespace pbx
