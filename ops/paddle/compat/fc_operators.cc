// box_scaled_fc and box_scaled_int8fc: one fully connected layer.
// Input (N, I), W (I, O), Bias (O) or (O, 1) -> Out (N, O)
#include "compat/scaled_fc.h"
#include "compat/scaled_int8fc.h"
#include "paddle/compat/expect.h"

namespace pbx {
namespace {

Status CheckFc(const Tensor& input, const Tensor& w, const Tensor& bias, ScaledFc* fc, Shape* out) {
  PBX_RETURN_IF_ERROR(ExpectMatrix(input, "Input", "(N, I)"));
  PBX_RETURN_IF_ERROR(ExpectMatrix(w, "W", "(I, O)"));
  const int64_t instances = input.shape()[0], inputs = input.shape()[1], outputs = w.shape()[1];
  PBX_RETURN_IF_ERROR(ExpectShape(w, "W", {inputs, outputs}));
  PBX_RETURN_IF_ERROR(
      ExpectFloats(bias, "Bias", bias.shape().size() == 2 ? Shape{outputs, 1} : Shape{outputs}));
  *fc = {Size(instances), Size(inputs), Size(outputs)};
  *out = {instances, outputs};
  return Status::Ok();
}

std::vector<Tensor> FcForward(const Tensor& input, const Tensor& w, const Tensor& bias) {
  Tensor out;
  Guard("scaled_fc", [&]() -> Status {
    ScaledFc fc;
    Shape shape;
    PBX_RETURN_IF_ERROR(CheckFc(input, w, bias, &fc, &shape));
    out = EmptyFloats(shape, input);
    ScaledFcForward(fc, input.data<float>(), w.data<float>(), bias.data<float>(),
                    out.data<float>());
    return Status::Ok();
  });
  return {out};
}

std::vector<Tensor> FcGradients(const char* op, const Tensor& input, const Tensor& w,
                                const Tensor& bias, const Tensor& grad) {
  Tensor dinput, dw, dbias;
  Guard(op, [&]() -> Status {
    ScaledFc fc;
    Shape shape;
    PBX_RETURN_IF_ERROR(CheckFc(input, w, bias, &fc, &shape));
    PBX_RETURN_IF_ERROR(ExpectFloats(grad, "Out@GRAD", shape));
    dinput = EmptyFloats(input.shape(), input);
    dw = EmptyFloats(w.shape(), input);
    dbias = EmptyFloats(bias.shape(), input);
    ScaledFcBackward(fc, input.data<float>(), w.data<float>(), grad.data<float>(),
                     dinput.data<float>(), dw.data<float>(), dbias.data<float>());
    return Status::Ok();
  });
  return {dinput, dw, dbias};
}

std::vector<Tensor> FcBackward(const Tensor& input, const Tensor& w, const Tensor& bias,
                               const Tensor& grad) {
  return FcGradients("scaled_fc_grad", input, w, bias, grad);
}

std::vector<Shape> FcInferShape(const Shape& input, const Shape& w, const Shape& /*bias*/) {
  return {{input.empty() ? -1 : input[0], w.empty() ? -1 : w.back()}};
}
std::vector<DataType> FcInferDtype(const DataType& input, const DataType& /*w*/,
                                   const DataType& /*bias*/) {
  return {input};
}

std::vector<Tensor> Int8Forward(const Tensor& input, const Tensor& w, const Tensor& bias,
                                float input_expand, float input_clip, float weight_expand,
                                float weight_clip, float range) {
  Tensor out;
  Guard("scaled_int8fc", [&]() -> Status {
    ScaledFc fc;
    Shape shape;
    PBX_RETURN_IF_ERROR(CheckFc(input, w, bias, &fc, &shape));
    const ScaledInt8Fc int8{fc.instances,
                            fc.inputs,
                            fc.outputs,
                            {input_expand, input_clip},
                            {weight_expand, weight_clip},
                            range};
    PBX_RETURN_IF_ERROR(CheckScaledInt8Fc(int8));
    out = EmptyFloats(shape, input);
    ScaledInt8FcForward(int8, input.data<float>(), w.data<float>(), bias.data<float>(),
                        out.data<float>());
    return Status::Ok();
  });
  return {out};
}

std::vector<Tensor> Int8Backward(const Tensor& input, const Tensor& w, const Tensor& bias,
                                 const Tensor& grad, float /*input_expand*/, float /*input_clip*/,
                                 float /*weight_expand*/, float /*weight_clip*/, float /*range*/) {
  return FcGradients("scaled_int8fc_grad", input, w, bias, grad);
}

std::vector<Shape> Int8InferShape(const Shape& input, const Shape& w, const Shape& bias,
                                  float /*input_expand*/, float /*input_clip*/,
                                  float /*weight_expand*/, float /*weight_clip*/, float /*range*/) {
  return FcInferShape(input, w, bias);
}

}  // namespace
}  // namespace pbx

PD_BUILD_OP(box_scaled_fc)
    .Inputs({"Input", "W", "Bias"})
    .Outputs({"Out"})
    .SetKernelFn(PD_KERNEL(pbx::FcForward))
    .SetInferShapeFn(PD_INFER_SHAPE(pbx::FcInferShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(pbx::FcInferDtype));

PD_BUILD_GRAD_OP(box_scaled_fc)
    .Inputs({"Input", "W", "Bias", paddle::Grad("Out")})
    .Outputs({paddle::Grad("Input"), paddle::Grad("W"), paddle::Grad("Bias")})
    .SetKernelFn(PD_KERNEL(pbx::FcBackward));

#define PBX_INT8_ATTRS                                                                      \
  {"input_expand_factor: float", "input_clip_factor: float", "weight_expand_factor: float", \
   "weight_clip_factor: float", "int8_range: float"}

PD_BUILD_OP(box_scaled_int8fc)
    .Inputs({"Input", "W", "Bias"})
    .Outputs({"Out"})
    .Attrs(PBX_INT8_ATTRS)
    .SetKernelFn(PD_KERNEL(pbx::Int8Forward))
    .SetInferShapeFn(PD_INFER_SHAPE(pbx::Int8InferShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(pbx::FcInferDtype));

PD_BUILD_GRAD_OP(box_scaled_int8fc)
    .Inputs({"Input", "W", "Bias", paddle::Grad("Out")})
    .Outputs({paddle::Grad("Input"), paddle::Grad("W"), paddle::Grad("Bias")})
    .Attrs(PBX_INT8_ATTRS)
    .SetKernelFn(PD_KERNEL(pbx::Int8Backward));
