// Kernels that compute each element on its own.
#pragma once

#include <cstdint>

#include "cuda/launch.h"

namespace pbx::hbm {

constexpr int kForAllTile = kThreads * 4;  // elements of a block

// Calls f(i) for all i < n, on the device. F: callable there.
template <class F>
struct ForAll {
  F f;
  int64_t n;
  PBX_HOST_DEVICE void operator()(const Block& block, int64_t tile) const {
    const int64_t first = tile * kForAllTile;
    const int count = static_cast<int>(n - first < kForAllTile ? n - first : kForAllTile);
    block.ForEach(count, [&](int k) { f(first + k); });
  }
};

template <class F>
Status LaunchForAll(const char* what, int64_t n, const F& f, Stream stream) {
  return Launch(what, ForAll<F>{f, n}, TilesOf(static_cast<uint64_t>(n), kForAllTile), 0, stream);
}

}  // namespace pbx::hbm
