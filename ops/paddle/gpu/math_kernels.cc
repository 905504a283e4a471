// Kernels of arithmetic: element by element, sums, products.
#include <algorithm>
#include <map>
#include <string>
#include <type_traits>

#include "paddle/gpu/tensors.h"

namespace pbx::gpu::kernels {

using phi::CustomContext;
using phi::IntArray;
using phi::Scalar;

// ---- Two arrays, one of which may be broadcast.

Sizes BroadcastSizes(const Sizes& x, const Sizes& y, int axis) {
  Sizes sizes(std::max(x.size(), y.size()), 1);
  for (const Sizes* of : {&x, &y}) {
    const bool shorter = of->size() < sizes.size() && axis >= 0;
    const size_t begin = shorter ? static_cast<size_t>(axis) : sizes.size() - of->size();
    for (size_t d = 0; d < of->size(); ++d) {
      if ((*of)[d] != 1) sizes[begin + d] = (*of)[d];
    }
  }
  return sizes;
}

void Combine(const CustomContext& context, Map map, const DenseTensor& x, const DenseTensor& y,
             int axis, float* out) {
  const Sizes sizes = BroadcastSizes(SizesOf(x), SizesOf(y), axis);
  Check(Apply(map, sizes, In<float>(x), BroadcastStrides(SizesOf(x), sizes.size(), axis),
              In<float>(y), BroadcastStrides(SizesOf(y), sizes.size(), axis), 0, 0, out,
              StreamOf(context)));
}

#define PBX_COMBINATION(name, map)                                              \
  template <typename T, typename Context>                                       \
  void name(const Context& context, const DenseTensor& x, const DenseTensor& y, \
            DenseTensor* out) {                                                 \
    Combine(context, map, x, y, -1, Out<float>(context, out));                  \
  }
PBX_COMBINATION(Add, Map::kAdd)
PBX_COMBINATION(Subtract, Map::kSubtract)
PBX_COMBINATION(Times, Map::kMultiply)
PBX_COMBINATION(Divide, Map::kDivide)
PBX_COMBINATION(Least, Map::kLeast)
PBX_COMBINATION(Greatest, Map::kGreatest)

// Sums gradients (sizes) over the axes along which an operand of these strides was broadcast.
void SumBroadcast(const CustomContext& context, const float* from, const Sizes& sizes,
                  const Sizes& strides, float a, float* to) {
  std::vector<bool> repeated(sizes.size());
  for (size_t d = 0; d < sizes.size(); ++d) repeated[d] = strides[d] == 0 && sizes[d] != 1;
  SumOver(context, from, sizes, repeated, a, to);
}

// The gradient of one operand: map(other or out, dout), summed where it was broadcast.
void OperandGrad(const CustomContext& context, Map map, const DenseTensor& dout,
                 const DenseTensor& other, const DenseTensor& of, int axis, DenseTensor* grad) {
  const Sizes sizes = SizesOf(dout);
  DenseTensor room;
  float* const terms = Room(context, CountOf(dout), &room);
  Check(Apply(map, sizes, In<float>(dout), StridesOf(sizes), In<float>(other),
              BroadcastStrides(SizesOf(other), sizes.size(), axis), 0, 0, terms,
              StreamOf(context)));
  SumBroadcast(context, terms, sizes, BroadcastStrides(SizesOf(of), sizes.size(), axis), 1,
               Out<float>(context, grad));
}

void PassGrad(const CustomContext& context, const DenseTensor& dout, const DenseTensor& of,
              int axis, float a, DenseTensor* grad) {
  const Sizes sizes = SizesOf(dout);
  SumBroadcast(context, In<float>(dout), sizes, BroadcastStrides(SizesOf(of), sizes.size(), axis),
               a, Out<float>(context, grad));
}

template <typename T, typename Context>
void AddGrad(const Context& context, const DenseTensor& x, const DenseTensor& y,
             const DenseTensor& dout, int axis, DenseTensor* dx, DenseTensor* dy) {
  // dy first: dx may be dout's own memory.
  if (dy != nullptr) PassGrad(context, dout, y, axis, 1, dy);
  if (dx != nullptr) PassGrad(context, dout, x, axis, 1, dx);
}
template <typename T, typename Context>
void SubtractGrad(const Context& context, const DenseTensor& x, const DenseTensor& y,
                  const DenseTensor& dout, int axis, DenseTensor* dx, DenseTensor* dy) {
  if (dy != nullptr) PassGrad(context, dout, y, axis, -1, dy);
  if (dx != nullptr) PassGrad(context, dout, x, axis, 1, dx);
}
template <typename T, typename Context>
void MultiplyGrad(const Context& context, const DenseTensor& x, const DenseTensor& y,
                  const DenseTensor& dout, int axis, DenseTensor* dx, DenseTensor* dy) {
  if (dy != nullptr) OperandGrad(context, Map::kMultiply, dout, x, y, axis, dy);
  if (dx != nullptr) OperandGrad(context, Map::kMultiply, dout, y, x, axis, dx);
}
template <typename T, typename Context>
void DivideGrad(const Context& context, const DenseTensor& x, const DenseTensor& y,
                const DenseTensor& out, const DenseTensor& dout, int axis, DenseTensor* dx,
                DenseTensor* dy) {
  if (dy != nullptr) {  // -dout * out / y
    DenseTensor product;
    product.Resize(dout.dims());
    Combine(context, Map::kMultiply, dout, out, -1, Out<float>(context, &product));
    OperandGrad(context, Map::kDivideNegated, product, y, y, axis, dy);
  }
  if (dx != nullptr) OperandGrad(context, Map::kDivide, dout, y, x, axis, dx);
}

template <typename T, typename Context>
void AddN(const Context& context, const std::vector<const phi::TensorBase*>& x, DenseTensor* out) {
  std::vector<const float*> arrays;
  for (const phi::TensorBase* one : x) {
    if (!DenseTensor::classof(one)) Refuse("add_n", "a sparse gradient");
    arrays.push_back(In<float>(*static_cast<const DenseTensor*>(one)));
  }
  Check(AddAll(arrays, CountOf(*out), Out<float>(context, out), StreamOf(context)));
}

// ---- One array.

void ApplyTo(const CustomContext& context, Map map, const DenseTensor& x, const DenseTensor* y,
             float a, float b, DenseTensor* out) {
  Check(Apply(map, CountOf(x), In<float>(x), y == nullptr ? nullptr : In<float>(*y), a, b,
              Out<float>(context, out), StreamOf(context)));
}

// grad(seen, dout): of the input or of the output, as Paddle passes it.
#define PBX_ACTIVATION(name, map, grad)                                                     \
  template <typename T, typename Context>                                                   \
  void name(const Context& context, const DenseTensor& x, DenseTensor* out) {               \
    ApplyTo(context, map, x, nullptr, 0, 0, out);                                           \
  }                                                                                         \
  template <typename T, typename Context>                                                   \
  void name##Grad(const Context& context, const DenseTensor& seen, const DenseTensor& dout, \
                  DenseTensor* dx) {                                                        \
    ApplyTo(context, grad, seen, &dout, 0, 0, dx);                                          \
  }

PBX_ACTIVATION(Relu, Map::kRelu, Map::kReluGrad)
PBX_ACTIVATION(Sigmoid, Map::kSigmoid, Map::kSigmoidGrad)
PBX_ACTIVATION(LogSigmoid, Map::kLogSigmoid, Map::kLogSigmoidGrad)
PBX_ACTIVATION(Tanh, Map::kTanh, Map::kTanhGrad)
PBX_ACTIVATION(Exp, Map::kExp, Map::kMultiply)
PBX_ACTIVATION(Log, Map::kLog, Map::kLogGrad)
PBX_ACTIVATION(Sqrt, Map::kSqrt, Map::kSqrtGrad)
PBX_ACTIVATION(Square, Map::kSquare, Map::kSquareGrad)

template <typename T, typename Context>
void LeakyRelu(const Context& context, const DenseTensor& x, double alpha, DenseTensor* out) {
  ApplyTo(context, Map::kLeakyRelu, x, nullptr, static_cast<float>(alpha), 0, out);
}
template <typename T, typename Context>
void LeakyReluGrad(const Context& context, const DenseTensor& x, const DenseTensor& dout,
                   double alpha, DenseTensor* dx) {
  ApplyTo(context, Map::kLeakyReluGrad, x, &dout, static_cast<float>(alpha), 0, dx);
}
template <typename T, typename Context>
void Scale(const Context& context, const DenseTensor& x, const Scalar& scale, const Scalar& bias,
           bool bias_after_scale, DenseTensor* out) {
  if constexpr (std::is_same_v<T, float>) {
    ApplyTo(context, bias_after_scale ? Map::kScale : Map::kScaleOfSum, x, nullptr,
            scale.to<float>(), bias.to<float>(), out);
  } else {
    const auto a = scale.to<int64_t>(), b = bias.to<int64_t>();
    Check(ScaleWhole(TypeOf(x.dtype()), CountOf(x), In<T>(x), a, bias_after_scale ? b : a * b,
                     Out<T>(context, out), StreamOf(context)));
  }
}

template <typename T, typename Context>
void LogLoss(const Context& context, const DenseTensor& x, const DenseTensor& label,
             const Optional& pos_weight, bool normalize, int ignore_index, DenseTensor* out) {
  if (pos_weight || normalize) Refuse("log loss", "pos_weight or normalize");
  ApplyTo(context, Map::kLogLoss, x, &label, static_cast<float>(ignore_index), 0, out);
}
template <typename T, typename Context>
void GradOfLogLoss(const Context& context, const DenseTensor& x, const DenseTensor& label,
                   const Optional& pos_weight, const DenseTensor& dout, bool normalize,
                   int ignore_index, DenseTensor* dx) {
  if (pos_weight || normalize) Refuse("log loss", "pos_weight or normalize");
  Check(LogLossGrad(CountOf(x), In<float>(x), In<float>(label), In<float>(dout),
                    static_cast<float>(ignore_index), Out<float>(context, dx), StreamOf(context)));
}

template <Comparison kComparison, typename T, typename Context>
void Compared(const Context& context, const DenseTensor& x, const DenseTensor& y,
              DenseTensor* out) {
  const Sizes sizes = BroadcastSizes(SizesOf(x), SizesOf(y), -1);
  Check(Compare(kComparison, TypeOf(x.dtype()), sizes, In<T>(x),
                BroadcastStrides(SizesOf(x), sizes.size(), -1), In<T>(y),
                BroadcastStrides(SizesOf(y), sizes.size(), -1), Out<bool>(context, out),
                StreamOf(context)));
}
#define PBX_COMPARISON(name)                                                    \
  template <typename T, typename Context>                                       \
  void name(const Context& context, const DenseTensor& x, const DenseTensor& y, \
            DenseTensor* out) {                                                 \
    Compared<Comparison::k##name, T>(context, x, y, out);                       \
  }
PBX_COMPARISON(Equal)
PBX_COMPARISON(NotEqual)
PBX_COMPARISON(Less)
PBX_COMPARISON(LessEqual)
PBX_COMPARISON(Greater)
PBX_COMPARISON(GreaterEqual)

// ---- Sums.

// Which axes a reduction names; all of them if it names none.
std::vector<bool> Named(const std::vector<int64_t>& axes, size_t rank) {
  std::vector<bool> named(rank, axes.empty());
  for (const int64_t axis : axes) named[AxisOf(axis, rank)] = true;
  return named;
}

float ShareOf(const Sizes& sizes, const std::vector<bool>& summed, bool mean) {
  int64_t count = 1;
  for (size_t d = 0; mean && d < sizes.size(); ++d) count *= summed[d] ? sizes[d] : 1;
  return 1.0f / static_cast<float>(count);
}

void Reduce(const CustomContext& context, const DenseTensor& x, const IntArray& axes, bool mean,
            DenseTensor* out) {
  const Sizes sizes = SizesOf(x);
  const std::vector<bool> summed = Named(axes.GetData(), sizes.size());
  SumOver(context, In<float>(x), sizes, summed, ShareOf(sizes, summed, mean),
          Out<float>(context, out));
}

void ReduceGrad(const CustomContext& context, const DenseTensor& x, const DenseTensor& dout,
                const IntArray& axes, bool all, bool mean, DenseTensor* dx) {
  const Sizes sizes = SizesOf(x);
  const std::vector<bool> summed =
      Named(all ? std::vector<int64_t>() : axes.GetData(), sizes.size());
  Sizes kept = sizes, strides;
  for (size_t d = 0; d < sizes.size(); ++d) kept[d] = summed[d] ? 1 : sizes[d];
  strides = BroadcastStrides(kept, sizes.size(), -1);
  Check(Apply(Map::kScale, sizes, In<float>(dout), strides, nullptr, strides,
              ShareOf(sizes, summed, mean), 0, Out<float>(context, dx), StreamOf(context)));
}

template <typename T, typename Context>
void Mean(const Context& context, const DenseTensor& x, const IntArray& axes, bool /*keep*/,
          DenseTensor* out) {
  Reduce(context, x, axes, true, out);
}
template <typename T, typename Context>
void SumKernel(const Context& context, const DenseTensor& x, const IntArray& axes,
               phi::DataType /*type*/, bool /*keep*/, DenseTensor* out) {
  Reduce(context, x, axes, false, out);
}
template <typename T, typename Context>
void MeanGrad(const Context& context, const DenseTensor& x, const DenseTensor& dout,
              const IntArray& axes, bool /*keep*/, bool all, DenseTensor* dx) {
  ReduceGrad(context, x, dout, axes, all, true, dx);
}
template <typename T, typename Context>
void SumGrad(const Context& context, const DenseTensor& x, const DenseTensor& dout,
             const IntArray& axes, bool /*keep*/, bool all, DenseTensor* dx) {
  ReduceGrad(context, x, dout, axes, all, false, dx);
}
template <typename T, typename Context>
void MeanAll(const Context& context, const DenseTensor& x, DenseTensor* out) {
  Reduce(context, x, IntArray(), true, out);
}
template <typename T, typename Context>
void MeanAllGrad(const Context& context, const DenseTensor& x, const DenseTensor& dout,
                 DenseTensor* dx) {
  ReduceGrad(context, x, dout, IntArray(), true, true, dx);
}

// ---- Products of matrices. Axes before the last two are a batch.

// A matrix, or a stack of them, and how to read it.
struct Matrix {
  const float* data;
  Sizes sizes;      // with at least two axes
  bool transposed;  // read so
  int64_t rows() const { return sizes[sizes.size() - (transposed ? 1 : 2)]; }
  int64_t columns() const { return sizes[sizes.size() - (transposed ? 2 : 1)]; }
  int64_t row_stride() const { return transposed ? 1 : sizes.back(); }
  int64_t column_stride() const { return transposed ? sizes.back() : 1; }
  Sizes batch() const { return {sizes.begin(), sizes.end() - 2}; }
};

// A vector is a row on the left and a column on the right.
Matrix MatrixOf(const DenseTensor& tensor, bool transposed, bool left) {
  Sizes sizes = SizesOf(tensor);
  if (sizes.size() >= 2) return {In<float>(tensor), sizes, transposed};
  if (sizes.empty()) sizes = {1};
  sizes.insert(left ? sizes.begin() : sizes.end(), 1);
  return {In<float>(tensor), sizes, false};
}

// out: the batch of both, broadcast, then rows and columns.
void MultiplyMatrices(const CustomContext& context, const Matrix& x, const Matrix& y, float* out) {
  Product product;
  product.rows = x.rows();
  product.summed = x.columns();
  product.columns = y.columns();
  product.x_row = x.row_stride();
  product.x_column = x.column_stride();
  product.y_row = y.row_stride();
  product.y_column = y.column_stride();
  const int64_t of_x = x.rows() * x.columns(), of_y = y.rows() * y.columns();
  const int64_t x_count = CountOf(x.batch()), y_count = CountOf(y.batch());
  const Stream stream = StreamOf(context);
  if (y_count == 1 && !x.transposed) {  // one tall matrix
    product.rows *= x_count;
    return Check(Multiply(product, x.data, y.data, out, stream));
  }
  if (x.batch() == y.batch() || x_count == 1 || y_count == 1) {
    product.batch = x_count == 1 ? y_count : x_count;
    product.x_batch = x_count == 1 ? 0 : of_x;
    product.y_batch = y_count == 1 ? 0 : of_y;
    return Check(Multiply(product, x.data, y.data, out, stream));
  }
  // Batches that broadcast in part: the product of each pair.
  const Sizes sizes = BroadcastSizes(x.batch(), y.batch(), -1);
  const Sizes x_strides = BroadcastStrides(x.batch(), sizes.size(), -1);
  const Sizes y_strides = BroadcastStrides(y.batch(), sizes.size(), -1);
  for (int64_t i = 0; i < CountOf(sizes); ++i) {
    int64_t left = i, at_x = 0, at_y = 0;
    for (size_t d = sizes.size(); d-- > 0; left /= sizes[d]) {
      at_x += left % sizes[d] * x_strides[d];
      at_y += left % sizes[d] * y_strides[d];
    }
    Check(Multiply(product, x.data + at_x * of_x, y.data + at_y * of_y,
                   out + i * product.rows * product.columns, stream));
  }
}

template <typename T, typename Context>
void Matmul(const Context& context, const DenseTensor& x, const DenseTensor& y, bool transpose_x,
            bool transpose_y, DenseTensor* out) {
  MultiplyMatrices(context, MatrixOf(x, transpose_x, true), MatrixOf(y, transpose_y, false),
                   Out<float>(context, out));
}

// A gradient x y of an operand `of`, summed over the batches along which it was broadcast.
void MultiplyAndSum(const CustomContext& context, const Matrix& x, const Matrix& y,
                    const Matrix& of, DenseTensor* grad) {
  float* const to = Out<float>(context, grad);
  Sizes sizes = BroadcastSizes(x.batch(), y.batch(), -1);
  const Sizes own = of.batch();
  if (CountOf(sizes) == CountOf(own)) return MultiplyMatrices(context, x, y, to);
  if (own.empty() || CountOf(own) == 1) {
    // One matrix for all: a product over the rows of all batches. x and y are stacks of matrices
    // whose rows follow each other, so one of them is read transposed.
    if (x.transposed && !y.transposed && x.batch() == y.batch()) {
      const Matrix tall_x{x.data, {CountOf(x.batch()) * x.columns(), x.rows()}, true};
      const Matrix tall_y{y.data, {CountOf(y.batch()) * y.rows(), y.columns()}, false};
      return MultiplyMatrices(context, tall_x, tall_y, to);
    }
  }
  DenseTensor room;
  const auto n = static_cast<uint64_t>(CountOf(sizes) * x.rows() * y.columns());
  float* const terms = Room(context, n, &room);
  MultiplyMatrices(context, x, y, terms);
  const Sizes strides = BroadcastStrides(own, sizes.size(), -1);
  std::vector<bool> summed(sizes.size() + 2, false);
  for (size_t d = 0; d < sizes.size(); ++d) summed[d] = strides[d] == 0 && sizes[d] != 1;
  sizes.insert(sizes.end(), {x.rows(), y.columns()});
  SumOver(context, terms, sizes, summed, 1, to);
}

Matrix Flipped(Matrix matrix) {
  matrix.transposed = !matrix.transposed;
  return matrix;
}

template <typename T, typename Context>
void MatmulGrad(const Context& context, const DenseTensor& x, const DenseTensor& y,
                const DenseTensor& dout, bool transpose_x, bool transpose_y, DenseTensor* dx,
                DenseTensor* dy) {
  const Matrix left = MatrixOf(x, transpose_x, true), right = MatrixOf(y, transpose_y, false);
  Matrix grad{In<float>(dout), BroadcastSizes(left.batch(), right.batch(), -1), false};
  grad.sizes.insert(grad.sizes.end(), {left.rows(), right.columns()});
  if (dx != nullptr) {  // dout y^T, or its transpose
    if (left.transposed) {
      MultiplyAndSum(context, right, Flipped(grad), left, dx);
    } else {
      MultiplyAndSum(context, grad, Flipped(right), left, dx);
    }
  }
  if (dy != nullptr) {  // x^T dout, or its transpose
    if (right.transposed) {
      MultiplyAndSum(context, Flipped(grad), left, right, dy);
    } else {
      MultiplyAndSum(context, Flipped(left), grad, right, dy);
    }
  }
}

// ---- einsum of one or two arrays.

struct Equation {
  std::vector<std::string> inputs;
  std::string output;
};

Equation Parsed(const std::string& text) {
  Equation equation;
  std::string compact;
  std::copy_if(text.begin(), text.end(), std::back_inserter(compact),
               [](char c) { return c != ' '; });
  const size_t arrow = compact.find("->");
  if (arrow == std::string::npos || compact.find('.') != std::string::npos) {
    Refuse("einsum", compact.c_str());
  }
  equation.output = compact.substr(arrow + 2);
  for (size_t begin = 0; begin <= arrow;) {
    const size_t end = std::min(compact.find(',', begin), arrow);
    equation.inputs.push_back(compact.substr(begin, end - begin));
    begin = end + 1;
  }
  if (equation.inputs.size() > 2) Refuse("einsum", "more than two operands");
  return equation;
}

// out = the einsum of x and y (null: none) for these labels. sizes: of each label.
void Einsum(const CustomContext& context, std::map<char, int64_t> sizes, const std::string& x,
            const float* x_data, const std::string& y, const float* y_data,
            const std::string& output, float* out) {
  std::string labels = output;
  for (const char label : x + y) {
    if (labels.find(label) == std::string::npos) labels += label;
  }
  const auto strides_of = [&](const std::string& own) {
    Sizes strides(labels.size(), 0);
    int64_t stride = 1;
    for (size_t d = own.size(); d-- > 0; stride *= sizes[own[d]]) {
      strides[labels.find(own[d])] += stride;  // a label twice is a diagonal
    }
    return strides;
  };
  Sizes counts;
  for (const char label : labels) counts.push_back(sizes[label]);
  Check(Contract(counts, output.size(), x_data, strides_of(x), y_data, strides_of(y), out,
                 StreamOf(context)));
}

std::map<char, int64_t> LabelSizes(const Equation& equation,
                                   const std::vector<const DenseTensor*>& x) {
  std::map<char, int64_t> sizes;
  for (size_t k = 0; k < x.size(); ++k) {
    const Sizes own = SizesOf(*x[k]);
    for (size_t d = 0; d < own.size(); ++d) sizes[equation.inputs[k][d]] = own[d];
  }
  return sizes;
}

// cache: what Paddle passes to the gradient in place of the operands: the same arrays. Paddle
// passes lists of outputs by value.
// NOLINTBEGIN(performance-unnecessary-value-param)
template <typename T, typename Context>
void EinsumKernel(const Context& context, const std::vector<const DenseTensor*>& x,
                  const std::string& text, DenseTensor* out, std::vector<DenseTensor*> cache,
                  std::vector<DenseTensor*> /*shapes*/) {
  // NOLINTEND(performance-unnecessary-value-param)
  for (size_t k = 0; k < cache.size() && k < x.size(); ++k) {
    if (cache[k] != nullptr) cache[k]->ShareDataWith(*x[k]);
  }
  const Equation equation = Parsed(text);
  const bool two = x.size() == 2;
  Einsum(context, LabelSizes(equation, x), equation.inputs[0], In<float>(*x[0]),
         two ? equation.inputs[1] : "", two ? In<float>(*x[1]) : nullptr, equation.output,
         Out<float>(context, out));
}

template <typename T, typename Context>
void EinsumGrad(const Context& context, const std::vector<const DenseTensor*>& /*shapes*/,
                const std::vector<const DenseTensor*>& x, const DenseTensor& dout,
                const std::string& text, std::vector<DenseTensor*> x_grad) {
  const Equation equation = Parsed(text);
  const std::map<char, int64_t> sizes = LabelSizes(equation, x);
  for (size_t k = 0; k < x_grad.size(); ++k) {
    if (x_grad[k] == nullptr) continue;
    const bool two = x.size() == 2;
    const size_t other = 1 - k;
    Einsum(context, sizes, equation.output, In<float>(dout), two ? equation.inputs[other] : "",
           two ? In<float>(*x[other]) : nullptr, equation.inputs[k],
           Out<float>(context, x_grad[k]));
  }
}

}  // namespace pbx::gpu::kernels

PBX_REGISTER(add, Add, float)
PBX_REGISTER(subtract, Subtract, float)
PBX_REGISTER(multiply, Times, float)
PBX_REGISTER(divide, Divide, float)
PBX_REGISTER(fmin, Least, float)
PBX_REGISTER(fmax, Greatest, float)
PBX_REGISTER(add_grad, AddGrad, float)
PBX_REGISTER(subtract_grad, SubtractGrad, float)
PBX_REGISTER(multiply_grad, MultiplyGrad, float)
PBX_REGISTER(divide_grad, DivideGrad, float)
PBX_REGISTER(add_n, AddN, float)
PBX_REGISTER(relu, Relu, float)
PBX_REGISTER(relu_grad, ReluGrad, float)
PBX_REGISTER(sigmoid, Sigmoid, float)
PBX_REGISTER(sigmoid_grad, SigmoidGrad, float)
PBX_REGISTER(logsigmoid, LogSigmoid, float)
PBX_REGISTER(logsigmoid_grad, LogSigmoidGrad, float)
PBX_REGISTER(tanh, Tanh, float)
PBX_REGISTER(tanh_grad, TanhGrad, float)
PBX_REGISTER(exp, Exp, float)
PBX_REGISTER(exp_grad, ExpGrad, float)
PBX_REGISTER(log, Log, float)
PBX_REGISTER(log_grad, LogGrad, float)
PBX_REGISTER(sqrt, Sqrt, float)
PBX_REGISTER(sqrt_grad, SqrtGrad, float)
PBX_REGISTER(square, Square, float)
PBX_REGISTER(square_grad, SquareGrad, float)
PBX_REGISTER(leaky_relu, LeakyRelu, float)
PBX_REGISTER(leaky_relu_grad, LeakyReluGrad, float)
PBX_REGISTER(scale, Scale, int, int64_t, float)
PBX_REGISTER(sigmoid_cross_entropy_with_logits, LogLoss, float)
PBX_REGISTER(sigmoid_cross_entropy_with_logits_grad, GradOfLogLoss, float)
PBX_REGISTER(equal, Equal, bool, int, int64_t, float)
PBX_REGISTER(not_equal, NotEqual, bool, int, int64_t, float)
PBX_REGISTER(less_than, Less, int, int64_t, float)
PBX_REGISTER(less_equal, LessEqual, int, int64_t, float)
PBX_REGISTER(greater_than, Greater, int, int64_t, float)
PBX_REGISTER(greater_equal, GreaterEqual, int, int64_t, float)
PBX_REGISTER(mean, Mean, float)
PBX_REGISTER(mean_grad, MeanGrad, float)
PBX_REGISTER(sum, SumKernel, float)
PBX_REGISTER(sum_grad, SumGrad, float)
PBX_REGISTER(mean_all, MeanAll, float)
PBX_REGISTER(mean_all_grad, MeanAllGrad, float)
PBX_REGISTER(matmul, Matmul, float)
PBX_REGISTER(matmul_grad, MatmulGrad, float)
PBX_REGISTER(einsum, EinsumKernel, float)
PBX_REGISTER(einsum_grad, EinsumGrad, float)
