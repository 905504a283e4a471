// causal_mask: the attention mask of sequences that are packed one after another. A position may
// attend to itself and to earlier positions of its own sequence.
//
// Letters: Q = sequences, T = positions of all sequences.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace pbx {

// offsets (Q + 1) ascend from 0 to T: sequence q has the positions [offsets[q], offsets[q + 1]).
// Returns T, at most 2^20, because the mask has T * T elements.
Result<int64_t> CheckSequences(const int64_t* offsets, size_t sequences);

// mask (T, T): 1 if the position of the row may attend to that of the column, otherwise 0.
// REQUIRES: CheckSequences.
void CausalMask(const int64_t* offsets, size_t sequences, int64_t* mask);

}  // namespace pbx
