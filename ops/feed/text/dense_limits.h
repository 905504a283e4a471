// Dense values that are too large to be fed to a network, found before they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "feed/text/line_parser.h"
#include "feed/text/parser.h"
#include "feed/text/schema.h"

namespace pbx {

// A larger dense value is reported: beside inputs around 1 it takes over the first layer, and
// Adam's second moment needs thousands of steps to forget it. It is not refused: a raw price or a
// Unix timestamp trains, badly, and model.dense_scale or nn.DataNorm scale any of them.
constexpr float kLargeDense = 1e4f;

// A line with a larger one is malformed. The gradient of a first-layer weight is the value times a
// number of about 1, and optimizers square it: 1e15 squared leaves a factor of 3e8 to the largest
// float32 for weights, sums over a batch and cross layers. Seconds, milliseconds and microseconds
// are below it or near it; 1e30, the largest int64 and the largest float32, which stand for "no
// value" in many logs, are above.
constexpr float kMostDense = 1e15f;

namespace feed {

// The limits of each dense column, as slots.yaml transforms it: log1p leaves nothing that is large,
// and clip only what its own bounds allow.
class DenseLimits {
 public:
  explicit DenseLimits(const FeedSchema& schema);

  // False if no value of the row is large; else Take tells.
  bool Beyond(const float* row) const {  // (W) as read
    // As integers: two comparisons a value took 3 % of the time of MultiSlot lines.
    uint32_t beyond = 0;  // its top bit, once a magnitude is above its limit
    for (size_t i = 0; i < limits_.size(); ++i) {
      uint32_t bits;
      std::memcpy(&bits, row + i, sizeof(bits));
      beyond |= limits_[i] - (bits & 0x7fffffffu);
    }
    return beyond >> 31 != 0;
  }

  // Notes the values of a row that are large. False, and nothing is noted, where one is beyond
  // kMostDense: the line is malformed.
  bool Take(const float* row, uint64_t line, std::vector<LargeValue>* large,
            LineError* error) const;

 private:
  float Fed(size_t column, float value) const;

  std::vector<uint32_t> limits_;  // (W) bits of the magnitude, or (0) where no value can be large
  std::vector<const SlotSpec*> slots_;    // (W) whose column it is
  std::vector<uint32_t> number_of_slot_;  // (W) among the dense ones
};

}  // namespace feed
}  // namespace pbx
