// GroupAuc: the AUC inside each group (a user, a page view), averaged over groups: PaddleBox's
// WuAUC, with ties counted half. It keeps what it was given, 16 bytes an instance, since a group
// may be spread over all batches and ranks; the result does not depend on the order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"

namespace pbx {

struct GroupAucValues {
  uint64_t groups = 0;  // with both classes; the others have no AUC
  uint64_t size = 0;    // instances of those groups
  double uauc = -0.5;   // mean over groups; -0.5 when there is none
  double wuauc = -0.5;  // mean over their instances
};

class GroupAuc {
 public:
  // groups, predictions, labels: (n). A prediction that is NaN, or a label that is not 0 or 1, is
  // InvalidArgument with its index; nothing is added then.
  Status Add(const uint64_t* groups, const float* predictions, const float* labels, size_t n);
  GroupAucValues Compute() const;

  // What was given, sorted: two states are merged by adding both.
  struct State {
    std::vector<uint64_t> groups;
    std::vector<float> predictions;
    std::vector<float> labels;
  };
  State state() const;
  void Reset() { records_.clear(); }

 private:
  struct Record {
    uint64_t group;
    float prediction;
    bool click;
    bool operator<(const Record& other) const {
      if (group != other.group) return group < other.group;
      if (prediction != other.prediction) return prediction < other.prediction;
      return click < other.click;
    }
  };
  std::vector<Record> Sorted() const;
  std::vector<Record> records_;
};

}  // namespace pbx
