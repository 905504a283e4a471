// Sampling of negatives: of the instances with label 0, a pass keeps a share only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "feed/text/parser.h"

namespace pbx {

// Removes about a share of 1 - rate of the instances with label 0. An instance is kept or removed
// by a hash of the seed, its dense values, its feasigns and its ins_id. So the result depends
// neither on the order of the instances nor on how they are divided into chunks. Of equal negatives
// in a chunk, this is true of the first one. The draws of the others also depend on the negatives
// before them: otherwise all of them would be kept, or none. The counts of lines stay as they are.
// rate: in (0, 1]. S = sparse slots, W = dense width. Returns the number of instances that were
// removed. InvalidArgument for another rate, if the columns do not fit, or, for a rate below 1, if
// a label is neither 0 nor 1. exact_floats: the last floats of each row, those of exact_of slots,
// which are not hashed: what metrics measure does not change what is trained.
Result<size_t> SampleNegatives(size_t sparse_slots, size_t dense_width, double rate, uint64_t seed,
                               ParsedChunk* chunk, size_t exact_floats = 0);

}  // namespace pbx
