// DecayClock: decoupled weight decay of the rows of one training pass.
//
// Each step multiplies the weights of every row by 1 - learning_rate * weight_decay, after the rows
// of its batch were updated. Nothing is done to a row until a push changes it. The clock holds the
// product P(t) of the factors of the first t steps, and each row the step s up to which its weights
// are multiplied. A pull at step t multiplies what it reads by P(t) / P(s) and changes no row. A
// push multiplies the row before it updates it, and sets s to t.
//
// The step of a row is in its word RowLayout::kStep, so it costs no memory and no cache miss.
//
// When the pass ends, its changed rows are brought to the last step. All other rows of the table
// get the product of the pass by one life event (rule/life.h).
#pragma once

#include <cstdint>
#include <vector>

#include "rule/accessor.h"
#include "table/kernels.h"

namespace pbx {

class DecayClock {
 public:
  // The step of a row that begins with its first push.
  static constexpr uint32_t kNotYet = UINT32_MAX;

  DecayClock();
  DecayClock(const DecayClock&) = delete;
  DecayClock& operator=(const DecayClock&) = delete;

  // What is left to do to the rows at the current step.
  const Decay& decay() const { return decay_; }

  // Brings a row up to the current step.
  void CatchUp(const RowLayout& layout, float* row) const {
    const Factors by = decay_.Of(row);
    accessor::ScaleWeights(layout, by.embed, by.embedx, row);
    SetWord(row, RowLayout::kStep, decay_.step);
  }

  // The product of the factors of all steps.
  const Decay::Product& total() const { return total_; }

  // A step has ended. The factors are those of the learning rates in the config.
  void Tick(const AccessorConfig& config);

 private:
  Decay::Product total_;
  std::vector<Decay::Product> inverses_;
  Decay decay_;
};

}  // namespace pbx
