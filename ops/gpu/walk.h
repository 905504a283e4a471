// Indices of several strided arrays of the same sizes.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "cuda/for_all.h"
#include "gpu/kernels.h"

namespace pbx::gpu {

using hbm::LaunchForAll;

// The places of element i in kArrays arrays.
template <int kArrays>
struct Walk {
  int rank = 0;
  int64_t sizes[kMaxRank] = {};
  int64_t strides[kArrays][kMaxRank] = {};

  PBX_HOST_DEVICE void At(int64_t i, int64_t (&at)[kArrays]) const {
    for (int a = 0; a < kArrays; ++a) at[a] = 0;
    for (int d = rank - 1; d >= 0; --d) {
      const int64_t left = i / sizes[d], index = i - left * sizes[d];
      for (int a = 0; a < kArrays; ++a) at[a] += index * strides[a][d];
      i = left;
    }
  }
};

// Joins axes that are neighbours in all arrays, so that most walks have rank 1 or 2.
template <int kArrays>
Status MakeWalk(const Sizes& sizes, const Sizes* const (&strides)[kArrays], Walk<kArrays>* walk) {
  int rank = 0;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 1) continue;
    bool joins = rank > 0;
    for (int a = 0; joins && a < kArrays; ++a) {
      joins = walk->strides[a][rank - 1] == (*strides[a])[d] * sizes[d];
    }
    if (!joins && rank == kMaxRank) {
      return Error(Code::kInvalidArgument, "an array of more than %d axes", kMaxRank);
    }
    if (!joins) walk->sizes[rank++] = 1;
    walk->sizes[rank - 1] *= sizes[d];
    for (int a = 0; a < kArrays; ++a) walk->strides[a][rank - 1] = (*strides[a])[d];
  }
  walk->rank = rank;
  return Status::Ok();
}

}  // namespace pbx::gpu
