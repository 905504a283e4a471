// The threads of the dense part.
#pragma once

#include "base/status.h"
#include "base/threads.h"

namespace pbx {

// As many threads as OpenMP has in Paddle's own operators (trainer.dense_threads). Made at the
// first call and never freed.
Result<ThreadPool*> DensePool();

}  // namespace pbx
