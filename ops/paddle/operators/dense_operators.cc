// Operators without a table. Paddle registers them only for GPUs, or no longer has them. Their
// names start with box_, because an operator of Paddle cannot be registered again. Each kernel
// checks dtype and shape, then calls one function of ops/dense.
#include "paddle/operators/place.h"  // first: see there

#include <utility>

#include "dense/batch_fc.h"
#include "dense/data_norm.h"
#include "dense/rank_attention.h"
#include "dense/seqpool_cvm.h"
#include "paddle/operators/kernel_guard.h"

namespace pbx {
namespace {

Tensor Empty(const Shape& shape, const Tensor& like) {
  return paddle::empty(shape, DataType::FLOAT32, like.place());
}

size_t Size(int64_t n) { return static_cast<size_t>(n); }

Status ExpectRank(const Tensor& tensor, const char* name, size_t rank, const char* expected) {
  if (tensor.shape().size() == rank) return Status::Ok();
  return Error(Code::kInvalidArgument, "%s has shape %s, expected %s", name,
               Describe(tensor.shape()).c_str(), expected);
}

Status ExpectFloats(const Tensor& tensor, const char* name, const Shape& shape) {
  PBX_RETURN_IF_ERROR(Expect(tensor, name, DataType::FLOAT32));
  return ExpectShape(tensor, name, shape);
}
// first: see ExpectBeside.
Status ExpectFloats(const Tensor& first, const Tensor& tensor, const char* name,
                    const Shape& shape) {
  PBX_RETURN_IF_ERROR(ExpectBeside(first, tensor, name, DataType::FLOAT32));
  return ExpectShape(tensor, name, shape);
}

// ---- box_fused_seqpool_cvm
// Values (nnz, D), Offsets (B * S + 1) or, with slot_major, (S * (B + 1)), Cvm (B, cvm_offset),
// GradMask (B), or (0): no mask -> Out (B, S * W)
// An empty tensor means no mask, because old-IR programs drop optional inputs in the backward.

SeqpoolCvm SeqpoolConfig(const std::string& form, int slots, bool slot_major, bool use_cvm,
                         int cvm_offset, int max_cvm_offset, bool drop_count, bool click_not_ctr,
                         float pad_value, const std::vector<float>& thresholds, float show_coeff,
                         float click_coeff, float embed_threshold, int embed_thres_size,
                         int quant_ratio, int embedx_concate_size, bool embedx_concate_filter,
                         Status* status) {
  SeqpoolCvm config;
  Result<CvmForm> found = CvmFormOf(form);
  *status = found.status();
  if (found.ok()) config.form = found.value();
  config.slots = slots;
  config.slot_major = slot_major;
  config.use_cvm = use_cvm;
  config.cvm_offset = cvm_offset;
  config.max_cvm_offset = max_cvm_offset;
  config.drop_count = drop_count;
  config.click_not_ctr = click_not_ctr;
  config.pad_value = pad_value;
  config.thresholds = thresholds;
  config.show_coeff = show_coeff;
  config.click_coeff = click_coeff;
  config.embed_threshold = embed_threshold;
  config.embed_columns = embed_thres_size;
  config.quant_ratio = quant_ratio;
  config.concat = embedx_concate_size;
  config.concat_filter = embedx_concate_filter;
  return config;
}

struct Seqpool {
  SeqpoolCvm config;
  SeqpoolPlan plan;
  std::vector<int32_t> joined;  // with slot_major
  const int32_t* offsets = nullptr;
  size_t instances = 0;
  Shape out;
};

template <typename... Attrs>
Status CheckSeqpool(const Tensor& values, const Tensor& offsets, const Tensor& cvm,
                    const Tensor& mask, Seqpool* pool, const Attrs&... attrs) {
  Status status;
  pool->config = SeqpoolConfig(attrs..., &status);
  PBX_RETURN_IF_ERROR(status);
  PBX_RETURN_IF_ERROR(Expect(values, "Values", DataType::FLOAT32));
  PBX_RETURN_IF_ERROR(ExpectRank(values, "Values", 2, "(nnz, D)"));
  Result<SeqpoolPlan> plan = PlanSeqpool(pool->config, values.shape()[1]);
  if (!plan.ok()) return plan.status();
  pool->plan = std::move(plan.value());
  PBX_RETURN_IF_ERROR(ExpectRank(cvm, "Cvm", 2, "(B, cvm_offset)"));
  const int64_t instances = cvm.shape()[0];
  PBX_RETURN_IF_ERROR(ExpectFloats(cvm, "Cvm", {instances, pool->config.cvm_offset}));
  PBX_RETURN_IF_ERROR(Expect(offsets, "Offsets", DataType::INT32));
  const int64_t slots = pool->config.slots;
  PBX_RETURN_IF_ERROR(
      ExpectShape(offsets, "Offsets",
                  {pool->config.slot_major ? slots * (instances + 1) : instances * slots + 1}));
  PBX_RETURN_IF_ERROR(Expect(mask, "GradMask", DataType::INT64));
  if (Count(mask) != 0) PBX_RETURN_IF_ERROR(ExpectShape(mask, "GradMask", {instances}));
  pool->instances = Size(instances);
  pool->out = {instances, slots * static_cast<int64_t>(pool->plan.width)};
  pool->offsets = offsets.data<int32_t>();
  if (pool->config.slot_major) {
    PBX_RETURN_IF_ERROR(JoinSlots(pool->offsets, Size(slots), pool->instances, &pool->joined));
    pool->offsets = pool->joined.data();
  }
  return CheckSegments(pool->offsets, pool->instances * Size(slots), Size(values.shape()[0]));
}

// Attrs: the types of the attributes, which are listed once, in SeqpoolConfig.
template <typename... Attrs>
struct SeqpoolOperator {
  static std::vector<Tensor> Forward(const Tensor& values, const Tensor& offsets, const Tensor& cvm,
                                     const Tensor& mask, Attrs... attrs) {
    Tensor out;
    Guard("fused_seqpool_cvm", [&]() -> Status {
      Seqpool pool;
      PBX_RETURN_IF_ERROR(CheckSeqpool(values, offsets, cvm, mask, &pool, attrs...));
      out = Empty(pool.out, values);
      SeqpoolCvmForward(pool.config, pool.plan, values.data<float>(), pool.offsets, pool.instances,
                        out.data<float>());
      return Status::Ok();
    });
    return {out};
  }

  static std::vector<Tensor> Backward(const Tensor& values, const Tensor& offsets,
                                      const Tensor& cvm, const Tensor& mask, const Tensor& grad,
                                      Attrs... attrs) {
    Tensor dvalues;
    Guard("fused_seqpool_cvm_grad", [&]() -> Status {
      Seqpool pool;
      PBX_RETURN_IF_ERROR(CheckSeqpool(values, offsets, cvm, mask, &pool, attrs...));
      PBX_RETURN_IF_ERROR(ExpectFloats(grad, "Out@GRAD", pool.out));
      dvalues = Empty(values.shape(), values);
      SeqpoolCvmBackward(pool.config, pool.plan, pool.offsets, pool.instances, cvm.data<float>(),
                         Count(mask) != 0 ? mask.data<int64_t>() : nullptr, grad.data<float>(),
                         dvalues.data<float>());
      return Status::Ok();
    });
    return {dvalues};
  }

  static std::vector<Shape> InferShape(const Shape& values, const Shape& /*offsets*/,
                                       const Shape& cvm, const Shape& /*mask*/, Attrs... attrs) {
    Status status;
    const SeqpoolCvm config = SeqpoolConfig(attrs..., &status);
    Result<SeqpoolPlan> plan = PlanSeqpool(config, values.empty() ? -1 : values.back());
    // Errors are reported when the operator runs.
    const int64_t width =
        plan.ok() ? config.slots * static_cast<int64_t>(plan.value().width) : int64_t{-1};
    return {{cvm.empty() ? -1 : cvm[0], width}};
  }

  static std::vector<DataType> InferDtype(const DataType& values, const DataType& /*offsets*/,
                                          const DataType& /*cvm*/, const DataType& /*mask*/) {
    return {values};
  }
};
using FusedSeqpoolCvm =
    SeqpoolOperator<const std::string&, int, bool, bool, int, int, bool, bool, float,
                    const std::vector<float>&, float, float, float, int, int, int, bool>;

// ---- box_data_norm, box_data_norm_update
// X (N, C); BatchSize, BatchSum, BatchSquareSum (C), ScaleW, Bias (C)

Status CheckDataNorm(const Tensor& x, int slot_dim, DataNorm* norm) {
  PBX_RETURN_IF_ERROR(ExpectBeside(x, x, "X", DataType::FLOAT32));
  PBX_RETURN_IF_ERROR(ExpectRank(x, "X", 2, "(N, C)"));
  const int64_t columns = x.shape()[1];
  if (slot_dim > 0 && columns % slot_dim != 0) {
    return Error(Code::kInvalidArgument,
                 "X has %lld columns, expected a multiple of slot_dim = %d, the width of a slot",
                 static_cast<long long>(columns), slot_dim);
  }
  norm->instances = Size(x.shape()[0]);
  norm->columns = Size(columns);
  norm->slot_dim = slot_dim > 0 ? Size(slot_dim) : 0;
  return Status::Ok();
}

Status CheckSums(const Tensor& x, const Tensor& size, const Tensor& sum, const Tensor& square_sum,
                 DataNormSums* sums) {
  const Shape columns{x.shape()[1]};
  PBX_RETURN_IF_ERROR(ExpectFloats(x, size, "BatchSize", columns));
  PBX_RETURN_IF_ERROR(ExpectFloats(x, sum, "BatchSum", columns));
  PBX_RETURN_IF_ERROR(ExpectFloats(x, square_sum, "BatchSquareSum", columns));
  *sums = {size.data<float>(), sum.data<float>(), square_sum.data<float>()};
  return Status::Ok();
}

Status CheckScaleAndShift(const Tensor& x, const Tensor& scale_w, const Tensor& bias,
                          DataNorm* norm) {
  PBX_RETURN_IF_ERROR(ExpectFloats(x, scale_w, "ScaleW", {x.shape()[1]}));
  PBX_RETURN_IF_ERROR(ExpectFloats(x, bias, "Bias", {x.shape()[1]}));
  norm->scale_w = scale_w.data<float>();
  norm->bias = bias.data<float>();
  return Status::Ok();
}

pbx_hbm_norm OnGpu(const DataNorm& norm, const DataNormSums& sums) {
  pbx_hbm_norm of{};
  of.instances = static_cast<int64_t>(norm.instances);
  of.columns = static_cast<int64_t>(norm.columns);
  of.slot_dim = static_cast<int64_t>(norm.slot_dim);
  of.epsilon = norm.epsilon;
  of.decay = norm.decay;
  of.scale_w = norm.scale_w;
  of.bias = norm.bias;
  of.size = sums.size;
  of.sum = sums.sum;
  of.square_sum = sums.square_sum;
  return of;
}

// Memory for the sums of a call on the GPU.
Tensor RoomOf(const pbx_hbm_norm& norm, const Tensor& x) {
  const auto doubles = static_cast<int64_t>(Hbm().norm_room(norm.instances, norm.columns));
  return paddle::empty({doubles}, DataType::FLOAT64, x.place());
}

std::vector<Tensor> NormForward(const Tensor& x, const Tensor& size, const Tensor& sum,
                                const Tensor& square_sum, const Tensor& scale_w, const Tensor& bias,
                                int slot_dim) {
  Tensor y, means, scales;
  Guard("data_norm", [&]() -> Status {
    DataNorm norm;
    DataNormSums sums;
    PBX_RETURN_IF_ERROR(CheckDataNorm(x, slot_dim, &norm));
    PBX_RETURN_IF_ERROR(CheckSums(x, size, sum, square_sum, &sums));
    PBX_RETURN_IF_ERROR(CheckScaleAndShift(x, scale_w, bias, &norm));
    y = Empty(x.shape(), x);
    means = Empty(size.shape(), x);
    scales = Empty(size.shape(), x);
    if (IsOnGpu(x)) {
      const pbx_hbm_norm on_gpu = OnGpu(norm, sums);
      return StatusOf(Hbm().norm_forward(&on_gpu, x.data<float>(), y.data<float>(),
                                         means.data<float>(), scales.data<float>(), StreamOf(x)),
                      "data_norm");
    }
    DataNormForward(norm, sums, x.data<float>(), y.data<float>(), means.data<float>(),
                    scales.data<float>());
    return Status::Ok();
  });
  return {y, means, scales};
}

std::vector<Tensor> NormBackward(const Tensor& x, const Tensor& scale_w, const Tensor& bias,
                                 const Tensor& means, const Tensor& scales, const Tensor& grad,
                                 int slot_dim) {
  Tensor dx, dscale, dbias;
  Guard("data_norm_grad", [&]() -> Status {
    DataNorm norm;
    PBX_RETURN_IF_ERROR(CheckDataNorm(x, slot_dim, &norm));
    const int64_t columns = x.shape()[1];
    PBX_RETURN_IF_ERROR(CheckScaleAndShift(x, scale_w, bias, &norm));
    PBX_RETURN_IF_ERROR(ExpectFloats(x, means, "Means", {columns}));
    PBX_RETURN_IF_ERROR(ExpectFloats(x, scales, "Scales", {columns}));
    PBX_RETURN_IF_ERROR(ExpectFloats(x, grad, "Y@GRAD", x.shape()));
    dx = Empty(x.shape(), x);
    dscale = Empty(means.shape(), x);
    dbias = Empty(means.shape(), x);
    if (IsOnGpu(x)) {
      const pbx_hbm_norm on_gpu = OnGpu(norm, {});
      Tensor room = RoomOf(on_gpu, x);
      return StatusOf(
          Hbm().norm_backward(&on_gpu, x.data<float>(), means.data<float>(), scales.data<float>(),
                              grad.data<float>(), room.data<double>(), dx.data<float>(),
                              dscale.data<float>(), dbias.data<float>(), StreamOf(x)),
          "data_norm_grad");
    }
    DataNormBackward(norm, x.data<float>(), means.data<float>(), scales.data<float>(),
                     grad.data<float>(), dx.data<float>(), dscale.data<float>(),
                     dbias.data<float>());
    return Status::Ok();
  });
  return {dx, dscale, dbias};
}

std::vector<Shape> NormInferShape(const Shape& x, const Shape& size, const Shape& /*sum*/,
                                  const Shape& /*square_sum*/, const Shape& /*scale_w*/,
                                  const Shape& /*bias*/, int /*slot_dim*/) {
  return {x, size, size};
}
std::vector<DataType> NormInferDtype(const DataType& x, const DataType& size,
                                     const DataType& /*sum*/, const DataType& /*square_sum*/,
                                     const DataType& /*scale_w*/, const DataType& /*bias*/) {
  return {x, size, size};
}

std::vector<Tensor> NormUpdate(const Tensor& x, const Tensor& size, const Tensor& sum,
                               const Tensor& square_sum, int slot_dim, float epsilon, float decay) {
  Tensor to[3];
  Guard("data_norm_update", [&]() -> Status {
    DataNorm norm;
    DataNormSums sums;
    PBX_RETURN_IF_ERROR(CheckDataNorm(x, slot_dim, &norm));
    PBX_RETURN_IF_ERROR(CheckSums(x, size, sum, square_sum, &sums));
    norm.epsilon = epsilon;
    norm.decay = decay;
    for (Tensor& tensor : to) tensor = Empty(size.shape(), x);
    if (IsOnGpu(x)) {
      const pbx_hbm_norm on_gpu = OnGpu(norm, sums);
      Tensor room = RoomOf(on_gpu, x);
      return StatusOf(
          Hbm().norm_update(&on_gpu, x.data<float>(), room.data<double>(), to[0].data<float>(),
                            to[1].data<float>(), to[2].data<float>(), StreamOf(x)),
          "data_norm_update");
    }
    DataNormUpdate(norm, sums, x.data<float>(), to[0].data<float>(), to[1].data<float>(),
                   to[2].data<float>());
    return Status::Ok();
  });
  return {to[0], to[1], to[2]};
}

std::vector<Shape> NormUpdateInferShape(const Shape& /*x*/, const Shape& size, const Shape& sum,
                                        const Shape& square_sum, int /*slot_dim*/,
                                        float /*epsilon*/, float /*decay*/) {
  return {size, sum, square_sum};
}
std::vector<DataType> NormUpdateInferDtype(const DataType& /*x*/, const DataType& size,
                                           const DataType& sum, const DataType& square_sum) {
  return {size, sum, square_sum};
}

// ---- box_rank_attention
// X (N, I), RankOffset (N, 2 * max_rank + 1), RankParam (max_rank^2 * I, O) -> Out (N, O)

Status CheckRankAttention(const Tensor& x, const Tensor& ranks, const Tensor& param, int max_rank,
                          RankAttention* attention) {
  if (max_rank < 1) {
    return Error(Code::kInvalidArgument, "max_rank is %d, expected at least 1", max_rank);
  }
  PBX_RETURN_IF_ERROR(ExpectBeside(x, x, "X", DataType::FLOAT32));
  PBX_RETURN_IF_ERROR(ExpectRank(x, "X", 2, "(N, I)"));
  PBX_RETURN_IF_ERROR(ExpectBeside(x, ranks, "RankOffset", DataType::INT32));
  PBX_RETURN_IF_ERROR(ExpectShape(ranks, "RankOffset", {x.shape()[0], 2 * max_rank + 1}));
  PBX_RETURN_IF_ERROR(ExpectRank(param, "RankParam", 2, "(max_rank * max_rank * I, O)"));
  const int64_t outputs = param.shape()[1];
  PBX_RETURN_IF_ERROR(
      ExpectFloats(x, param, "RankParam", {x.shape()[1] * max_rank * max_rank, outputs}));
  attention->instances = Size(x.shape()[0]);
  attention->inputs = Size(x.shape()[1]);
  attention->outputs = Size(outputs);
  attention->max_rank = Size(max_rank);
  attention->ranks = ranks.data<int32_t>();
  return IsOnGpu(x) ? Status::Ok() : CheckRanks(*attention);
}

pbx_hbm_ranks OnGpu(const RankAttention& attention) {
  return {static_cast<int64_t>(attention.instances), static_cast<int64_t>(attention.inputs),
          static_cast<int64_t>(attention.outputs), static_cast<int64_t>(attention.max_rank),
          attention.ranks};
}

std::vector<Tensor> RankForward(const Tensor& x, const Tensor& ranks, const Tensor& param,
                                int max_rank, bool /*enable_input_bp*/) {
  Tensor out;
  Guard("rank_attention", [&]() -> Status {
    RankAttention attention;
    PBX_RETURN_IF_ERROR(CheckRankAttention(x, ranks, param, max_rank, &attention));
    out = Empty({x.shape()[0], param.shape()[1]}, x);
    if (IsOnGpu(x)) {
      const pbx_hbm_ranks on_gpu = OnGpu(attention);
      return StatusOf(Hbm().ranks_forward(&on_gpu, x.data<float>(), param.data<float>(),
                                          out.data<float>(), StreamOf(x)),
                      "rank_attention");
    }
    RankAttentionForward(attention, x.data<float>(), param.data<float>(), out.data<float>());
    return Status::Ok();
  });
  return {out};
}

std::vector<Tensor> RankBackward(const Tensor& x, const Tensor& ranks, const Tensor& param,
                                 const Tensor& grad, int max_rank, bool enable_input_bp) {
  Tensor dx, dparam;
  Guard("rank_attention_grad", [&]() -> Status {
    RankAttention attention;
    PBX_RETURN_IF_ERROR(CheckRankAttention(x, ranks, param, max_rank, &attention));
    PBX_RETURN_IF_ERROR(ExpectFloats(x, grad, "Out@GRAD", {x.shape()[0], param.shape()[1]}));
    dx = ZerosLike(x);
    dparam = Empty(param.shape(), x);
    float* const input_grad = enable_input_bp ? dx.data<float>() : nullptr;
    if (IsOnGpu(x)) {
      const pbx_hbm_ranks on_gpu = OnGpu(attention);
      return StatusOf(
          Hbm().ranks_backward(&on_gpu, x.data<float>(), param.data<float>(), grad.data<float>(),
                               input_grad, dparam.data<float>(), StreamOf(x)),
          "rank_attention_grad");
    }
    RankAttentionBackward(attention, x.data<float>(), param.data<float>(), grad.data<float>(),
                          input_grad, dparam.data<float>());
    return Status::Ok();
  });
  return {dx, dparam};
}

std::vector<Shape> RankInferShape(const Shape& x, const Shape& /*ranks*/, const Shape& param,
                                  int /*max_rank*/, bool /*enable_input_bp*/) {
  return {{x.empty() ? -1 : x[0], param.empty() ? -1 : param.back()}};
}
std::vector<DataType> RankInferDtype(const DataType& x, const DataType& /*ranks*/,
                                     const DataType& /*param*/) {
  return {x};
}

// ---- box_batch_fc, in three forms
//                         Input          W               Bias         Out
//   batchcount = 0        (G, N, I)      (G, I, O)       (G, O)       (G, N, O)
//   batchcount = G        (N, G * I)     (I, G * O)      (1, G * O)   (N, G * O)
//   and transpose_weight  (G, N, I)      (I, G * O)      (1, G * O)   (G, N, O)

// The dimensions of a layer, as far as the shapes of its inputs tell. False if a rank is wrong.
bool FcDims(const Shape& input, const Shape& w, int batchcount, bool transpose_weight,
            int64_t* groups, int64_t* instances, int64_t* inputs, int64_t* outputs) {
  const bool flat = batchcount > 0 && !transpose_weight;
  if (input.size() != (flat ? 2u : 3u) || w.size() != (batchcount > 0 ? 2u : 3u)) return false;
  *groups = batchcount > 0 ? batchcount : w[0];
  *instances = flat ? input[0] : input[1];
  *inputs = w[w.size() - 2];
  *outputs = batchcount > 0 ? w[1] / batchcount : w[2];
  return true;
}

Status CheckBatchFc(const Tensor& input, const Tensor& w, const Tensor& bias, int batchcount,
                    bool transpose_weight, BatchFc* fc, Shape* out) {
  if (batchcount < 0 || (transpose_weight && batchcount == 0)) {
    return Error(Code::kInvalidArgument,
                 "batchcount is %d, expected at least 0, and the number of groups with "
                 "transpose_weight",
                 batchcount);
  }
  int64_t groups = 0, instances = 0, inputs = 0, outputs = 0;
  if (!FcDims(input.shape(), w.shape(), batchcount, transpose_weight, &groups, &instances, &inputs,
              &outputs)) {
    return Error(Code::kInvalidArgument, "Input has shape %s and W %s, expected %s",
                 Describe(input.shape()).c_str(), Describe(w.shape()).c_str(),
                 batchcount == 0    ? "(G, N, I) and (G, I, O)"
                 : transpose_weight ? "(G, N, I) and (I, G * O)"
                                    : "(N, G * I) and (I, G * O)");
  }
  const bool flat = batchcount > 0 && !transpose_weight;
  const Shape in = flat ? Shape{instances, groups * inputs} : Shape{groups, instances, inputs};
  PBX_RETURN_IF_ERROR(ExpectFloats(input, input, "Input", in));
  if (batchcount == 0) {
    PBX_RETURN_IF_ERROR(ExpectFloats(input, w, "W", {groups, inputs, outputs}));
    PBX_RETURN_IF_ERROR(ExpectFloats(input, bias, "Bias", {groups, outputs}));
  } else {
    PBX_RETURN_IF_ERROR(ExpectFloats(input, w, "W", {inputs, groups * outputs}));
    PBX_RETURN_IF_ERROR(ExpectFloats(input, bias, "Bias", {1, groups * outputs}));
  }
  *out = flat ? Shape{instances, groups * outputs} : Shape{groups, instances, outputs};
  const size_t g = Size(groups), n = Size(instances), i = Size(inputs), o = Size(outputs);
  fc->groups = g;
  fc->instances = n;
  fc->inputs = i;
  fc->outputs = o;
  fc->x = flat ? GroupStrides{i, g * i} : GroupStrides{n * i, i};
  fc->y = flat ? GroupStrides{o, g * o} : GroupStrides{n * o, o};
  fc->w = batchcount > 0 ? GroupStrides{o, g * o} : GroupStrides{i * o, o};
  return Status::Ok();
}

// A product on the GPU, out = left right, of matrices at these strides, of which one may be
// transposed.
struct GpuMatrix {
  GroupStrides strides;
  bool transposed = false;
  int64_t group() const { return static_cast<int64_t>(strides.group); }
  int64_t row() const { return transposed ? 1 : static_cast<int64_t>(strides.row); }
  int64_t column() const { return transposed ? static_cast<int64_t>(strides.row) : 1; }
};
pbx_hbm_product ProductOf(const BatchFc& fc, size_t rows, size_t summed, size_t columns,
                          const GpuMatrix& left, const GpuMatrix& right, const GroupStrides& out) {
  pbx_hbm_product product{};
  product.groups = static_cast<int64_t>(fc.groups);
  product.rows = static_cast<int64_t>(rows);
  product.summed = static_cast<int64_t>(summed);
  product.columns = static_cast<int64_t>(columns);
  product.x_group = left.group();
  product.x_row = left.row();
  product.x_column = left.column();
  product.y_group = right.group();
  product.y_row = right.row();
  product.y_column = right.column();
  product.out_group = static_cast<int64_t>(out.group);
  product.out_row = static_cast<int64_t>(out.row);
  return product;
}

Status FcForwardOnGpu(const BatchFc& fc, const Tensor& input, const Tensor& w, const Tensor& bias,
                      Tensor* out) {
  const pbx_hbm_product product =
      ProductOf(fc, fc.instances, fc.inputs, fc.outputs, {fc.x}, {fc.w}, fc.y);
  return StatusOf(Hbm().multiply(&product, input.data<float>(), w.data<float>(), bias.data<float>(),
                                 out->data<float>(), StreamOf(input)),
                  "batch_fc");
}

Status FcBackwardOnGpu(const BatchFc& fc, const Tensor& input, const Tensor& w, const Tensor& grad,
                       Tensor* dinput, Tensor* dw, Tensor* dbias) {
  const auto multiply = [&](const pbx_hbm_product& product, const float* x, const float* y,
                            Tensor* to) {
    return StatusOf(Hbm().multiply(&product, x, y, nullptr, to->data<float>(), StreamOf(input)),
                    "batch_fc_grad");
  };
  PBX_RETURN_IF_ERROR(
      multiply(ProductOf(fc, fc.instances, fc.outputs, fc.inputs, {fc.y}, {fc.w, true}, fc.x),
               grad.data<float>(), w.data<float>(), dinput));
  PBX_RETURN_IF_ERROR(
      multiply(ProductOf(fc, fc.inputs, fc.instances, fc.outputs, {fc.x, true}, {fc.y}, fc.w),
               input.data<float>(), grad.data<float>(), dw));
  return multiply(ProductOf(fc, 1, fc.instances, fc.outputs, {}, {fc.y}, {fc.outputs, fc.outputs}),
                  nullptr, grad.data<float>(), dbias);
}

std::vector<Tensor> FcForward(const Tensor& input, const Tensor& w, const Tensor& bias,
                              int batchcount, bool transpose_weight) {
  Tensor out;
  Guard("batch_fc", [&]() -> Status {
    BatchFc fc;
    Shape shape;
    PBX_RETURN_IF_ERROR(CheckBatchFc(input, w, bias, batchcount, transpose_weight, &fc, &shape));
    out = Empty(shape, input);
    if (IsOnGpu(input)) return FcForwardOnGpu(fc, input, w, bias, &out);
    BatchFcForward(fc, input.data<float>(), w.data<float>(), bias.data<float>(), out.data<float>());
    return Status::Ok();
  });
  return {out};
}

std::vector<Tensor> FcBackward(const Tensor& input, const Tensor& w, const Tensor& bias,
                               const Tensor& grad, int batchcount, bool transpose_weight) {
  Tensor dinput, dw, dbias;
  Guard("batch_fc_grad", [&]() -> Status {
    BatchFc fc;
    Shape shape;
    PBX_RETURN_IF_ERROR(CheckBatchFc(input, w, bias, batchcount, transpose_weight, &fc, &shape));
    PBX_RETURN_IF_ERROR(ExpectFloats(input, grad, "Out@GRAD", shape));
    dinput = Empty(input.shape(), input);
    dw = Empty(w.shape(), input);
    dbias = Empty(bias.shape(), input);
    if (IsOnGpu(input)) return FcBackwardOnGpu(fc, input, w, grad, &dinput, &dw, &dbias);
    BatchFcBackward(fc, input.data<float>(), w.data<float>(), grad.data<float>(),
                    dinput.data<float>(), dw.data<float>(), dbias.data<float>());
    return Status::Ok();
  });
  return {dinput, dw, dbias};
}

std::vector<Shape> FcInferShape(const Shape& input, const Shape& w, const Shape& /*bias*/,
                                int batchcount, bool transpose_weight) {
  int64_t groups = -1, instances = -1, inputs = -1, outputs = -1;
  if (!FcDims(input, w, batchcount, transpose_weight, &groups, &instances, &inputs, &outputs)) {
    return {input};  // errors are reported when the operator runs
  }
  if (batchcount > 0 && !transpose_weight) return {{instances, groups * outputs}};
  return {{groups, instances, outputs}};
}
std::vector<DataType> FcInferDtype(const DataType& input, const DataType& /*w*/,
                                   const DataType& /*bias*/) {
  return {input};
}

}  // namespace
}  // namespace pbx

#define PBX_SEQPOOL_ATTRS            \
  {"form: std::string",              \
   "slots: int",                     \
   "slot_major: bool",               \
   "use_cvm: bool",                  \
   "cvm_offset: int",                \
   "max_cvm_offset: int",            \
   "drop_count: bool",               \
   "click_not_ctr: bool",            \
   "pad_value: float",               \
   "thresholds: std::vector<float>", \
   "show_coeff: float",              \
   "click_coeff: float",             \
   "embed_threshold: float",         \
   "embed_thres_size: int",          \
   "quant_ratio: int",               \
   "embedx_concate_size: int",       \
   "embedx_concate_filter: bool"}

PD_BUILD_OP(box_fused_seqpool_cvm)
    .Inputs({"Values", "Offsets", "Cvm", "GradMask"})
    .Outputs({"Out"})
    .Attrs(PBX_SEQPOOL_ATTRS)
    .SetKernelFn(PD_KERNEL(pbx::FusedSeqpoolCvm::Forward))
    .SetInferShapeFn(PD_INFER_SHAPE(pbx::FusedSeqpoolCvm::InferShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(pbx::FusedSeqpoolCvm::InferDtype));

PD_BUILD_GRAD_OP(box_fused_seqpool_cvm)
    .Inputs({"Values", "Offsets", "Cvm", "GradMask", paddle::Grad("Out")})
    .Outputs({paddle::Grad("Values")})
    .Attrs(PBX_SEQPOOL_ATTRS)
    .SetKernelFn(PD_KERNEL(pbx::FusedSeqpoolCvm::Backward));

PD_BUILD_OP(box_data_norm)
    .Inputs({"X", "BatchSize", "BatchSum", "BatchSquareSum", "ScaleW", "Bias"})
    .Outputs({"Y", "Means", "Scales"})
    .Attrs({"slot_dim: int"})
    .SetKernelFn(PD_KERNEL(pbx::NormForward))
    .SetInferShapeFn(PD_INFER_SHAPE(pbx::NormInferShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(pbx::NormInferDtype));

PD_BUILD_GRAD_OP(box_data_norm)
    .Inputs({"X", "ScaleW", "Bias", "Means", "Scales", paddle::Grad("Y")})
    .Outputs({paddle::Grad("X"), paddle::Grad("ScaleW"), paddle::Grad("Bias")})
    .Attrs({"slot_dim: int"})
    .SetKernelFn(PD_KERNEL(pbx::NormBackward));

PD_BUILD_OP(box_data_norm_update)
    .Inputs({"X", "BatchSize", "BatchSum", "BatchSquareSum"})
    .Outputs({"NewSize", "NewSum", "NewSquareSum"})
    .Attrs({"slot_dim: int", "epsilon: float", "summary_decay_rate: float"})
    .SetKernelFn(PD_KERNEL(pbx::NormUpdate))
    .SetInferShapeFn(PD_INFER_SHAPE(pbx::NormUpdateInferShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(pbx::NormUpdateInferDtype));

PD_BUILD_OP(box_rank_attention)
    .Inputs({"X", "RankOffset", "RankParam"})
    .Outputs({"Out"})
    .Attrs({"max_rank: int", "enable_input_bp: bool"})
    .SetKernelFn(PD_KERNEL(pbx::RankForward))
    .SetInferShapeFn(PD_INFER_SHAPE(pbx::RankInferShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(pbx::RankInferDtype));

PD_BUILD_GRAD_OP(box_rank_attention)
    .Inputs({"X", "RankOffset", "RankParam", paddle::Grad("Out")})
    .Outputs({paddle::Grad("X"), paddle::Grad("RankParam")})
    .Attrs({"max_rank: int", "enable_input_bp: bool"})
    .SetKernelFn(PD_KERNEL(pbx::RankBackward));

PD_BUILD_OP(box_batch_fc)
    .Inputs({"Input", "W", "Bias"})
    .Outputs({"Out"})
    .Attrs({"batchcount: int", "transpose_weight: bool"})
    .SetKernelFn(PD_KERNEL(pbx::FcForward))
    .SetInferShapeFn(PD_INFER_SHAPE(pbx::FcInferShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(pbx::FcInferDtype));

PD_BUILD_GRAD_OP(box_batch_fc)
    .Inputs({"Input", "W", "Bias", paddle::Grad("Out")})
    .Outputs({paddle::Grad("Input"), paddle::Grad("W"), paddle::Grad("Bias")})
    .Attrs({"batchcount: int", "transpose_weight: bool"})
    .SetKernelFn(PD_KERNEL(pbx::FcBackward));
