// A stack of linear layers, forward and backward, with the same bits for any number of threads.
//
//   H_0 = X,  H_l = act_l(H_(l-1) W_l + b_l),  Out = H_L
//
// Letters: B = instances, N_l = outputs of layer l, N_0 = columns of X, L = layers.
//
// The work is cut into tiles whose bounds depend on the shapes alone, and each tile is computed by
// one thread (gemm.h): tiles of rows for the forward and for the gradients of H, tiles of rows of
// W for its gradient, where the tiles of instances are added in ascending order. With bfloat16, X,
// W, H and their gradients are rounded to it before each product; sums, b, Out and the gradients of
// X, W and b are float32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "base/threads.h"
#include "dense/gemm.h"

namespace pbx {

enum class Activation { kNone, kRelu };

struct MlpLayer {
  size_t inputs = 0, outputs = 0;
  Activation activation = Activation::kNone;
  const float* weight = nullptr;  // (inputs, outputs)
  const float* bias = nullptr;    // (outputs); null: none
};

// Dropout after each ReLU: an element becomes 0 with probability `rate`, and is divided by 1 - rate
// otherwise. A hash of the seed, the layer and the element's index selects the elements.
struct MlpDropout {
  float rate = 0.0f;  // 0 <= rate < 1
  uint64_t seed = 0;
};

struct MlpGradient {
  float* weight = nullptr;  // (inputs, outputs)
  float* bias = nullptr;    // (outputs)
};

// Bytes that the forward keeps for the backward: H_1 to H_(L-1), and X with bfloat16.
size_t MlpSavedBytes(const std::vector<MlpLayer>& layers, GemmType type, size_t instances);

// x (B, N_0) -> out (B, N_L), float32; `saved` has MlpSavedBytes.
Status MlpForward(const std::vector<MlpLayer>& layers, GemmType type, size_t instances,
                  const MlpDropout& dropout, const float* x, float* out, char* saved,
                  ThreadPool* pool);

// dout (B, N_L) -> dx (B, N_0), or none if dx is null, and the gradients of each layer. out, saved
// and rate are those of the forward. A gradient's bias may be null if the layer has no bias. ReLU
// has gradient 0 at 0.
Status MlpBackward(const std::vector<MlpLayer>& layers, GemmType type, size_t instances, float rate,
                   const float* x, const float* out, const char* saved, const float* dout,
                   float* dx, const std::vector<MlpGradient>& gradients, ThreadPool* pool);

}  // namespace pbx
