// DecayClock: decoupled weight decay of the rows of one training pass.
//
// Each step multiplies the weights of every row by 1 - learning_rate * weight_decay, after the rows
// of its batch were updated. Nothing is done to a row until it is needed. The clock holds the
// product P(t) of the factors of the first t steps, and for each row the step s up to which its
// weights are multiplied. Before a row is read at step t, it is multiplied by P(t) / P(s).
//
// When the pass ends, its changed rows are brought to the last step. All other rows of the table
// get the product of the pass by one life event (rule/life.h).
//
// Not thread safe, except that CatchUp may run at the same time for different rows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/status.h"
#include "rule/accessor.h"
#include "table/kernels.h"

namespace pbx {

class DecayClock {
 public:
  // Products of the factors of embed_w, and of embedx and expand. The range of a long double (down
  // to 1e-4932) is enough for any pass; that of a double is not.
  struct Product {
    long double embed = 1, embedx = 1;
    long double embed_inverse = 1, embedx_inverse = 1;  // a product is faster than a quotient
  };

  // A clock at step 0 for rows that are all brought up to it.
  static Result<std::unique_ptr<DecayClock>> Create(size_t rows);

  // The row begins with its first CatchUp. REQUIRES: no step has ended.
  void BeginsLater(size_t id) { steps()[id] = kNotYet; }

  // Brings a row up to the current step.
  void CatchUp(const AccessorConfig& config, size_t id, float* row) {
    const uint32_t from = std::exchange(steps()[id], now());
    if (from == now() || from == kNotYet) return;
    const Factors by = Since(from);
    accessor::ScaleWeights(config.layout, by.embed, by.embedx, row);
  }

  // The same for rows of a batch. ids: (n), -1 for none.
  void CatchUp(const RowBlock& block, const int32_t* ids, size_t n);

  // Notes that the rows were brought up to the current step, until it ends or others are noted.
  void NoteCaughtUp(const int32_t* rows, size_t n) { caught_up_.assign(rows, rows + n); }
  // Whether just these rows were noted. A push finds the rows of its pull so, without going through
  // their steps again, which are all over memory.
  bool CaughtUp(const int32_t* rows, size_t n) const {
    return std::equal(caught_up_.begin(), caught_up_.end(), rows, rows + n);
  }

  // A step has ended. The factors are those of the learning rates in the config.
  void Tick(const AccessorConfig& config);

  // Whether CatchUp was called for the row after the first step.
  bool moved(size_t id) { return steps()[id] != 0; }
  const Product& total() const { return products_.back(); }

 private:
  static constexpr uint32_t kNotYet = UINT32_MAX;

  explicit DecayClock(Buffer step_of_row) : step_of_row_(std::move(step_of_row)) {}

  uint32_t* steps() { return reinterpret_cast<uint32_t*>(step_of_row_.data()); }
  uint32_t now() const { return static_cast<uint32_t>(products_.size() - 1); }
  Factors Since(uint32_t step) const {
    const Product &before = products_[step], &after = products_.back();
    return {static_cast<float>(after.embed * before.embed_inverse),
            static_cast<float>(after.embedx * before.embedx_inverse)};
  }

  Buffer step_of_row_;                    // (rows) uint32
  std::vector<Product> products_ = {{}};  // (steps + 1)
  std::vector<int32_t> caught_up_;        // noted rows
};

}  // namespace pbx
