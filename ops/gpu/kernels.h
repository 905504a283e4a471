// The kernels of Paddle's operators, on arrays in the device's memory, without Paddle's types. Each
// function puts its work into the stream and returns. One source serves nvcc and the host
// (cuda/launch.h). No sum uses an atomic operation: two runs give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "cuda/launch.h"

namespace pbx::gpu {

using hbm::Stream;
using Sizes = std::vector<int64_t>;

constexpr int kMaxRank = 8;

enum class Type { kBool, kInt32, kInt64, kFloat32, kFloat64 };

// Strides, in elements, of a row-major array of these sizes.
Sizes StridesOf(const Sizes& sizes);
int64_t CountOf(const Sizes& sizes);

// ---- Movement: elements of 1, 2, 4 or 8 bytes.

// to[i * to_strides] = from[i * from_strides] for all indices i < sizes. A stride of 0 repeats.
Status CopyStrided(const Sizes& sizes, size_t element, const void* from, const Sizes& from_strides,
                   void* to, const Sizes& to_strides, Stream stream);
// value: (element) bytes on the host.
Status FillWith(const void* value, size_t element, uint64_t n, void* to, Stream stream);
Status Cast(Type from_type, const void* from, Type to_type, void* to, uint64_t n, Stream stream);
// from (outer, rows, inner) -> to (outer, m, inner): to[o, i] = from[o, index[i]]. A negative index
// counts from the end. absent: (element) bytes on the host, the result of an index out of range.
Status Gather(const void* from, size_t element, int64_t outer, int64_t rows, int64_t inner,
              Type index_type, const void* index, int64_t m, const void* absent, void* to,
              Stream stream);
// The gradient of Gather, of float32: to[o, r] is the sum of the grad[o, i] with index[i] = r, in
// the order of i.
Status GatherGrad(const float* grad, int64_t outer, int64_t rows, int64_t inner, Type index_type,
                  const void* index, int64_t m, float* to, Stream stream);

// ---- Element by element, in float32.

// What a map computes of x, y and two numbers a, b.
enum class Map {
  // of x
  kScale,       // a x + b
  kScaleOfSum,  // a (x + b)
  kRelu,
  kLeakyRelu,  // x, or a x if x < 0
  kSigmoid,
  kLogSigmoid,
  kTanh,
  kExp,
  kLog,
  kSqrt,
  kSquare,
  // of x and y
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kDivideNegated,  // -x / y
  kLeast,          // of NaN and a number: the number
  kGreatest,
  kReluGrad,        // of the output x and its gradient y
  kLeakyReluGrad,   // of the input x and the gradient y of the output
  kSigmoidGrad,     // of the output x
  kLogSigmoidGrad,  // of the input x
  kTanhGrad,        // of the output x
  kLogGrad,         // of the input x
  kSqrtGrad,        // of the output x
  kSquareGrad,      // of the input x
  kLogLoss,         // of the logit x and the label y; 0 where y is a, the label to ignore
};

// out[i] = map(x[i * x_strides], y[i * y_strides], a, b). y: null for maps of x. out is contiguous.
Status Apply(Map map, const Sizes& sizes, const float* x, const Sizes& x_strides, const float* y,
             const Sizes& y_strides, float a, float b, float* out, Stream stream);
// The same for contiguous arrays of n.
Status Apply(Map map, uint64_t n, const float* x, const float* y, float a, float b, float* out,
             Stream stream);
// a x + b in whole numbers.
Status ScaleWhole(Type type, uint64_t n, const void* x, int64_t a, int64_t b, void* out,
                  Stream stream);
// The gradient of kLogLoss: (sigmoid(x) - label) grad, 0 where the label is `ignored`.
Status LogLossGrad(uint64_t n, const float* x, const float* label, const float* grad, float ignored,
                   float* out, Stream stream);

// As in base/drops.h, with layer 0. mask: 1 for the elements that are kept. scaled: whether these
// are divided by 1 - rate.
Status Dropout(uint64_t n, const float* x, float rate, uint64_t seed, bool scaled, float* out,
               uint8_t* mask, Stream stream);
// grad times scale where the mask is not 0.
Status DropoutGrad(uint64_t n, const uint8_t* mask, const float* grad, float scale, float* out,
                   Stream stream);

enum class Comparison { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual };
// out: bool, contiguous. x and y have the same type.
Status Compare(Comparison comparison, Type type, const Sizes& sizes, const void* x,
               const Sizes& x_strides, const void* y, const Sizes& y_strides, void* out,
               Stream stream);

// ---- Sums in float32, in a fixed tree.

// Floats of room that Sum needs for an array of these sizes.
uint64_t SumRoom(int64_t outer, int64_t summed, int64_t inner);
// x (outer, summed, inner) -> out (outer, inner), each sum times a. T: as in base/bfloat16.h.
template <typename T>
Status Sum(const T* x, int64_t outer, int64_t summed, int64_t inner, float a, float* room,
           float* out, Stream stream);
// out = the sum of the arrays, in their order. Each: (n).
Status AddAll(const std::vector<const float*>& arrays, uint64_t n, float* out, Stream stream);

// ---- Products of float32 or bfloat16, with sums and results in float32.

// Matrices x (rows, summed), y (summed, columns) and out (rows, columns, contiguous), given by
// their strides, and a batch of them.
struct Product {
  int64_t batch = 1, rows = 0, summed = 0, columns = 0;
  int64_t x_batch = 0, x_row = 0, x_column = 0;
  int64_t y_batch = 0, y_row = 0, y_column = 0;
  bool bfloat16 = false;  // x and y are arrays of uint16_t (base/bfloat16.h), else of float
};
// With CUDA, by cuBLAS, without TF32.
Status Multiply(const Product& product, const void* x, const void* y, float* out, Stream stream);
// out = relu(x y + bias), in one launch if cuBLASLt can. bias: (columns), or null.
Status MultiplyAndActivate(const Product& product, const void* x, const void* y, const float* bias,
                           bool relu, float* out, Stream stream);

// out[i] = sum over j of x[i, j] y[i, j], as an einsum: `sizes` and the strides have the kept
// indices first, then the summed ones. out is contiguous over the kept ones. y: null for 1.
Status Contract(const Sizes& sizes, size_t kept, const float* x, const Sizes& x_strides,
                const float* y, const Sizes& y_strides, float* out, Stream stream);

// ---- Normalization of float32.

// Over the middle axis of x (outer, n, inner).
Status Softmax(const float* x, int64_t outer, int64_t n, int64_t inner, float* out, Stream stream);
Status SoftmaxGrad(const float* out, const float* grad, int64_t outer, int64_t n, int64_t inner,
                   float* x_grad, Stream stream);

// Of each row of x (rows, n). scale, bias: (n) or null. mean, variance: (rows).
Status LayerNorm(const float* x, int64_t rows, int64_t n, const float* scale, const float* bias,
                 float epsilon, float* out, float* mean, float* variance, Stream stream);
// terms: (2, rows, n), or null: what Sum turns into the gradients of scale and bias.
Status LayerNormGrad(const float* x, int64_t rows, int64_t n, const float* scale, const float* mean,
                     const float* variance, float epsilon, const float* grad, float* x_grad,
                     float* terms, Stream stream);

// Columns of x (rows, n). mean, inverse: (n), the inverse of the deviation.
struct BatchNormOf {
  int64_t rows = 0, n = 0;
  const float *x = nullptr, *scale = nullptr, *bias = nullptr;
};
// mean, variance: (n) of the batch. Updates the running (n) values.
Status BatchStatistics(const float* mean, const float* variance, int64_t n, float momentum,
                       float epsilon, float* running_mean, float* running_variance,
                       float* saved_mean, float* saved_inverse, Stream stream);
// out = (x - mean) * inverse * scale + bias. inverse: null: of `variance`.
Status BatchNorm(const BatchNormOf& of, const float* mean, const float* inverse,
                 const float* variance, float epsilon, float* out, Stream stream);
// terms: (rows, n) grad * (x - mean) * inverse.
Status BatchNormTerms(const BatchNormOf& of, const float* mean, const float* inverse,
                      const float* grad, float* terms, Stream stream);
// From the sums of grad (n) and of the terms (n).
Status BatchNormGrad(const BatchNormOf& of, const float* mean, const float* inverse,
                     const float* grad, const float* sum, const float* sum_of_terms, float* x_grad,
                     Stream stream);

// ---- Optimizers. All arrays of n are float32. The learning rate and powers are on the device.

struct Adam {
  float beta1 = 0, beta2 = 0, epsilon = 0;
  float decay = 0;  // of AdamW: the parameter is multiplied by 1 - rate * decay before the update
};
// A parameter. Outputs may be the inputs.
struct AdamOf {
  int64_t n = 0;
  const float *rate = nullptr, *beta1_power = nullptr, *beta2_power = nullptr;  // (1)
  const float *gradient = nullptr, *parameter = nullptr, *moment1 = nullptr, *moment2 = nullptr;
  float *parameter_out = nullptr, *moment1_out = nullptr, *moment2_out = nullptr;
  float *beta1_out = nullptr, *beta2_out = nullptr;  // written with `powers`
};
// One launch for up to 32 parameters, and one for their powers.
Status AdamStep(const Adam& adam, const std::vector<AdamOf>& of, bool powers, Stream stream);
Status SgdStep(uint64_t n, const float* rate, const float* gradient, const float* parameter,
               float* parameter_out, Stream stream);
Status AdagradStep(uint64_t n, const float* rate, float epsilon, const float* gradient,
                   const float* parameter, const float* moment, float* parameter_out,
                   float* moment_out, Stream stream);

}  // namespace pbx::gpu
