// Paddle's tensors and operators, and no more of Paddle: its extension.h needs headers of cuBLAS
// and cuDNN in a CUDA build, and takes seconds longer to compile.
#pragma once

#include <paddle/phi/api/ext/op_meta_info.h>
#include <paddle/phi/api/include/api.h>
#include <paddle/phi/api/include/tensor.h>
#include <paddle/phi/api/include/tensor_utils.h>

namespace paddle {
using namespace experimental;  // NOLINT(google-build-using-namespace): as Paddle's own all.h has it
}
