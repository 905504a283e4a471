#include "table/decay_clock.h"

namespace pbx {

Result<std::unique_ptr<DecayClock>> DecayClock::Create(size_t rows) {
  Result<Buffer> steps = Buffer::Allocate(rows * sizeof(uint32_t));
  if (!steps.ok()) return steps.status();
  return std::unique_ptr<DecayClock>(new DecayClock(std::move(steps.value())));
}

// The rows of a tile are prefetched, and multiplied after those of the next tile were prefetched.
void DecayClock::CatchUp(const RowBlock& block, const int32_t* ids, size_t n) {
  constexpr size_t kTile = 32, kAhead = 64;  // ids
  struct Tile {
    int32_t rows[kTile];
    Factors factors[kTile];
    size_t count = 0;
  };
  Tile both[2];
  const Kernels& kernels = ActiveKernels();
  uint32_t* const step_of = steps();
  const auto scale = [&](Tile* tile) {
    kernels.scale(block, tile->rows, tile->factors, tile->count);
    tile->count = 0;
  };
  size_t odd = 0;
  for (size_t first = 0; first < n; first += kTile, odd ^= 1) {
    Tile& tile = both[odd];
    for (size_t i = first; i < std::min(n, first + kTile); ++i) {
      const auto later = static_cast<size_t>(std::max(0, ids[std::min(i + kAhead, n - 1)]));
      __builtin_prefetch(&step_of[later], 1);
      if (ids[i] < 0) continue;
      const auto id = static_cast<size_t>(ids[i]);
      const uint32_t from = std::exchange(step_of[id], now());
      if (from == now() || from == kNotYet) continue;
      const char* const row = block.rows + id * block.row_bytes;
      for (uint32_t at = 0; at < block.row_bytes; at += 64) __builtin_prefetch(row + at, 1);
      __builtin_prefetch(row + block.row_bytes - 1, 1);
      tile.rows[tile.count] = ids[i];
      tile.factors[tile.count++] = Since(from);
    }
    scale(&both[odd ^ 1]);
  }
  scale(&both[odd ^ 1]);
}

void DecayClock::Tick(const AccessorConfig& config) {
  const auto factor = [&](const RuleConfig& rule) {
    const double rate = double{rule.learning_rate} * double{config.rate};
    return static_cast<long double>(1.0 - rate * double{config.weight_decay});
  };
  const Product& last = products_.back();
  Product next;
  next.embed = last.embed * factor(config.embed);
  next.embedx = last.embedx * factor(config.embedx);
  next.embed_inverse = 1 / next.embed;
  next.embedx_inverse = 1 / next.embedx;
  products_.push_back(next);
  caught_up_.clear();
}

}  // namespace pbx
