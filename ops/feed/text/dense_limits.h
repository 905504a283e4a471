// Finds dense values that are too large for a network before they are fed to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "feed/text/line_parser.h"
#include "feed/text/parser.h"
#include "feed/text/schema.h"

namespace pbx {

// A dense value above this limit is reported: beside inputs around 1 it dominates the first layer,
// and Adam's second moment needs thousands of steps to forget it. It is not an error: a raw price
// or a Unix timestamp can be trained, but badly, and model.dense_scale or nn.DataNorm can scale it.
constexpr float kLargeDense = 1e4f;

// A line with a dense value above this limit is malformed. The gradient of a first-layer weight is
// the value times a number of about 1, and optimizers square it. The largest float32 is 3e8 times
// the square of 1e15; this factor is left for weights, sums over a batch and cross layers.
// Timestamps in seconds, milliseconds or microseconds are below or near this limit. The numbers
// that mean "no value" in many logs are above it: 1e30, the largest int64, the largest float32.
constexpr float kMostDense = 1e15f;

// Above this number, 2^24, a float does not hold every integer.
constexpr float kLeastRounded = 16777216.0f;

// A line with an instance weight outside [0, kMostWeight] is malformed. WeightedAuc takes no larger
// weight.
constexpr float kMostWeight = 4294967296.0f;  // 2^32

namespace feed {

// The limits of each dense column. They take its transforms in slots.yaml into account: after log1p
// no value is large; after clip only values within the bounds of clip can be large.
class DenseLimits {
 public:
  explicit DenseLimits(const FeedSchema& schema);

  // False if no value of the row is large; otherwise call Take.
  bool Beyond(const float* row) const {  // (W) as read
    // Compares integers: two float comparisons per value took 3 % of the time of MultiSlot lines.
    uint32_t beyond = 0;  // its top bit is set if a magnitude is above its limit
    for (size_t i = 0; i < limits_.size(); ++i) {
      uint32_t bits;
      std::memcpy(&bits, row + i, sizeof(bits));
      beyond |= limits_[i] - (bits & 0x7fffffffu);
    }
    for (const size_t column : weights_) {  // empty in most schemas
      uint32_t bits;
      std::memcpy(&bits, row + column, sizeof(bits));
      beyond |= bits;  // its sign
    }
    return beyond >> 31 != 0;
  }

  // The same for rows of W columns: sets the top bit of (*beyond)[r] if row r has a large value.
  void Beyond(const uint32_t* const* columns, size_t rows, std::vector<uint32_t>* beyond) const;

  // Records the large values of a row. If a value is beyond kMostDense, or a weight is outside [0,
  // kMostWeight], the line is malformed: returns false and records nothing.
  bool Take(const float* row, uint64_t line, std::vector<LargeValue>* large,
            LineError* error) const;

  // Whether a value of the row may be an integer that float rounds, in a slot without an entry in
  // `rounded`.
  bool MayRound(const float* row, const std::vector<RoundedValue>& rounded) const;
  // Adds the slots of which float rounds the first value of the row, an integer. exact: (W) as
  // read.
  void TakeRounded(const float* row, const long double* exact, uint64_t line,
                   std::vector<RoundedValue>* rounded) const;

 private:
  bool MayRound(size_t column, float value, const std::vector<RoundedValue>& rounded) const;
  float Fed(size_t column, float value) const;

  // (W) limits, as bits of the magnitude; empty if no value can be large
  std::vector<uint32_t> limits_;
  std::vector<size_t> weights_;           // the columns of weights
  std::vector<const SlotSpec*> slots_;    // (W) slot of each column
  std::vector<uint32_t> number_of_slot_;  // (W) its number among dense slots
};

}  // namespace feed
}  // namespace pbx
