// Outputs of pulls. An operator makes its output anew in every step, and the C library hands so
// large a block back to the system when the step has done with it: at batch 4096 and 26 slots of
// width 19, 2,000 page faults a step. So blocks are kept here for the steps to come, on huge pages.
#pragma once

#include <cstdint>
#include <vector>

#include "paddle/operators/tensors.h"

namespace pbx {

// A float32 tensor of this shape whose values are not set.
paddle::Tensor NewOutput(const std::vector<int64_t>& shape, const paddle::Place& place);

}  // namespace pbx
