#include "table/decay_clock.h"

namespace pbx {

void DecayClock::CatchUp(const RowBlock& block, const int32_t* ids, size_t n) {
  constexpr size_t kAhead = 16;  // rows
  const auto row_of = [&](int32_t id) {
    return block.rows + static_cast<size_t>(id) * block.row_bytes;
  };
  for (size_t i = 0; i < n; ++i) {
    if (i + kAhead < n && ids[i + kAhead] >= 0) {
      const char* const row = row_of(ids[i + kAhead]);
      __builtin_prefetch(&step_of_row_[static_cast<size_t>(ids[i + kAhead])], 1);
      for (uint32_t at = 0; at < block.row_bytes; at += 64) __builtin_prefetch(row + at, 1);
    }
    if (ids[i] < 0) continue;
    CatchUp(*block.config, static_cast<size_t>(ids[i]), reinterpret_cast<float*>(row_of(ids[i])));
  }
}

void DecayClock::Tick(const AccessorConfig& config) {
  const auto factor = [&](const RuleConfig& rule) {
    const double rate = double{rule.learning_rate} * double{config.rate};
    return static_cast<long double>(1.0 - rate * double{config.weight_decay});
  };
  const Product& last = products_.back();
  products_.push_back({last.embed * factor(config.embed), last.embedx * factor(config.embedx)});
}

}  // namespace pbx
