#include "paddle/operators/place.h"  // first: see there

#include "paddle/operators/device_operators.h"

#include "paddle/operators/outputs.h"

namespace pbx {
namespace {

// Checks place and dtype. device: null if the rows are on the host.
Status ExpectThere(const DeviceRows* device, const Tensor& tensor, const char* name,
                   DataType dtype) {
  if (device == nullptr) return Expect(tensor, name, dtype);
  if (device->on_cpu() ? tensor.is_cpu() : IsOnGpu(tensor)) return ExpectType(tensor, name, dtype);
  return Error(Code::kInvalidArgument,
               "%s is not on the GPU, where the table's rows are (hbm.place: gpu): run the "
               "program on the GPU, or set hbm.place to host",
               name);
}

Tensor OnHost(const Tensor& tensor) {
  return tensor.is_cpu() ? tensor : tensor.copy_to(phi::CPUPlace(), true);
}

Tensor NewInts(size_t count, const Tensor& like) {
  return paddle::empty({static_cast<int64_t>(count)}, DataType::INT32, like.place());
}

// Row ids of feasigns.
Status Found(DeviceRows* device, const Tensor& feasigns, Tensor* ids) {
  PBX_RETURN_IF_ERROR(ExpectThere(device, feasigns, "Ids", DataType::INT64));
  *ids = NewInts(Count(feasigns), feasigns);
  return device->Find(feasigns.data<int64_t>(), Count(feasigns), ids->data<int32_t>(),
                      StreamOf(feasigns));
}

// Checks the inputs of the fused operators and makes their batch. held: row ids, if Ids has
// feasigns.
Status BatchOf(DeviceRows* device, const RowAccess& table, const PooledInputs& inputs,
               BatchIds* batch, Tensor* held) {
  PBX_RETURN_IF_ERROR(CheckPooled(table, inputs, batch));
  if (inputs.ids.dtype() == DataType::INT64) {
    PBX_RETURN_IF_ERROR(Found(device, inputs.ids, held));
    batch->ids = held->data<int32_t>();
    return Status::Ok();
  }
  PBX_RETURN_IF_ERROR(ExpectThere(device, inputs.ids, "Ids", DataType::INT32));
  batch->ids = inputs.ids.data<int32_t>();
  return Status::Ok();
}

}  // namespace

Status CheckPooled(const RowAccess& table, const PooledInputs& inputs, BatchIds* batch) {
  const DeviceRows* const device = table.device();
  const int dim = table.layout().embedx_dim;
  if (inputs.embedx_dim != dim || inputs.slots < 1) {
    return Error(Code::kInvalidArgument,
                 "attributes slots = %d, embedx_dim = %d: expected slots >= 1 and the table's "
                 "embedx_dim = %d",
                 inputs.slots, inputs.embedx_dim, dim);
  }
  PBX_RETURN_IF_ERROR(ExpectThere(device, inputs.anchor, "W", DataType::FLOAT32));
  PBX_RETURN_IF_ERROR(ExpectThere(device, inputs.offsets, "Offsets", DataType::INT32));
  PBX_RETURN_IF_ERROR(ExpectThere(device, inputs.show_click, "ShowClick", DataType::FLOAT32));
  PBX_RETURN_IF_ERROR(ExpectThere(device, inputs.plan, "Plan", DataType::INT32));
  if (inputs.show_click.shape().empty()) {
    return Error(Code::kInvalidArgument, "ShowClick has shape (), expected (B, %d)",
                 table.layout().head_columns());
  }
  const int64_t instances = inputs.show_click.shape()[0];
  PBX_RETURN_IF_ERROR(
      ExpectShape(inputs.show_click, "ShowClick", {instances, table.layout().head_columns()}));
  if (inputs.offsets.shape().size() != 1) {  // FindShared checks its size
    PBX_RETURN_IF_ERROR(ExpectShape(inputs.offsets, "Offsets", {instances * inputs.slots + 1}));
  }
  batch->instances = static_cast<size_t>(instances);
  batch->slots = static_cast<size_t>(inputs.slots);
  batch->use_cvm = inputs.use_cvm;
  batch->nnz = Count(inputs.ids);
  batch->offsets = inputs.offsets.data<int32_t>();
  Result<SharedCells> shared =
      FindShared(batch->instances * batch->slots, batch->offsets, Count(inputs.offsets));
  if (!shared.ok()) return shared.status();
  batch->shared = shared.value();
  if (inputs.dense == nullptr) return Status::Ok();
  PBX_RETURN_IF_ERROR(ExpectThere(device, *inputs.dense, "Dense", DataType::FLOAT32));
  if (inputs.dense->shape().size() != 2 || inputs.dense->shape()[0] != instances) {
    return Error(Code::kInvalidArgument, "Dense has shape %s, expected (B, W) with B = %lld",
                 Describe(inputs.dense->shape()).c_str(), static_cast<long long>(instances));
  }
  batch->dense_width = static_cast<size_t>(inputs.dense->shape()[1]);
  return Status::Ok();
}

Shape PooledShape(const RowAccess& table, const BatchIds& batch) {
  const size_t width = PooledWidth(table.layout(), batch.use_cvm);
  return {static_cast<int64_t>(batch.instances),
          static_cast<int64_t>(batch.slots * width + batch.dense_width)};
}

Status PullOnDevice(const RowAccess& table, const Tensor& ids, const Tensor& anchor,
                    const Shape& out_shape, bool extended, Tensor* out) {
  DeviceRows* const device = table.device();
  if (extended) PBX_RETURN_IF_ERROR(table.CheckExtended("pull_box_extended_sparse"));
  PBX_RETURN_IF_ERROR(ExpectThere(device, anchor, "W", DataType::FLOAT32));
  Tensor rows;
  PBX_RETURN_IF_ERROR(Found(device, ids, &rows));
  *out = NewOutput(out_shape, ids.place());
  const auto pull = extended ? &DeviceRows::PullExtended : &DeviceRows::Pull;
  return (device->*pull)(rows.data<int32_t>(), Count(ids), out->data<float>(), StreamOf(ids));
}

Status PushOnDevice(RowAccess& table, const Tensor& ids, const Tensor& grad,
                    const Shape& grad_shape, bool extended) {
  DeviceRows* const device = table.device();
  if (extended) PBX_RETURN_IF_ERROR(table.CheckExtended("push_box_extended_sparse"));
  PBX_RETURN_IF_ERROR(ExpectThere(device, grad, "Out@GRAD", DataType::FLOAT32));
  PBX_RETURN_IF_ERROR(ExpectShape(grad, "Out@GRAD", grad_shape));
  Tensor rows;
  PBX_RETURN_IF_ERROR(Found(device, ids, &rows));
  const float scale = ids.shape().empty() ? 1.0f : static_cast<float>(ids.shape()[0]);
  if (table.holding()) {
    const Tensor host_rows = OnHost(rows), host_grad = OnHost(grad);
    const auto push = extended ? &RowAccess::PushExtended : &RowAccess::Push;
    return (table.*push)(host_rows.data<int32_t>(), Count(ids), host_grad.data<float>(), scale);
  }
  BatchIds batch;
  batch.ids = rows.data<int32_t>();
  batch.nnz = Count(ids);
  const size_t room = device->PlanRoom(batch.nnz);
  Tensor plan = NewInts(room, ids);
  PBX_RETURN_IF_ERROR(device->Plan(batch, plan.data<int32_t>(), StreamOf(ids)));
  const auto push = extended ? &DeviceRows::PushExtended : &DeviceRows::Push;
  return (device->*push)(plan.data<int32_t>(), room, batch.nnz, grad.data<float>(), scale,
                         StreamOf(ids));
}

Status PullPooledOnDevice(const RowAccess& table, const PooledInputs& inputs, Tensor* out) {
  DeviceRows* const device = table.device();
  BatchIds batch;
  Tensor held;
  PBX_RETURN_IF_ERROR(BatchOf(device, table, inputs, &batch, &held));
  *out = NewOutput(PooledShape(table, batch), inputs.ids.place());
  return device->PullPooled(batch, out->data<float>(), DenseOf(inputs), StreamOf(inputs.ids));
}

Status PushPooledOnDevice(RowAccess& table, const PooledInputs& inputs, const Tensor& grad) {
  DeviceRows* const device = table.device();
  BatchIds batch;
  Tensor held, made;
  PBX_RETURN_IF_ERROR(BatchOf(device, table, inputs, &batch, &held));
  PBX_RETURN_IF_ERROR(ExpectThere(device, grad, "Out@GRAD", DataType::FLOAT32));
  PBX_RETURN_IF_ERROR(ExpectShape(grad, "Out@GRAD", PooledShape(table, batch)));
  if (table.holding()) {
    const Tensor ids = OnHost(held.initialized() ? held : inputs.ids);
    const Tensor offsets = OnHost(inputs.offsets), counts = OnHost(inputs.show_click);
    const Tensor plan = OnHost(inputs.plan), host_grad = OnHost(grad);
    Result<SharedCells> shared =
        FindShared(batch.instances * batch.slots, offsets.data<int32_t>(), Count(offsets));
    if (!shared.ok()) return shared.status();
    const bool planned = !held.initialized() && Count(plan) >= 4;
    return table.PushPooled(ids.data<int32_t>(), batch.nnz, offsets.data<int32_t>(),
                            batch.instances, batch.slots, batch.use_cvm, counts.data<float>(),
                            plan.data<int32_t>(), planned ? Count(plan) : 0,
                            host_grad.data<float>(), batch.dense_width, shared.value());
  }
  // A plan shorter than its header means no plan: programs cannot feed an empty tensor.
  const int32_t* plan = inputs.plan.data<int32_t>();
  size_t plan_size = Count(inputs.plan);
  if (plan_size < 4 || inputs.ids.dtype() == DataType::INT64) {
    plan_size = device->PlanRoom(batch.nnz);
    made = NewInts(plan_size, inputs.ids);
    PBX_RETURN_IF_ERROR(device->Plan(batch, made.data<int32_t>(), StreamOf(inputs.ids)));
    plan = made.data<int32_t>();
  }
  return device->PushPooled(batch, plan, plan_size, inputs.show_click.data<float>(),
                            grad.data<float>(), StreamOf(inputs.ids));
}

}  // namespace pbx
