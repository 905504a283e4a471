// Memory for large outputs of operators. An operator allocates its output in every step. The C
// library returns such a large block to the system after the step, which costs 2,000 page faults
// per step with batch 4096 and 26 slots of width 19. So blocks are reused here, on huge pages.
#pragma once

#include <cstdint>
#include <vector>

#include "paddle/operators/tensors.h"

namespace pbx {

// A tensor of this shape with undefined values.
paddle::Tensor NewOutput(const std::vector<int64_t>& shape, const paddle::Place& place,
                         paddle::DataType type = paddle::DataType::FLOAT32);

}  // namespace pbx
