#include "metric/group_auc.h"

#include <algorithm>
#include <cmath>

#include "metric/exact_sum.h"

namespace pbx {

Status GroupAuc::Add(const uint64_t* groups, const float* predictions, const float* labels,
                     size_t n) {
  for (size_t i = 0; i < n; ++i) {
    if (std::isnan(predictions[i])) {
      return Error(Code::kInvalidArgument, "prediction %zu is NaN, expected a number", i);
    }
    if (!(labels[i] == 0 || labels[i] == 1)) {
      return Error(Code::kInvalidArgument, "label %zu is %g, expected 0 or 1", i,
                   static_cast<double>(labels[i]));
    }
  }
  records_.reserve(records_.size() + n);
  for (size_t i = 0; i < n; ++i) records_.push_back({groups[i], predictions[i], labels[i] == 1});
  return Status::Ok();
}

std::vector<GroupAuc::Record> GroupAuc::Sorted() const {
  std::vector<Record> sorted = records_;
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

GroupAucValues GroupAuc::Compute() const {
  GroupAucValues values;
  ExactSum sum, weighted;
  const std::vector<Record> sorted = Sorted();
  for (size_t begin = 0, end = 0; begin < sorted.size(); begin = end) {
    uint64_t positives = 0, negatives = 0, doubled_area = 0;
    while (end < sorted.size() && sorted[end].group == sorted[begin].group) {
      // Instances with the same prediction: earlier negatives are below them, negatives among them
      // are ties.
      const float prediction = sorted[end].prediction;
      uint64_t clicks = 0, others = 0;
      for (; end < sorted.size() && sorted[end].group == sorted[begin].group &&
             sorted[end].prediction == prediction;
           ++end) {
        ++(sorted[end].click ? clicks : others);
      }
      doubled_area += clicks * (2 * negatives + others);
      positives += clicks;
      negatives += others;
    }
    if (positives == 0 || negatives == 0) continue;
    const double auc = static_cast<double>(doubled_area) /
                       (2.0 * static_cast<double>(positives) * static_cast<double>(negatives));
    ++values.groups;
    values.size += end - begin;
    sum.Add(auc);
    weighted.Add(auc * static_cast<double>(end - begin));
  }
  if (values.groups > 0) {
    values.uauc = sum.value() / static_cast<double>(values.groups);
    values.wuauc = weighted.value() / static_cast<double>(values.size);
  }
  return values;
}

GroupAuc::State GroupAuc::state() const {
  State state;
  for (const Record& record : Sorted()) {
    state.groups.push_back(record.group);
    state.predictions.push_back(record.prediction);
    state.labels.push_back(record.click ? 1.0f : 0.0f);
  }
  return state;
}

}  // namespace pbx
