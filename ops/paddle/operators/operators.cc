// The operators. Each kernel checks place, dtype and shape, then calls one function of the core.
// Only Paddle's own exception may leave a kernel (any other aborts the process), so every body runs
// under Guard. Messages start with the Python error class to which paddlebox.ops converts them.
//
// Order is a variable of the program that no kernel reads or writes. To the executor, each pull
// changes it in place and each backward reads it. So Paddle runs the pulls of a program one after
// another, and all pushes after all pulls.
#include <string>
#include <vector>

#include "paddle/operators/device_operators.h"
#include "paddle/operators/kernel_guard.h"
#include "paddle/operators/outputs.h"
#include "table/registry.h"

namespace pbx {
namespace {

// ---- pull_box_sparse, push_box_sparse: feasigns and the open table

// PaddleBox drops a last dimension of 1: (B, 1) gives (B, size); any other (...) gives (..., size).
Shape PullShape(Shape ids, int size) {
  if (ids.size() > 1 && ids.back() == 1) ids.pop_back();
  ids.push_back(size);
  return ids;
}

// The columns of a pull: kExtended has the expand part after embedx.
enum class Part { kPlain, kExtended };

// The only open table, whose rows must have `size` columns.
Status TableOf(int64_t size, Part part, std::shared_ptr<RowAccess>* table) {
  Result<std::shared_ptr<RowAccess>> found = FindTable("");
  if (!found.ok()) return found.status();
  *table = found.value();
  const RowLayout& layout = (*table)->layout();
  const bool extended = part == Part::kExtended;
  const int columns = layout.pull_columns() + (extended ? layout.expand_dim : 0);
  if (size != columns) {
    return Error(Code::kInvalidArgument,
                 "size is %lld, table '%s' has 3 + embedx_dim%s%s = %d columns",
                 static_cast<long long>(size), (*table)->name().c_str(),
                 layout.counts != 0 ? " + counts" : "", extended ? " + expand_dim" : "", columns);
  }
  return Status::Ok();
}

Status TranslateIds(const Tensor& ids, RowAccess* table, std::vector<int32_t>* rows) {
  PBX_RETURN_IF_ERROR(Expect(ids, "Ids", DataType::INT64));
  rows->resize(Count(ids));
  // A feasign is passed as the bits of an int64.
  return table->Translate(reinterpret_cast<const uint64_t*>(ids.data<int64_t>()), rows->size(),
                          rows->data());
}

Tensor PullRows(const char* op, const Tensor& ids, const Tensor& anchor, int size, Part part) {
  Tensor out;
  Guard(op, [&]() -> Status {
    std::shared_ptr<RowAccess> table;
    PBX_RETURN_IF_ERROR(TableOf(size, part, &table));
    const auto pulling = table->BeginPull();
    if (!pulling.ok()) return pulling.status();
    if (table->device() != nullptr) {
      return PullOnDevice(*table, ids, anchor, PullShape(ids.shape(), size),
                          part == Part::kExtended, &out);
    }
    PBX_RETURN_IF_ERROR(Expect(anchor, "W", DataType::FLOAT32));
    std::vector<int32_t> rows;
    PBX_RETURN_IF_ERROR(TranslateIds(ids, table.get(), &rows));
    out = NewOutput(PullShape(ids.shape(), size), ids.place());
    return part == Part::kExtended
               ? table->PullExtended(rows.data(), rows.size(), out.data<float>())
               : table->Pull(rows.data(), rows.size(), out.data<float>());
  });
  return out;
}

Status PushRows(const Tensor& ids, const Tensor& grad, Part part) {
  const int64_t size = grad.shape().empty() ? 0 : grad.shape().back();
  std::shared_ptr<RowAccess> table;
  PBX_RETURN_IF_ERROR(TableOf(size, part, &table));
  Result<StepPush> push = table->BeginPush();
  if (!push.ok()) return push.status();
  const Shape expected = PullShape(ids.shape(), static_cast<int>(size));
  const bool extended = part == Part::kExtended;
  if (table->device() != nullptr) {
    PBX_RETURN_IF_ERROR(PushOnDevice(*table, ids, grad, expected, extended));
    return push.value().End();
  }
  PBX_RETURN_IF_ERROR(Expect(grad, "Out@GRAD", DataType::FLOAT32));
  std::vector<int32_t> rows;
  PBX_RETURN_IF_ERROR(TranslateIds(ids, table.get(), &rows));
  PBX_RETURN_IF_ERROR(ExpectShape(grad, "Out@GRAD", expected));
  const float batch = ids.shape().empty() ? 1.0f : static_cast<float>(ids.shape()[0]);
  const auto push_rows = extended ? &RowAccess::PushExtended : &RowAccess::Push;
  PBX_RETURN_IF_ERROR(
      (table.get()->*push_rows)(rows.data(), rows.size(), grad.data<float>(), batch));
  return push.value().End();
}

Tensor PushBack(const char* op, const Tensor& ids, const Tensor& anchor, const Tensor& grad,
                Part part) {
  Tensor zeros;
  Guard(op, [&]() -> Status {
    zeros = ZerosLike(anchor);
    return PushRows(ids, grad, part);
  });
  return zeros;
}

std::vector<Tensor> PullForward(const Tensor& ids, const Tensor& anchor,
                                paddle::optional<Tensor>& /*order*/, int size,
                                bool /*is_distributed*/, bool /*is_sparse*/) {
  return {PullRows("pull_box_sparse", ids, anchor, size, Part::kPlain)};
}
std::vector<Tensor> PullBackward(const Tensor& ids, const Tensor& anchor,
                                 const paddle::optional<Tensor>& /*order*/, const Tensor& grad,
                                 int /*size*/, bool /*is_distributed*/, bool /*is_sparse*/) {
  return {PushBack("push_box_sparse", ids, anchor, grad, Part::kPlain)};
}

std::vector<Tensor> ExtendedForward(const Tensor& ids, const Tensor& anchor,
                                    paddle::optional<Tensor>& /*order*/, int size) {
  return {PullRows("pull_box_extended_sparse", ids, anchor, size, Part::kExtended)};
}
std::vector<Tensor> ExtendedBackward(const Tensor& ids, const Tensor& anchor,
                                     const paddle::optional<Tensor>& /*order*/, const Tensor& grad,
                                     int /*size*/) {
  return {PushBack("push_box_extended_sparse", ids, anchor, grad, Part::kExtended)};
}
std::vector<Shape> ExtendedInferShape(const Shape& ids, const Shape& /*anchor*/,
                                      const paddle::optional<Shape>& /*order*/, int size) {
  return {PullShape(ids, size)};
}

std::vector<Shape> PullInferShape(const Shape& ids, const Shape& /*anchor*/,
                                  const paddle::optional<Shape>& /*order*/, int size,
                                  bool /*is_distributed*/, bool /*is_sparse*/) {
  return {PullShape(ids, size)};
}
std::vector<DataType> PullInferDtype(const DataType& /*ids*/, const DataType& anchor,
                                     const paddle::optional<DataType>& /*order*/) {
  return {anchor};
}

std::vector<Tensor> PushForward(const Tensor& ids, const Tensor& grad,
                                paddle::optional<Tensor>& /*order*/) {
  Tensor count;
  Guard("push_box_sparse", [&]() -> Status {
    PBX_RETURN_IF_ERROR(PushRows(ids, grad, Part::kPlain));
    count = paddle::full({1}, ids.numel(), DataType::INT64, ids.place());
    return Status::Ok();
  });
  return {count};
}
std::vector<Shape> PushInferShape(const Shape& /*ids*/, const Shape& /*grad*/,
                                  const paddle::optional<Shape>& /*order*/) {
  return {{1}};
}
std::vector<DataType> PushInferDtype(const DataType& /*ids*/, const DataType& /*grad*/,
                                     const paddle::optional<DataType>& /*order*/) {
  return {DataType::INT64};
}

// ---- fused_pull_seqpool_cvm

// The checked inputs of the fused operators, with rows on the host.
struct Pooled {
  BatchIds batch;
  std::vector<int32_t> translated;  // row ids, if Ids has feasigns
  const int32_t* plan = nullptr;
  size_t plan_size = 0;  // 0: no plan was fed
};

Status CheckOnHost(RowAccess* table, const PooledInputs& inputs, Pooled* pooled) {
  BatchIds& batch = pooled->batch;
  PBX_RETURN_IF_ERROR(CheckPooled(*table, inputs, &batch));
  if (inputs.ids.dtype() == DataType::INT64) {
    PBX_RETURN_IF_ERROR(Expect(inputs.ids, "Ids", DataType::INT64));
    pooled->translated.resize(batch.nnz);
    batch.ids = pooled->translated.data();
    return table->Translate(reinterpret_cast<const uint64_t*>(inputs.ids.data<int64_t>()),
                            batch.nnz, pooled->translated.data());
  }
  PBX_RETURN_IF_ERROR(Expect(inputs.ids, "Ids", DataType::INT32));
  batch.ids = inputs.ids.data<int32_t>();
  // A plan shorter than its header means no plan: programs cannot feed an empty tensor.
  if (Count(inputs.plan) < 4) return Status::Ok();
  pooled->plan = inputs.plan.data<int32_t>();
  pooled->plan_size = Count(inputs.plan);
  return table->CheckStamp(pooled->plan[0]);
}

Tensor PullPooled(const char* op, const std::string& table, const PooledInputs& inputs) {
  Tensor out;
  Guard(op, [&]() -> Status {
    Result<std::shared_ptr<RowAccess>> found = FindTable(table);
    if (!found.ok()) return found.status();
    RowAccess* const rows = found.value().get();
    const auto pulling = rows->BeginPull();
    if (!pulling.ok()) return pulling.status();
    if (rows->device() != nullptr) return PullPooledOnDevice(*rows, inputs, &out);
    Pooled pooled;
    PBX_RETURN_IF_ERROR(CheckOnHost(rows, inputs, &pooled));
    const BatchIds& batch = pooled.batch;
    out = NewOutput(PooledShape(*rows, batch), inputs.ids.place());
    return rows->PullPooled(batch.ids, batch.nnz, batch.offsets, batch.instances, batch.slots,
                            batch.use_cvm, out.data<float>(), DenseOf(inputs), batch.dense_width,
                            batch.shared, pooled.plan, pooled.plan_size);
  });
  return out;
}

Tensor PushPooled(const char* op, const std::string& table, const PooledInputs& inputs,
                  const Tensor& grad) {
  Tensor zeros;
  Guard(op, [&]() -> Status {
    Result<std::shared_ptr<RowAccess>> found = FindTable(table);
    if (!found.ok()) return found.status();
    RowAccess* const rows = found.value().get();
    zeros = ZerosLike(inputs.anchor);
    Result<StepPush> push = rows->BeginPush();
    if (!push.ok()) return push.status();
    if (rows->device() != nullptr) {
      PBX_RETURN_IF_ERROR(PushPooledOnDevice(*rows, inputs, grad));
      return push.value().End();
    }
    Pooled pooled;
    PBX_RETURN_IF_ERROR(CheckOnHost(rows, inputs, &pooled));
    const BatchIds& batch = pooled.batch;
    PBX_RETURN_IF_ERROR(Expect(grad, "Out@GRAD", DataType::FLOAT32));
    PBX_RETURN_IF_ERROR(ExpectShape(grad, "Out@GRAD", PooledShape(*rows, batch)));
    PBX_RETURN_IF_ERROR(
        rows->PushPooled(batch.ids, batch.nnz, batch.offsets, batch.instances, batch.slots,
                         batch.use_cvm, inputs.show_click.data<float>(), pooled.plan,
                         pooled.plan_size, grad.data<float>(), batch.dense_width, batch.shared));
    return push.value().End();
  });
  return zeros;
}

std::vector<Tensor> PooledForward(const Tensor& ids, const Tensor& offsets,
                                  const Tensor& show_click, const Tensor& plan,
                                  const Tensor& anchor, paddle::optional<Tensor>& /*order*/,
                                  const std::string& table, int slots, int embedx_dim,
                                  bool use_cvm) {
  return {
      PullPooled("fused_pull_seqpool_cvm", table,
                 {ids, offsets, show_click, plan, nullptr, anchor, slots, embedx_dim, use_cvm})};
}
std::vector<Tensor> PooledBackward(const Tensor& ids, const Tensor& offsets,
                                   const Tensor& show_click, const Tensor& plan,
                                   const Tensor& anchor, const paddle::optional<Tensor>& /*order*/,
                                   const Tensor& grad, const std::string& table, int slots,
                                   int embedx_dim, bool use_cvm) {
  return {PushPooled("fused_pull_seqpool_cvm_grad", table,
                     {ids, offsets, show_click, plan, nullptr, anchor, slots, embedx_dim, use_cvm},
                     grad)};
}

std::vector<Tensor> JoinedForward(const Tensor& ids, const Tensor& offsets,
                                  const Tensor& show_click, const Tensor& plan, const Tensor& dense,
                                  const Tensor& anchor, paddle::optional<Tensor>& /*order*/,
                                  const std::string& table, int slots, int embedx_dim,
                                  bool use_cvm) {
  return {PullPooled("fused_pull_seqpool_cvm_concat", table,
                     {ids, offsets, show_click, plan, &dense, anchor, slots, embedx_dim, use_cvm})};
}
std::vector<Tensor> JoinedBackward(const Tensor& ids, const Tensor& offsets,
                                   const Tensor& show_click, const Tensor& plan,
                                   const Tensor& dense, const Tensor& anchor,
                                   const paddle::optional<Tensor>& /*order*/, const Tensor& grad,
                                   const std::string& table, int slots, int embedx_dim,
                                   bool use_cvm) {
  return {PushPooled("fused_pull_seqpool_cvm_concat_grad", table,
                     {ids, offsets, show_click, plan, &dense, anchor, slots, embedx_dim, use_cvm},
                     grad)};
}
// The columns of a pooled slot. Programs know the number of counts from the shape of ShowClick.
int64_t WidthOf(const Shape& show_click, int embedx_dim, bool use_cvm) {
  const int64_t counts = show_click.size() == 2 && show_click[1] > 0 ? show_click[1] : 2;
  return (use_cvm ? counts + 1 : 1) + embedx_dim;
}

std::vector<Shape> JoinedInferShape(const Shape& /*ids*/, const Shape& /*offsets*/,
                                    const Shape& show_click, const Shape& /*plan*/,
                                    const Shape& dense, const Shape& /*anchor*/,
                                    const paddle::optional<Shape>& /*order*/,
                                    const std::string& /*table*/, int slots, int embedx_dim,
                                    bool use_cvm) {
  const int64_t width = dense.size() == 2 ? dense[1] : 0;
  return {{show_click.empty() ? -1 : show_click[0],
           slots * WidthOf(show_click, embedx_dim, use_cvm) + width}};
}
std::vector<DataType> JoinedInferDtype(const DataType& /*ids*/, const DataType& /*offsets*/,
                                       const DataType& /*show_click*/, const DataType& /*plan*/,
                                       const DataType& /*dense*/, const DataType& anchor,
                                       const paddle::optional<DataType>& /*order*/) {
  return {anchor};
}

std::vector<Shape> PooledInferShape(const Shape& /*ids*/, const Shape& /*offsets*/,
                                    const Shape& show_click, const Shape& /*plan*/,
                                    const Shape& /*anchor*/,
                                    const paddle::optional<Shape>& /*order*/,
                                    const std::string& /*table*/, int slots, int embedx_dim,
                                    bool use_cvm) {
  return {
      {show_click.empty() ? -1 : show_click[0], slots * WidthOf(show_click, embedx_dim, use_cvm)}};
}
std::vector<DataType> PooledInferDtype(const DataType& /*ids*/, const DataType& /*offsets*/,
                                       const DataType& /*show_click*/, const DataType& /*plan*/,
                                       const DataType& anchor,
                                       const paddle::optional<DataType>& /*order*/) {
  return {anchor};
}

}  // namespace
}  // namespace pbx

PD_BUILD_OP(pull_box_sparse)
    .Inputs({"Ids", "W", paddle::Optional("Order")})
    .Outputs({"Out", paddle::Optional("OrderOut")})
    .SetInplaceMap({{paddle::Optional("Order"), paddle::Optional("OrderOut")}})
    .Attrs({"size: int", "is_distributed: bool", "is_sparse: bool"})
    .SetKernelFn(PD_KERNEL(pbx::PullForward))
    .SetInferShapeFn(PD_INFER_SHAPE(pbx::PullInferShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(pbx::PullInferDtype));

PD_BUILD_GRAD_OP(pull_box_sparse)
    .Inputs({"Ids", "W", paddle::Optional("Order"), paddle::Grad("Out")})
    .Outputs({paddle::Grad("W")})
    .Attrs({"size: int", "is_distributed: bool", "is_sparse: bool"})
    .SetKernelFn(PD_KERNEL(pbx::PullBackward));

PD_BUILD_OP(pull_box_extended_sparse)
    .Inputs({"Ids", "W", paddle::Optional("Order")})
    .Outputs({"Out", paddle::Optional("OrderOut")})
    .SetInplaceMap({{paddle::Optional("Order"), paddle::Optional("OrderOut")}})
    .Attrs({"size: int"})
    .SetKernelFn(PD_KERNEL(pbx::ExtendedForward))
    .SetInferShapeFn(PD_INFER_SHAPE(pbx::ExtendedInferShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(pbx::PullInferDtype));

PD_BUILD_GRAD_OP(pull_box_extended_sparse)
    .Inputs({"Ids", "W", paddle::Optional("Order"), paddle::Grad("Out")})
    .Outputs({paddle::Grad("W")})
    .Attrs({"size: int"})
    .SetKernelFn(PD_KERNEL(pbx::ExtendedBackward));

PD_BUILD_OP(push_box_sparse)
    .Inputs({"Ids", "Grad", paddle::Optional("Order")})
    .Outputs({"Count", paddle::Optional("OrderOut")})
    .SetInplaceMap({{paddle::Optional("Order"), paddle::Optional("OrderOut")}})
    .SetKernelFn(PD_KERNEL(pbx::PushForward))
    .SetInferShapeFn(PD_INFER_SHAPE(pbx::PushInferShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(pbx::PushInferDtype));

PD_BUILD_OP(fused_pull_seqpool_cvm)
    .Inputs({"Ids", "Offsets", "ShowClick", "Plan", "W", paddle::Optional("Order")})
    .Outputs({"Out", paddle::Optional("OrderOut")})
    .SetInplaceMap({{paddle::Optional("Order"), paddle::Optional("OrderOut")}})
    .Attrs({"table: std::string", "slots: int", "embedx_dim: int", "use_cvm: bool"})
    .SetKernelFn(PD_KERNEL(pbx::PooledForward))
    .SetInferShapeFn(PD_INFER_SHAPE(pbx::PooledInferShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(pbx::PooledInferDtype));

PD_BUILD_GRAD_OP(fused_pull_seqpool_cvm)
    .Inputs({"Ids", "Offsets", "ShowClick", "Plan", "W", paddle::Optional("Order"),
             paddle::Grad("Out")})
    .Outputs({paddle::Grad("W")})
    .Attrs({"table: std::string", "slots: int", "embedx_dim: int", "use_cvm: bool"})
    .SetKernelFn(PD_KERNEL(pbx::PooledBackward));

PD_BUILD_OP(fused_pull_seqpool_cvm_concat)
    .Inputs({"Ids", "Offsets", "ShowClick", "Plan", "Dense", "W", paddle::Optional("Order")})
    .Outputs({"Out", paddle::Optional("OrderOut")})
    .SetInplaceMap({{paddle::Optional("Order"), paddle::Optional("OrderOut")}})
    .Attrs({"table: std::string", "slots: int", "embedx_dim: int", "use_cvm: bool"})
    .SetKernelFn(PD_KERNEL(pbx::JoinedForward))
    .SetInferShapeFn(PD_INFER_SHAPE(pbx::JoinedInferShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(pbx::JoinedInferDtype));

PD_BUILD_GRAD_OP(fused_pull_seqpool_cvm_concat)
    .Inputs({"Ids", "Offsets", "ShowClick", "Plan", "Dense", "W", paddle::Optional("Order"),
             paddle::Grad("Out")})
    .Outputs({paddle::Grad("W")})
    .Attrs({"table: std::string", "slots: int", "embedx_dim: int", "use_cvm: bool"})
    .SetKernelFn(PD_KERNEL(pbx::JoinedBackward));
