// box_mlp: a stack of linear layers in float32 or bfloat16 (dense/mlp.h, on a GPU cuda/dense.h).
//
// Inputs: X (..., N_0), L weights (N_(l-1), N_l), and (N_l) for each layer with a bias; Seed, int64
// (1), only with dropout; attributes relu (L), biased (L), bfloat16, and the rate of the dropout
// -> Out (..., N_L), Saved (bytes that the backward reads)
//
// Inputs is one list, because a list must be the only output of Paddle's gradient operators.
#include "paddle/operators/place.h"  // first: see there

#include "dense/mlp.h"

#include <algorithm>

#include "dense/pool.h"
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
  // On a GPU.
  std::vector<pbx_gpu_layer> of_gpu;
  pbx_gpu_mlp gpu{};
};

Status CheckLayers(const std::vector<Tensor>& inputs, const MlpAttributes& attributes,
                   MlpCall* call) {
  const size_t count = attributes.relu.size();
  const Tensor& x = inputs[0];
  size_t next_bias = 1 + count;
  int64_t width = x.shape().back();
  for (size_t l = 0; l < count; ++l) {
    const Tensor& weight = inputs[1 + l];
    const std::string of = " of layer " + std::to_string(l + 1);
    PBX_RETURN_IF_ERROR(ExpectBeside(x, weight, ("the weight" + of).c_str(), DataType::FLOAT32));
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
      PBX_RETURN_IF_ERROR(ExpectBeside(x, bias, ("the bias" + of).c_str(), DataType::FLOAT32));
      PBX_RETURN_IF_ERROR(ExpectShape(bias, ("the bias" + of).c_str(), {outputs}));
      layer.bias = bias.data<float>();
      call->bias.back() = next_bias++;
    }
    call->layers.push_back(layer);
    width = outputs;
  }
  return Status::Ok();
}

Status PlaceOnGpu(const MlpAttributes& attributes, MlpCall* call) {
  if (!Hbm().plugged_in) {
    return Error(Code::kInvalidArgument,
                 "X is on a GPU without libpaddlebox_gpu.so (docs/gpu.md), expected it on the CPU");
  }
  for (const MlpLayer& layer : call->layers) {
    call->of_gpu.push_back({static_cast<int64_t>(layer.inputs), static_cast<int64_t>(layer.outputs),
                            layer.activation == Activation::kRelu ? 1 : 0, layer.weight,
                            layer.bias});
  }
  call->gpu = {call->of_gpu.data(),
               static_cast<int64_t>(call->of_gpu.size()),
               static_cast<int64_t>(call->instances),
               attributes.dropout,
               nullptr,
               attributes.bfloat16 ? 1 : 0};
  return Status::Ok();
}

Status CheckBfloat16() {
  const Result<std::string> library = GemmLibrary();
  if (!library.ok()) return library.status();
  if (SupportOf(GemmType::kBfloat16) != GemmSupport::kNone) return Status::Ok();
  return Error(Code::kInvalidArgument,
               "bfloat16 needs AVX512_BF16 or AMX in the processor, found %s",
               library.value().c_str());
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
  PBX_RETURN_IF_ERROR(ExpectBeside(x, x, "X", DataType::FLOAT32));
  if (x.shape().size() < 2) {
    return Error(Code::kInvalidArgument, "X has shape %s, expected (..., N)",
                 Describe(x.shape()).c_str());
  }
  PBX_RETURN_IF_ERROR(CheckLayers(inputs, attributes, call));
  call->x = x.data<float>();
  call->instances = static_cast<size_t>(x.numel()) / call->layers.front().inputs;
  call->type = attributes.bfloat16 ? GemmType::kBfloat16 : GemmType::kFloat32;
  if (IsOnGpu(x)) return PlaceOnGpu(attributes, call);
  if (attributes.bfloat16) PBX_RETURN_IF_ERROR(CheckBfloat16());
  Result<ThreadPool*> pool = DensePool();
  if (!pool.ok()) return pool.status();
  call->pool = pool.value();
  return Status::Ok();
}

// *found: null without dropout.
Status FindSeed(const Tensor& x, const paddle::optional<Tensor>& seed, float dropout,
                const int64_t** found) {
  if (dropout == 0.0f) return Status::Ok();
  if (!seed) return Error(Code::kInvalidArgument, "no Seed, expected one for dropout");
  PBX_RETURN_IF_ERROR(ExpectBeside(x, *seed, "Seed", DataType::INT64));
  PBX_RETURN_IF_ERROR(ExpectShape(*seed, "Seed", {1}));
  *found = seed->data<int64_t>();
  return Status::Ok();
}

std::vector<Tensor> MlpForwardKernel(const std::vector<Tensor>& inputs,
                                     const paddle::optional<Tensor>& seed,
                                     const std::vector<int>& relu, const std::vector<int>& biased,
                                     bool bfloat16, float dropout) {
  Tensor out, saved;
  Guard("mlp", [&]() -> Status {
    MlpCall call;
    const int64_t* drawn = nullptr;
    PBX_RETURN_IF_ERROR(CheckMlp(inputs, {relu, biased, bfloat16, dropout}, &call));
    const Tensor& x = inputs[0];
    PBX_RETURN_IF_ERROR(FindSeed(x, seed, dropout, &drawn));
    const bool on_gpu = IsOnGpu(x);
    const size_t bytes = on_gpu ? Hbm().mlp_saved(&call.gpu) * sizeof(float)
                                : MlpSavedBytes(call.layers, call.type, call.instances);
    Shape shape = x.shape();
    shape.back() = static_cast<int64_t>(call.layers.back().outputs);
    out = NewOutput(shape, x.place());
    saved = NewOutput({static_cast<int64_t>(bytes)}, x.place(), DataType::UINT8);
    if (on_gpu) {
      call.gpu.seed = drawn;
      Tensor room = NewOutput({static_cast<int64_t>(Hbm().mlp_room(&call.gpu, 0))}, x.place());
      return StatusOf(
          Hbm().mlp_forward(&call.gpu, call.x, reinterpret_cast<float*>(saved.data<uint8_t>()),
                            room.data<float>(), out.data<float>(), StreamOf(x)),
          "mlp");
    }
    const MlpDropout drops{dropout, drawn == nullptr ? 0 : static_cast<uint64_t>(*drawn)};
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
    PBX_RETURN_IF_ERROR(ExpectBeside(inputs[0], grad, "Out@GRAD", DataType::FLOAT32));
    PBX_RETURN_IF_ERROR(ExpectShape(grad, "Out@GRAD", out.shape()));
    for (const Tensor& input : inputs) { made.push_back(NewOutput(input.shape(), input.place())); }
    const size_t count = call.layers.size();
    std::vector<MlpGradient> gradients(count);
    for (size_t l = 0; l < count; ++l) {
      gradients[l] = {made[1 + l].data<float>(),
                      call.bias[l] == 0 ? nullptr : made[call.bias[l]].data<float>()};
    }
    if (IsOnGpu(grad)) {
      const auto floats = static_cast<int64_t>(Hbm().mlp_room(&call.gpu, 1));
      Tensor room = NewOutput({floats}, grad.place());
      std::vector<float*> weights, biases;
      for (const MlpGradient& gradient : gradients) {
        weights.push_back(gradient.weight);
        biases.push_back(gradient.bias);
      }
      return StatusOf(Hbm().mlp_backward(
                          &call.gpu, call.x, reinterpret_cast<const float*>(saved.data<uint8_t>()),
                          out.data<float>(), grad.data<float>(), room.data<float>(),
                          made[0].data<float>(), weights.data(), biases.data(), StreamOf(grad)),
                      "mlp_grad");
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
