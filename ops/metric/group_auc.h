// GroupAuc: computes the AUC of each group (a user, a page view) and averages it over groups. It is
// PaddleBox's WuAUC, except that ties count half. It stores all instances, 16 bytes each, because a
// group may be distributed over all batches and ranks. The result does not depend on the order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"

namespace pbx {

struct GroupAucValues {
  uint64_t groups = 0;  // groups with both classes; the others have no AUC
  uint64_t size = 0;    // instances of these groups
  double uauc = -0.5;   // mean over groups; -0.5 if there is none
  double wuauc = -0.5;  // mean weighted by instances
};

class GroupAuc {
 public:
  // groups, predictions, labels: (n). If a prediction is NaN or a label is not 0 or 1,
  // InvalidArgument with its index, and nothing is added.
  Status Add(const uint64_t* groups, const float* predictions, const float* labels, size_t n);
  GroupAucValues Compute() const;

  // The instances, sorted. To merge two states, add both.
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
