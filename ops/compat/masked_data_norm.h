// masked_data_norm: data_norm of the rows that a mask selects. The other rows become zeros, have a
// zero gradient and do not enter the sums.
//
// Letters: N = instances, C = columns.
#pragma once

#include "dense/data_norm.h"

namespace pbx {

// Each function computes what its counterpart in dense/data_norm.h does, with the same bits, from
// the rows n with mask[n]. mask (N). norm.instances is N.

void MaskedDataNormForward(const DataNorm& norm, const bool* mask, const DataNormSums& sums,
                           const float* x, float* y, float* means, float* scales);

void MaskedDataNormBackward(const DataNorm& norm, const bool* mask, const float* x,
                            const float* means, const float* scales, const float* dy, float* dx,
                            float* dscale_w, float* dbias);

// If no row is selected, the sums do not change: they do not decay either.
void MaskedDataNormUpdate(const DataNorm& norm, const bool* mask, const DataNormSums& sums,
                          const float* x, float* size, float* sum, float* square_sum);

}  // namespace pbx
