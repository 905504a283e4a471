// box_mlp: a stack of linear layers in float32 or bfloat16 (dense/mlp.h).
//
// Inputs: X (..., N_0), L weights (N_(l-1), N_l), and (N_l) for each layer with a bias; Seed, int64
// (1), only with dropout; attributes relu (L), biased (L), bfloat16, and the rate of the dropout
// -> Out (..., N_L), Saved (bytes that the backward reads)
//
// Inputs is one list, because a list must be the only output of Paddle's gradient operators.
#include "dense/mlp.h"

#include <algorithm>

#include "dense/pool.h"
#include "paddle/operators/kernel_guard.h"
#include "paddle/operators/outputs.h"

namespace pbx {
namespace {

// The attributes, in the order of the declaration.
struct MlpAttributes {
  const std::vector<int>& relu;
  const std::vector<int>& biased;
  bool bfloat16;
  float dropout;
};

struct MlpCall {
  const float* x = nullptr;
  size_t instances = 0;  // rows of x
  std::vector<MlpLayer> layers;
  std::vector<size_t> bias;  // for each layer the position of its bias in Inputs; 0: none
  GemmType type = GemmType::kFloat32;
  ThreadPool* pool = nullptr;
};

Status CheckLayers(const std::vector<Tensor>& inputs, const MlpAttributes& attributes,
                   MlpCall* call) {
  const size_t count = attributes.relu.size();
  size_t next_bias = 1 + count;
  int64_t width = inputs[0].shape().back();
  for (size_t l = 0; l < count; ++l) {
    const Tensor& weight = inputs[1 + l];
    const std::string of = " of layer " + std::to_string(l + 1);
    PBX_RETURN_IF_ERROR(Expect(weight, ("the weight" + of).c_str(), DataType::FLOAT32));
    const int64_t outputs = weight.shape().size() == 2 ? weight.shape()[1] : -1;
    PBX_RETURN_IF_ERROR(ExpectShape(weight, ("the weight" + of).c_str(), {width, outputs}));
    if (width < 1 || outputs < 1) {
      return Error(Code::kInvalidArgument, "the weight%s has shape %s, expected no 0", of.c_str(),
                   Describe(weight.shape()).c_str());
    }
    MlpLayer layer{static_cast<size_t>(width), static_cast<size_t>(outputs),
                   attributes.relu[l] != 0 ? Activation::kRelu : Activation::kNone,
                   weight.data<float>(), nullptr};
    call->bias.push_back(0);
    if (attributes.biased[l] != 0) {
      const Tensor& bias = inputs[next_bias];
      PBX_RETURN_IF_ERROR(Expect(bias, ("the bias" + of).c_str(), DataType::FLOAT32));
      PBX_RETURN_IF_ERROR(ExpectShape(bias, ("the bias" + of).c_str(), {outputs}));
      layer.bias = bias.data<float>();
      call->bias.back() = next_bias++;
    }
    call->layers.push_back(layer);
    width = outputs;
  }
  return Status::Ok();
}

Status CheckMlp(const std::vector<Tensor>& inputs, const MlpAttributes& attributes, MlpCall* call) {
  if (!(attributes.dropout >= 0.0f && attributes.dropout < 1.0f)) {
    return Error(Code::kInvalidArgument, "dropout is %g, expected 0 <= dropout < 1",
                 static_cast<double>(attributes.dropout));
  }
  const std::vector<int>& biased = attributes.biased;
  const size_t count = attributes.relu.size();
  const auto biases = static_cast<size_t>(
      std::count_if(biased.begin(), biased.end(), [](int b) { return b != 0; }));
  if (count == 0 || biased.size() != count || inputs.size() != 1 + count + biases) {
    return Error(Code::kInvalidArgument,
                 "%zu inputs, expected X, a weight for each of %zu layers, and %zu biases",
                 inputs.size(), count, biases);
  }
  const Tensor& x = inputs[0];
  PBX_RETURN_IF_ERROR(Expect(x, "X", DataType::FLOAT32));
  if (x.shape().size() < 2) {
    return Error(Code::kInvalidArgument, "X has shape %s, expected (..., N)",
                 Describe(x.shape()).c_str());
  }
  PBX_RETURN_IF_ERROR(CheckLayers(inputs, attributes, call));
  call->x = x.data<float>();
  call->instances = static_cast<size_t>(x.numel()) / call->layers.front().inputs;
  call->type = attributes.bfloat16 ? GemmType::kBfloat16 : GemmType::kFloat32;
  Result<ThreadPool*> pool = DensePool();
  if (!pool.ok()) return pool.status();
  call->pool = pool.value();
  return Status::Ok();
}

Status CheckSeed(const paddle::optional<Tensor>& seed, float dropout, MlpDropout* of_call) {
  of_call->rate = dropout;
  if (dropout == 0.0f) return Status::Ok();
  if (!seed) return Error(Code::kInvalidArgument, "no Seed, expected one for dropout");
  PBX_RETURN_IF_ERROR(Expect(*seed, "Seed", DataType::INT64));
  PBX_RETURN_IF_ERROR(ExpectShape(*seed, "Seed", {1}));
  of_call->seed = static_cast<uint64_t>(*seed->data<int64_t>());
  return Status::Ok();
}

std::vector<Tensor> MlpForwardKernel(const std::vector<Tensor>& inputs,
                                     const paddle::optional<Tensor>& seed,
                                     const std::vector<int>& relu, const std::vector<int>& biased,
                                     bool bfloat16, float dropout) {
  Tensor out, saved;
  Guard("mlp", [&]() -> Status {
    MlpCall call;
    MlpDropout drops;
    PBX_RETURN_IF_ERROR(CheckMlp(inputs, {relu, biased, bfloat16, dropout}, &call));
    PBX_RETURN_IF_ERROR(CheckSeed(seed, dropout, &drops));
    const size_t bytes = MlpSavedBytes(call.layers, call.type, call.instances);
    const Tensor& x = inputs[0];
    Shape shape = x.shape();
    shape.back() = static_cast<int64_t>(call.layers.back().outputs);
    out = NewOutput(shape, x.place());
    saved = NewOutput({static_cast<int64_t>(bytes)}, x.place(), DataType::UINT8);
    return MlpForward(call.layers, call.type, call.instances, drops, call.x, out.data<float>(),
                      reinterpret_cast<char*>(saved.data<uint8_t>()), call.pool);
  });
  return {out, saved};
}

std::vector<Tensor> MlpBackwardKernel(const std::vector<Tensor>& inputs, const Tensor& out,
                                      const Tensor& saved, const Tensor& grad,
                                      const std::vector<int>& relu, const std::vector<int>& biased,
                                      bool bfloat16, float dropout) {
  std::vector<Tensor> made;
  Guard("mlp_grad", [&]() -> Status {
    MlpCall call;
    PBX_RETURN_IF_ERROR(CheckMlp(inputs, {relu, biased, bfloat16, dropout}, &call));
    PBX_RETURN_IF_ERROR(Expect(grad, "Out@GRAD", DataType::FLOAT32));
    PBX_RETURN_IF_ERROR(ExpectShape(grad, "Out@GRAD", out.shape()));
    for (const Tensor& input : inputs) { made.push_back(NewOutput(input.shape(), input.place())); }
    const size_t count = call.layers.size();
    std::vector<MlpGradient> gradients(count);
    for (size_t l = 0; l < count; ++l) {
      gradients[l] = {made[1 + l].data<float>(),
                      call.bias[l] == 0 ? nullptr : made[call.bias[l]].data<float>()};
    }
    return MlpBackward(call.layers, call.type, call.instances, dropout, call.x, out.data<float>(),
                       reinterpret_cast<const char*>(saved.data<uint8_t>()), grad.data<float>(),
                       made[0].data<float>(), gradients, call.pool);
  });
  return made;
}

std::vector<Shape> MlpInferShape(const std::vector<Shape>& inputs,
                                 const paddle::optional<Shape>& /*seed*/,
                                 const std::vector<int>& relu, const std::vector<int>& /*biased*/,
                                 bool /*bfloat16*/, float /*dropout*/) {
  // Errors are reported when the operator runs.
  Shape out = inputs.empty() || inputs[0].empty() ? Shape{-1, -1} : inputs[0];
  out.back() =
      inputs.size() > relu.size() && inputs[relu.size()].size() == 2 ? inputs[relu.size()][1] : -1;
  return {out, {-1}};
}
std::vector<DataType> MlpInferDtype(const std::vector<DataType>& /*inputs*/,
                                    const paddle::optional<DataType>& /*seed*/) {
  return {DataType::FLOAT32, DataType::UINT8};
}

}  // namespace
}  // namespace pbx

PD_BUILD_OP(box_mlp)
    .Inputs({paddle::Vec("Inputs"), paddle::Optional("Seed")})
    .Outputs({"Out", "Saved"})
    .Attrs({"relu: std::vector<int>", "biased: std::vector<int>", "bfloat16: bool",
            "dropout: float"})
    .SetKernelFn(PD_KERNEL(pbx::MlpForwardKernel))
    .SetInferShapeFn(PD_INFER_SHAPE(pbx::MlpInferShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(pbx::MlpInferDtype));

PD_BUILD_GRAD_OP(box_mlp)
    .Inputs({paddle::Vec("Inputs"), "Out", "Saved", paddle::Grad("Out")})
    .Outputs({paddle::Grad(paddle::Vec("Inputs"))})
    .Attrs({"relu: std::vector<int>", "biased: std::vector<int>", "bfloat16: bool",
            "dropout: float"})
    .SetKernelFn(PD_KERNEL(pbx::MlpBackwardKernel));
