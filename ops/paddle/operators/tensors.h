// Paddle's tensors and operators, and no more of Paddle: its extension.h wants headers of cuBLAS
// and cuDNN where it is a CUDA build, and takes seconds more to compile.
#pragma once

#include <paddle/phi/api/ext/op_meta_info.h>
#include <paddle/phi/api/include/api.h>
#include <paddle/phi/api/include/tensor.h>
#include <paddle/phi/api/include/tensor_utils.h>

namespace paddle {
using namespace experimental;  // NOLINT(google-build-using-namespace): as Paddle's own all.h has it
}
