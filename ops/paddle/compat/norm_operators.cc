// box_masked_data_norm, box_cross_norm_hadamard, and the operators that update their sums.
#include "compat/cross_norm_hadamard.h"
#include "compat/masked_data_norm.h"
#include "paddle/compat/expect.h"

namespace pbx {
namespace {

// ---- box_masked_data_norm, box_masked_data_norm_update
// X (N, C), Mask (N) or (N, 1) bool; BatchSize, BatchSum, BatchSquareSum (C), ScaleW, Bias (C)

Status CheckRows(const Tensor& x, const Tensor& mask, DataNorm* norm) {
  PBX_RETURN_IF_ERROR(ExpectMatrix(x, "X", "(N, C)"));
  PBX_RETURN_IF_ERROR(Expect(mask, "Mask", DataType::BOOL));
  const int64_t instances = x.shape()[0];
  PBX_RETURN_IF_ERROR(
      ExpectShape(mask, "Mask", mask.shape().size() == 2 ? Shape{instances, 1} : Shape{instances}));
  norm->instances = Size(instances);
  norm->columns = Size(x.shape()[1]);
  return Status::Ok();
}

Status CheckSums(const Tensor& size, const Tensor& sum, const Tensor& square_sum, int64_t columns,
                 DataNormSums* sums) {
  PBX_RETURN_IF_ERROR(ExpectFloats(size, "BatchSize", {columns}));
  PBX_RETURN_IF_ERROR(ExpectFloats(sum, "BatchSum", {columns}));
  PBX_RETURN_IF_ERROR(ExpectFloats(square_sum, "BatchSquareSum", {columns}));
  *sums = {size.data<float>(), sum.data<float>(), square_sum.data<float>()};
  return Status::Ok();
}

Status CheckScaleAndShift(const Tensor& scale_w, const Tensor& bias, int64_t columns,
                          DataNorm* norm) {
  PBX_RETURN_IF_ERROR(ExpectFloats(scale_w, "ScaleW", {columns}));
  PBX_RETURN_IF_ERROR(ExpectFloats(bias, "Bias", {columns}));
  norm->scale_w = scale_w.data<float>();
  norm->bias = bias.data<float>();
  return Status::Ok();
}

std::vector<Tensor> MaskedForward(const Tensor& x, const Tensor& mask, const Tensor& size,
                                  const Tensor& sum, const Tensor& square_sum,
                                  const Tensor& scale_w, const Tensor& bias) {
  Tensor y, means, scales;
  Guard("masked_data_norm", [&]() -> Status {
    DataNorm norm;
    DataNormSums sums;
    PBX_RETURN_IF_ERROR(CheckRows(x, mask, &norm));
    PBX_RETURN_IF_ERROR(CheckSums(size, sum, square_sum, x.shape()[1], &sums));
    PBX_RETURN_IF_ERROR(CheckScaleAndShift(scale_w, bias, x.shape()[1], &norm));
    y = EmptyFloats(x.shape(), x);
    means = EmptyFloats(size.shape(), x);
    scales = EmptyFloats(size.shape(), x);
    MaskedDataNormForward(norm, mask.data<bool>(), sums, x.data<float>(), y.data<float>(),
                          means.data<float>(), scales.data<float>());
    return Status::Ok();
  });
  return {y, means, scales};
}

std::vector<Tensor> MaskedBackward(const Tensor& x, const Tensor& mask, const Tensor& scale_w,
                                   const Tensor& bias, const Tensor& means, const Tensor& scales,
                                   const Tensor& grad) {
  Tensor dx, dscale, dbias;
  Guard("masked_data_norm_grad", [&]() -> Status {
    DataNorm norm;
    PBX_RETURN_IF_ERROR(CheckRows(x, mask, &norm));
    const int64_t columns = x.shape()[1];
    PBX_RETURN_IF_ERROR(CheckScaleAndShift(scale_w, bias, columns, &norm));
    PBX_RETURN_IF_ERROR(ExpectFloats(means, "Means", {columns}));
    PBX_RETURN_IF_ERROR(ExpectFloats(scales, "Scales", {columns}));
    PBX_RETURN_IF_ERROR(ExpectFloats(grad, "Y@GRAD", x.shape()));
    dx = EmptyFloats(x.shape(), x);
    dscale = EmptyFloats(means.shape(), x);
    dbias = EmptyFloats(means.shape(), x);
    MaskedDataNormBackward(norm, mask.data<bool>(), x.data<float>(), means.data<float>(),
                           scales.data<float>(), grad.data<float>(), dx.data<float>(),
                           dscale.data<float>(), dbias.data<float>());
    return Status::Ok();
  });
  return {dx, dscale, dbias};
}

std::vector<Shape> MaskedInferShape(const Shape& x, const Shape& /*mask*/, const Shape& size,
                                    const Shape& /*sum*/, const Shape& /*square_sum*/,
                                    const Shape& /*scale_w*/, const Shape& /*bias*/) {
  return {x, size, size};
}
std::vector<DataType> MaskedInferDtype(const DataType& x, const DataType& /*mask*/,
                                       const DataType& size, const DataType& /*sum*/,
                                       const DataType& /*square_sum*/, const DataType& /*scale_w*/,
                                       const DataType& /*bias*/) {
  return {x, size, size};
}

std::vector<Tensor> MaskedUpdate(const Tensor& x, const Tensor& mask, const Tensor& size,
                                 const Tensor& sum, const Tensor& square_sum, float epsilon,
                                 float decay) {
  Tensor to[3];
  Guard("masked_data_norm_update", [&]() -> Status {
    DataNorm norm;
    DataNormSums sums;
    PBX_RETURN_IF_ERROR(CheckRows(x, mask, &norm));
    PBX_RETURN_IF_ERROR(CheckSums(size, sum, square_sum, x.shape()[1], &sums));
    norm.epsilon = epsilon;
    norm.decay = decay;
    for (Tensor& tensor : to) tensor = EmptyFloats(size.shape(), x);
    MaskedDataNormUpdate(norm, mask.data<bool>(), sums, x.data<float>(), to[0].data<float>(),
                         to[1].data<float>(), to[2].data<float>());
    return Status::Ok();
  });
  return {to[0], to[1], to[2]};
}

std::vector<Shape> MaskedUpdateInferShape(const Shape& /*x*/, const Shape& /*mask*/,
                                          const Shape& size, const Shape& sum,
                                          const Shape& square_sum, float /*epsilon*/,
                                          float /*decay*/) {
  return {size, sum, square_sum};
}
std::vector<DataType> MaskedUpdateInferDtype(const DataType& /*x*/, const DataType& /*mask*/,
                                             const DataType& size, const DataType& sum,
                                             const DataType& square_sum) {
  return {size, sum, square_sum};
}

// ---- box_cross_norm_hadamard, box_cross_norm_hadamard_update
// Input (N, 2 * fields_num * embed_dim), Summary (3, C) -> Out (N, C), Means, Scales (C), with
// C = fields_num * (3 * embed_dim + 1)

Status CheckCross(const Tensor& input, int fields_num, int embed_dim, CrossNorm* cross) {
  if (fields_num < 1 || embed_dim < 1) {
    return Error(Code::kInvalidArgument,
                 "fields_num is %d and embed_dim is %d, expected at least 1", fields_num,
                 embed_dim);
  }
  PBX_RETURN_IF_ERROR(ExpectMatrix(input, "Input", "(N, 2 * fields_num * embed_dim)"));
  cross->instances = Size(input.shape()[0]);
  cross->pairs = Size(fields_num);
  cross->embed = Size(embed_dim);
  return ExpectShape(input, "Input", {input.shape()[0], static_cast<int64_t>(cross->inputs())});
}

Status CheckSummary(const Tensor& summary, const CrossNorm& cross) {
  return ExpectFloats(summary, "Summary", {3, static_cast<int64_t>(cross.columns())});
}

std::vector<Tensor> CrossForward(const Tensor& input, const Tensor& summary, int fields_num,
                                 int embed_dim) {
  Tensor out, means, scales;
  Guard("cross_norm_hadamard", [&]() -> Status {
    CrossNorm cross;
    PBX_RETURN_IF_ERROR(CheckCross(input, fields_num, embed_dim, &cross));
    PBX_RETURN_IF_ERROR(CheckSummary(summary, cross));
    const int64_t columns = static_cast<int64_t>(cross.columns());
    out = EmptyFloats({input.shape()[0], columns}, input);
    means = EmptyFloats({columns}, input);
    scales = EmptyFloats({columns}, input);
    CrossNormForward(cross, summary.data<float>(), input.data<float>(), out.data<float>(),
                     means.data<float>(), scales.data<float>());
    return Status::Ok();
  });
  return {out, means, scales};
}

std::vector<Tensor> CrossBackward(const Tensor& input, const Tensor& scales, const Tensor& grad,
                                  int fields_num, int embed_dim) {
  Tensor dinput;
  Guard("cross_norm_hadamard_grad", [&]() -> Status {
    CrossNorm cross;
    PBX_RETURN_IF_ERROR(CheckCross(input, fields_num, embed_dim, &cross));
    const int64_t columns = static_cast<int64_t>(cross.columns());
    PBX_RETURN_IF_ERROR(ExpectFloats(scales, "Scales", {columns}));
    PBX_RETURN_IF_ERROR(ExpectFloats(grad, "Out@GRAD", {input.shape()[0], columns}));
    dinput = EmptyFloats(input.shape(), input);
    CrossNormBackward(cross, input.data<float>(), scales.data<float>(), grad.data<float>(),
                      dinput.data<float>());
    return Status::Ok();
  });
  return {dinput};
}

std::vector<Shape> CrossInferShape(const Shape& input, const Shape& /*summary*/, int fields_num,
                                   int embed_dim) {
  const int64_t columns = int64_t{fields_num} * (3 * int64_t{embed_dim} + 1);
  return {{input.empty() ? -1 : input[0], columns}, {columns}, {columns}};
}
std::vector<DataType> CrossInferDtype(const DataType& input, const DataType& summary) {
  return {input, summary, summary};
}

std::vector<Tensor> CrossUpdate(const Tensor& input, const Tensor& summary, int fields_num,
                                int embed_dim, float epsilon, float decay) {
  Tensor to;
  Guard("cross_norm_hadamard_update", [&]() -> Status {
    CrossNorm cross;
    PBX_RETURN_IF_ERROR(CheckCross(input, fields_num, embed_dim, &cross));
    PBX_RETURN_IF_ERROR(CheckSummary(summary, cross));
    cross.epsilon = epsilon;
    cross.decay = decay;
    to = EmptyFloats(summary.shape(), input);
    CrossNormUpdate(cross, summary.data<float>(), input.data<float>(), to.data<float>());
    return Status::Ok();
  });
  return {to};
}

std::vector<Shape> CrossUpdateInferShape(const Shape& /*input*/, const Shape& summary,
                                         int /*fields_num*/, int /*embed_dim*/, float /*epsilon*/,
                                         float /*decay*/) {
  return {summary};
}
std::vector<DataType> CrossUpdateInferDtype(const DataType& /*input*/, const DataType& summary) {
  return {summary};
}

}  // namespace
}  // namespace pbx

PD_BUILD_OP(box_masked_data_norm)
    .Inputs({"X", "Mask", "BatchSize", "BatchSum", "BatchSquareSum", "ScaleW", "Bias"})
    .Outputs({"Y", "Means", "Scales"})
    .SetKernelFn(PD_KERNEL(pbx::MaskedForward))
    .SetInferShapeFn(PD_INFER_SHAPE(pbx::MaskedInferShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(pbx::MaskedInferDtype));

PD_BUILD_GRAD_OP(box_masked_data_norm)
    .Inputs({"X", "Mask", "ScaleW", "Bias", "Means", "Scales", paddle::Grad("Y")})
    .Outputs({paddle::Grad("X"), paddle::Grad("ScaleW"), paddle::Grad("Bias")})
    .SetKernelFn(PD_KERNEL(pbx::MaskedBackward));

PD_BUILD_OP(box_masked_data_norm_update)
    .Inputs({"X", "Mask", "BatchSize", "BatchSum", "BatchSquareSum"})
    .Outputs({"NewSize", "NewSum", "NewSquareSum"})
    .Attrs({"epsilon: float", "summary_decay_rate: float"})
    .SetKernelFn(PD_KERNEL(pbx::MaskedUpdate))
    .SetInferShapeFn(PD_INFER_SHAPE(pbx::MaskedUpdateInferShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(pbx::MaskedUpdateInferDtype));

PD_BUILD_OP(box_cross_norm_hadamard)
    .Inputs({"Input", "Summary"})
    .Outputs({"Out", "Means", "Scales"})
    .Attrs({"fields_num: int", "embed_dim: int"})
    .SetKernelFn(PD_KERNEL(pbx::CrossForward))
    .SetInferShapeFn(PD_INFER_SHAPE(pbx::CrossInferShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(pbx::CrossInferDtype));

PD_BUILD_GRAD_OP(box_cross_norm_hadamard)
    .Inputs({"Input", "Scales", paddle::Grad("Out")})
    .Outputs({paddle::Grad("Input")})
    .Attrs({"fields_num: int", "embed_dim: int"})
    .SetKernelFn(PD_KERNEL(pbx::CrossBackward));

PD_BUILD_OP(box_cross_norm_hadamard_update)
    .Inputs({"Input", "Summary"})
    .Outputs({"NewSummary"})
    .Attrs({"fields_num: int", "embed_dim: int", "epsilon: float", "summary_decay_rate: float"})
    .SetKernelFn(PD_KERNEL(pbx::CrossUpdate))
    .SetInferShapeFn(PD_INFER_SHAPE(pbx::CrossUpdateInferShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(pbx::CrossUpdateInferDtype));
