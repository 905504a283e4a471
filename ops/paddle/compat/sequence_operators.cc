// Operators of PaddleBox over columns, sequences and jagged rows, which Paddle does not have. Each
// kernel checks dtype and shape, then calls one function of ops/compat.
#include <utility>

#include "compat/causal_mask.h"
#include "compat/concat_columns.h"
#include "compat/seq_tensor.h"
#include "compat/weighted_seqpool.h"
#include "dense/seqpool_cvm.h"
#include "paddle/compat/expect.h"
#include "paddle/operators/outputs.h"

namespace pbx {
namespace {

Status ExpectRank(const Tensor& tensor, const std::string& name, size_t rank,
                  const char* expected) {
  if (tensor.shape().size() == rank) return Status::Ok();
  return Error(Code::kInvalidArgument, "%s has shape %s, expected %s", name.c_str(),
               Describe(tensor.shape()).c_str(), expected);
}

// ---- box_fused_concat
// X, a list of (B, D_p) of one dtype; starts, lengths: the columns of each -> Out (groups * B, C)

// Part p of the shapes as far as they are known. A missing attribute gives an empty part, which
// PlanConcat refuses.
std::vector<ColumnPart> PartsOf(const std::vector<Shape>& x, const std::vector<int>& starts,
                                const std::vector<int>& lengths) {
  std::vector<ColumnPart> parts(x.size());
  for (size_t p = 0; p < x.size(); ++p) {
    parts[p].columns = x[p].empty() ? -1 : x[p].back();
    if (p < starts.size()) parts[p].start = starts[p];
    if (p < lengths.size()) parts[p].length = lengths[p];
  }
  return parts;
}

Status CheckConcat(const std::vector<Tensor>& x, const std::vector<int>& starts,
                   const std::vector<int>& lengths, int groups, ConcatColumns* plan, size_t* rows) {
  std::vector<Shape> shapes;
  for (size_t p = 0; p < x.size(); ++p) {
    const std::string name = "input " + std::to_string(p);
    PBX_RETURN_IF_ERROR(ExpectRank(x[p], name, 2, "(B, D)"));
    PBX_RETURN_IF_ERROR(Expect(x[p], name.c_str(), x[0].dtype()));
    PBX_RETURN_IF_ERROR(ExpectShape(x[p], name.c_str(), {x[0].shape()[0], x[p].shape()[1]}));
    shapes.push_back(x[p].shape());
  }
  Result<ConcatColumns> made = PlanConcat(PartsOf(shapes, starts, lengths), groups);
  if (!made.ok()) return made.status();
  *plan = std::move(made.value());
  *rows = Size(x[0].shape()[0]);
  return Status::Ok();
}

Shape ConcatShape(const ConcatColumns& plan, int64_t rows) {
  return {rows < 0 ? -1 : rows * static_cast<int64_t>(plan.groups),
          static_cast<int64_t>(plan.width)};
}

std::vector<Tensor> ConcatForward(const std::vector<Tensor>& x, const std::vector<int>& starts,
                                  const std::vector<int>& lengths, int groups) {
  Tensor out;
  Guard("fused_concat", [&]() -> Status {
    ConcatColumns plan;
    size_t rows = 0;
    PBX_RETURN_IF_ERROR(CheckConcat(x, starts, lengths, groups, &plan, &rows));
    std::vector<const char*> inputs;
    inputs.reserve(x.size());
    for (const Tensor& one : x) inputs.push_back(static_cast<const char*>(one.data()));
    out = NewOutput(ConcatShape(plan, x[0].shape()[0]), x[0].place(), x[0].dtype());
    ConcatColumnsForward(plan, inputs, rows, phi::SizeOf(x[0].dtype()),
                         static_cast<char*>(out.data()));
    return Status::Ok();
  });
  return {out};
}

std::vector<Tensor> ConcatBackward(const std::vector<Tensor>& x, const Tensor& grad,
                                   const std::vector<int>& starts, const std::vector<int>& lengths,
                                   int groups) {
  std::vector<Tensor> dx;
  Guard("fused_concat_grad", [&]() -> Status {
    ConcatColumns plan;
    size_t rows = 0;
    PBX_RETURN_IF_ERROR(CheckConcat(x, starts, lengths, groups, &plan, &rows));
    PBX_RETURN_IF_ERROR(Expect(grad, "Out@GRAD", x[0].dtype()));
    PBX_RETURN_IF_ERROR(ExpectShape(grad, "Out@GRAD", ConcatShape(plan, x[0].shape()[0])));
    std::vector<char*> outputs;
    for (const Tensor& one : x) {
      dx.push_back(NewOutput(one.shape(), one.place(), one.dtype()));
      outputs.push_back(static_cast<char*>(dx.back().data()));
    }
    ConcatColumnsBackward(plan, static_cast<const char*>(grad.data()), rows,
                          phi::SizeOf(x[0].dtype()), outputs);
    return Status::Ok();
  });
  return dx;
}

std::vector<Shape> ConcatInferShape(const std::vector<Shape>& x, const std::vector<int>& starts,
                                    const std::vector<int>& lengths, int groups) {
  Result<ConcatColumns> plan = PlanConcat(PartsOf(x, starts, lengths), groups);
  if (!plan.ok() || x[0].empty()) return {{-1, -1}};  // errors are reported when the operator runs
  return {ConcatShape(plan.value(), x[0][0])};
}
std::vector<DataType> ConcatInferDtype(const std::vector<DataType>& x) {
  return {x.empty() ? DataType::FLOAT32 : x[0]};
}

// ---- box_fused_causal_mask
// SeqInfo (Q + 1), int32 or int64 -> Mask (T, T) int64, T = the last value of SeqInfo

std::vector<Tensor> CausalMaskForward(const Tensor& seq_info) {
  Tensor mask;
  Guard("fused_causal_mask", [&]() -> Status {
    const bool is_short = seq_info.dtype() == DataType::INT32;
    PBX_RETURN_IF_ERROR(Expect(seq_info, "SeqInfo", is_short ? DataType::INT32 : DataType::INT64));
    const size_t count = Count(seq_info);
    const Shape& shape = seq_info.shape();
    if (count == 0 || shape.empty() || shape[0] != seq_info.numel()) {
      return Error(Code::kInvalidArgument, "SeqInfo has shape %s, expected (Q + 1) or (Q + 1, 1)",
                   Describe(shape).c_str());
    }
    std::vector<int64_t> offsets(count);
    for (size_t i = 0; i < count; ++i)
      offsets[i] = is_short ? seq_info.data<int32_t>()[i] : seq_info.data<int64_t>()[i];
    Result<int64_t> total = CheckSequences(offsets.data(), count - 1);
    if (!total.ok()) return total.status();
    mask = NewOutput({total.value(), total.value()}, seq_info.place(), DataType::INT64);
    CausalMask(offsets.data(), count - 1, mask.data<int64_t>());
    return Status::Ok();
  });
  return {mask};
}

std::vector<Shape> CausalMaskInferShape(const Shape& /*seq_info*/) { return {{-1, -1}}; }
std::vector<DataType> CausalMaskInferDtype(const DataType& /*seq_info*/) {
  return {DataType::INT64};
}

// ---- box_fused_seq_tensor
// Input (N, K * S * L * E), ADInput (N, K * A * E) -> DINOut, MaskOut, SideInfoOut,
// ADSlotSessionOut; see SeqTensorShapes

SeqTensor SeqTensorConfig(int batch_count, int max_length, int slot_num, int ad_slot_num,
                          int fea_emb_dim, int ad_slot_offset) {
  SeqTensor seq;
  seq.batches = batch_count;
  seq.length = max_length;
  seq.slots = slot_num;
  seq.ad_slots = ad_slot_num;
  seq.columns = fea_emb_dim;
  seq.ad_offset = ad_slot_offset;
  return seq;
}

// instances: -1 if unknown.
std::vector<Shape> SeqTensorShapes(const SeqTensor& seq, int64_t instances) {
  const int64_t ad = seq.ad_slots * seq.columns, side = (seq.slots - seq.ad_slots) * seq.columns;
  const int64_t k = seq.batches, l = seq.length, rows = instances < 0 ? -1 : instances * l;
  if (k > 1)
    return {{k, rows, 4 * ad},
            {k, instances, l},
            {k, rows, side},
            {k, rows, seq.ad_slots, seq.columns}};
  return {{instances, l, 4 * ad}, {instances, l}, {instances, l, side}, {instances, l, ad}};
}

Status CheckSeqTensorInputs(const Tensor& x, const Tensor& ad, const SeqTensor& seq) {
  PBX_RETURN_IF_ERROR(ExpectRank(x, "Input", 2, "(N, K * S * L * E)"));
  PBX_RETURN_IF_ERROR(ExpectRank(ad, "ADInput", 2, "(N, K * A * E)"));
  PBX_RETURN_IF_ERROR(Expect(x, "Input", DataType::FLOAT32));
  PBX_RETURN_IF_ERROR(ExpectFloats(ad, "ADInput", {x.shape()[0], ad.shape()[1]}));
  return CheckSeqTensor(seq, x.shape()[1], ad.shape()[1]);
}

// The gradient of an output. In dygraph it is undefined if the loss does not use the output.
Status OutputGradient(const Tensor& given, const char* name, const Shape& shape, const Tensor& like,
                      Tensor* gradient) {
  *gradient = given.defined() ? given : paddle::full(shape, 0, DataType::FLOAT32, like.place());
  return ExpectFloats(*gradient, name, shape);
}

template <typename... Attrs>
struct SeqTensorOperator {
  static std::vector<Tensor> Forward(const Tensor& x, const Tensor& ad, Attrs... attrs) {
    std::vector<Tensor> out;
    Guard("fused_seq_tensor", [&]() -> Status {
      const SeqTensor seq = SeqTensorConfig(attrs...);
      PBX_RETURN_IF_ERROR(CheckSeqTensorInputs(x, ad, seq));
      for (const Shape& shape : SeqTensorShapes(seq, x.shape()[0]))
        out.push_back(NewOutput(shape, x.place()));
      SeqTensorForward(
          seq, Size(x.shape()[0]), x.data<float>(), ad.data<float>(),
          {out[0].data<float>(), out[1].data<float>(), out[2].data<float>(), out[3].data<float>()});
      return Status::Ok();
    });
    return out;
  }

  static std::vector<Tensor> Backward(const Tensor& x, const Tensor& ad, const Tensor& ddin,
                                      const Tensor& dside, const Tensor& dsession, Attrs... attrs) {
    Tensor dx, dad;
    Guard("fused_seq_tensor_grad", [&]() -> Status {
      const SeqTensor seq = SeqTensorConfig(attrs...);
      PBX_RETURN_IF_ERROR(CheckSeqTensorInputs(x, ad, seq));
      const std::vector<Shape> shapes = SeqTensorShapes(seq, x.shape()[0]);
      Tensor din, side, session;
      PBX_RETURN_IF_ERROR(OutputGradient(ddin, "DINOut@GRAD", shapes[0], x, &din));
      PBX_RETURN_IF_ERROR(OutputGradient(dside, "SideInfoOut@GRAD", shapes[2], x, &side));
      PBX_RETURN_IF_ERROR(
          OutputGradient(dsession, "ADSlotSessionOut@GRAD", shapes[3], x, &session));
      dx = NewOutput(x.shape(), x.place());
      dad = NewOutput(ad.shape(), ad.place());
      SeqTensorBackward(seq, Size(x.shape()[0]), x.data<float>(), ad.data<float>(),
                        {din.data<float>(), side.data<float>(), session.data<float>()},
                        dx.data<float>(), dad.data<float>());
      return Status::Ok();
    });
    return {dx, dad};
  }

  static std::vector<Shape> InferShape(const Shape& x, const Shape& /*ad*/, Attrs... attrs) {
    return SeqTensorShapes(SeqTensorConfig(attrs...), x.empty() ? -1 : x[0]);
  }
};
using FusedSeqTensor = SeqTensorOperator<int, int, int, int, int, int>;

std::vector<DataType> SeqTensorInferDtype(const DataType& x, const DataType& /*ad*/) {
  return {x, x, x, x};
}

// ---- box_weighted_seqpool_cvm
// Values (nnz, D), Offsets (B * S + 1) or, with slot_major, (S * (B + 1)), Cvm (B, cvm_offset)
// -> Out (B, S * W)

struct WeightedSeqpoolCall {
  WeightedSeqpool config;
  std::vector<int32_t> joined;  // with slot_major
  const int32_t* offsets = nullptr;
  size_t instances = 0;
  Shape out;
};

WeightedSeqpool WeightedSeqpoolConfig(const Shape& values, int slots, bool slot_major, bool use_cvm,
                                      int cvm_offset, int trade_num, int trade_id,
                                      float pad_value) {
  WeightedSeqpool config;
  config.columns = values.empty() ? -1 : values.back();
  config.slots = slots;
  config.slot_major = slot_major;
  config.use_cvm = use_cvm;
  config.cvm_offset = cvm_offset;
  config.trade_num = trade_num;
  config.trade_id = trade_id;
  config.pad_value = pad_value;
  return config;
}

template <typename... Attrs>
struct WeightedSeqpoolOperator {
  static Status Check(const Tensor& values, const Tensor& offsets, const Tensor& cvm,
                      WeightedSeqpoolCall* call, const std::string& pool_type, Attrs... attrs) {
    WeightedSeqpool& config = call->config;
    config = WeightedSeqpoolConfig(values.shape(), attrs...);
    Result<Pooling> pooling = PoolingOf(pool_type);
    if (!pooling.ok()) return pooling.status();
    config.pooling = pooling.value();
    PBX_RETURN_IF_ERROR(Expect(values, "Values", DataType::FLOAT32));
    PBX_RETURN_IF_ERROR(ExpectRank(values, "Values", 2, "(nnz, D)"));
    PBX_RETURN_IF_ERROR(CheckWeightedSeqpool(config));
    PBX_RETURN_IF_ERROR(ExpectRank(cvm, "Cvm", 2, "(B, cvm_offset)"));
    const int64_t instances = cvm.shape()[0];
    PBX_RETURN_IF_ERROR(ExpectFloats(cvm, "Cvm", {instances, config.cvm_offset}));
    PBX_RETURN_IF_ERROR(Expect(offsets, "Offsets", DataType::INT32));
    PBX_RETURN_IF_ERROR(ExpectShape(
        offsets, "Offsets",
        {config.slot_major ? config.slots * (instances + 1) : config.slots * instances + 1}));
    call->instances = Size(instances);
    call->out = {instances, config.slots * config.Width()};
    call->offsets = offsets.data<int32_t>();
    if (config.slot_major) {
      PBX_RETURN_IF_ERROR(
          JoinSlots(call->offsets, Size(config.slots), call->instances, &call->joined));
      call->offsets = call->joined.data();
    }
    return CheckSegments(call->offsets, call->instances * Size(config.slots),
                         Size(values.shape()[0]));
  }

  static std::vector<Tensor> Forward(const Tensor& values, const Tensor& offsets, const Tensor& cvm,
                                     const std::string& pool_type, Attrs... attrs) {
    Tensor out;
    Guard("weighted_seqpool_cvm", [&]() -> Status {
      WeightedSeqpoolCall call;
      PBX_RETURN_IF_ERROR(Check(values, offsets, cvm, &call, pool_type, attrs...));
      out = NewOutput(call.out, values.place());
      WeightedSeqpoolForward(call.config, values.data<float>(), call.offsets, call.instances,
                             out.data<float>());
      return Status::Ok();
    });
    return {out};
  }

  static std::vector<Tensor> Backward(const Tensor& values, const Tensor& offsets,
                                      const Tensor& cvm, const Tensor& grad,
                                      const std::string& pool_type, Attrs... attrs) {
    Tensor dvalues;
    Guard("weighted_seqpool_cvm_grad", [&]() -> Status {
      WeightedSeqpoolCall call;
      PBX_RETURN_IF_ERROR(Check(values, offsets, cvm, &call, pool_type, attrs...));
      PBX_RETURN_IF_ERROR(ExpectFloats(grad, "Out@GRAD", call.out));
      dvalues = NewOutput(values.shape(), values.place());
      WeightedSeqpoolBackward(call.config, values.data<float>(), call.offsets, call.instances,
                              cvm.data<float>(), grad.data<float>(), dvalues.data<float>());
      return Status::Ok();
    });
    return {dvalues};
  }

  static std::vector<Shape> InferShape(const Shape& values, const Shape& /*offsets*/,
                                       const Shape& cvm, const std::string& /*pool_type*/,
                                       Attrs... attrs) {
    const WeightedSeqpool config = WeightedSeqpoolConfig(values, attrs...);
    // Errors are reported when the operator runs.
    const bool known = CheckWeightedSeqpool(config).ok();
    return {{cvm.empty() ? -1 : cvm[0], known ? config.slots * config.Width() : -1}};
  }
};
using WeightedSeqpoolCvm = WeightedSeqpoolOperator<int, bool, bool, int, int, int, float>;

std::vector<DataType> WeightedSeqpoolInferDtype(const DataType& values, const DataType& /*offsets*/,
                                                const DataType& /*cvm*/) {
  return {values};
}

}  // namespace
}  // namespace pbx

#define PBX_CONCAT_ATTRS {"starts: std::vector<int>", "lengths: std::vector<int>", "groups: int"}

PD_BUILD_OP(box_fused_concat)
    .Inputs({paddle::Vec("X")})
    .Outputs({"Out"})
    .Attrs(PBX_CONCAT_ATTRS)
    .SetKernelFn(PD_KERNEL(pbx::ConcatForward))
    .SetInferShapeFn(PD_INFER_SHAPE(pbx::ConcatInferShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(pbx::ConcatInferDtype));

PD_BUILD_GRAD_OP(box_fused_concat)
    .Inputs({paddle::Vec("X"), paddle::Grad("Out")})
    .Outputs({paddle::Grad(paddle::Vec("X"))})
    .Attrs(PBX_CONCAT_ATTRS)
    .SetKernelFn(PD_KERNEL(pbx::ConcatBackward));

PD_BUILD_OP(box_fused_causal_mask)
    .Inputs({"SeqInfo"})
    .Outputs({"Mask"})
    .SetKernelFn(PD_KERNEL(pbx::CausalMaskForward))
    .SetInferShapeFn(PD_INFER_SHAPE(pbx::CausalMaskInferShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(pbx::CausalMaskInferDtype));

#define PBX_SEQ_TENSOR_ATTRS                                \
  {"batch_count: int", "max_length: int",  "slot_num: int", \
   "ad_slot_num: int", "fea_emb_dim: int", "ad_slot_offset: int"}

PD_BUILD_OP(box_fused_seq_tensor)
    .Inputs({"Input", "ADInput"})
    .Outputs({"DINOut", "MaskOut", "SideInfoOut", "ADSlotSessionOut"})
    .Attrs(PBX_SEQ_TENSOR_ATTRS)
    .SetKernelFn(PD_KERNEL(pbx::FusedSeqTensor::Forward))
    .SetInferShapeFn(PD_INFER_SHAPE(pbx::FusedSeqTensor::InferShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(pbx::SeqTensorInferDtype));

PD_BUILD_GRAD_OP(box_fused_seq_tensor)
    .Inputs({"Input", "ADInput", paddle::Grad("DINOut"), paddle::Grad("SideInfoOut"),
             paddle::Grad("ADSlotSessionOut")})
    .Outputs({paddle::Grad("Input"), paddle::Grad("ADInput")})
    .Attrs(PBX_SEQ_TENSOR_ATTRS)
    .SetKernelFn(PD_KERNEL(pbx::FusedSeqTensor::Backward));

#define PBX_WEIGHTED_SEQPOOL_ATTRS                                                  \
  {"pool_type: std::string", "slots: int",     "slot_major: bool", "use_cvm: bool", \
   "cvm_offset: int",        "trade_num: int", "trade_id: int",    "pad_value: float"}

PD_BUILD_OP(box_weighted_seqpool_cvm)
    .Inputs({"Values", "Offsets", "Cvm"})
    .Outputs({"Out"})
    .Attrs(PBX_WEIGHTED_SEQPOOL_ATTRS)
    .SetKernelFn(PD_KERNEL(pbx::WeightedSeqpoolCvm::Forward))
    .SetInferShapeFn(PD_INFER_SHAPE(pbx::WeightedSeqpoolCvm::InferShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(pbx::WeightedSeqpoolInferDtype));

PD_BUILD_GRAD_OP(box_weighted_seqpool_cvm)
    .Inputs({"Values", "Offsets", "Cvm", paddle::Grad("Out")})
    .Outputs({paddle::Grad("Values")})
    .Attrs(PBX_WEIGHTED_SEQPOOL_ATTRS)
    .SetKernelFn(PD_KERNEL(pbx::WeightedSeqpoolCvm::Backward));
