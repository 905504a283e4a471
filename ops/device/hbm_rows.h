// HbmRows: the operators of DeviceRows on a table of ops/cuda. Base: DeviceRows, or a class derived
// from it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/device_arguments.h"
#include "device/hbm_device.h"
#include "table/device_rows.h"

namespace pbx {

template <class Base>
class HbmRows : public Base {
 public:
  // if_full: what to do when the device's memory is full, for messages.
  HbmRows(const HbmDeviceConfig& device, int embedx_dim, const char* if_full)
      : device_(device), embedx_dim_(embedx_dim), if_full_(if_full) {}

  bool on_cpu() const override { return device_.host_is_device; }

  Status Find(const int64_t* feasigns, size_t n, int32_t* ids, void* stream) override {
    PBX_RETURN_IF_ERROR(CheckOpen("pull"));
    const auto* const bits = reinterpret_cast<const uint64_t*>(feasigns);
    PBX_RETURN_IF_ERROR(Check(Hbm().find(open_table(), bits, n, ids, stream), "find"));
    return Called(0, stream);
  }

  Status Pull(const int32_t* ids, size_t n, float* out, void* stream) override {
    PBX_RETURN_IF_ERROR(CheckOpen("pull"));
    PBX_RETURN_IF_ERROR(Check(Hbm().pull(open_table(), ids, n, out, stream), "pull"));
    return Called(n, stream);
  }

  Status PullPooled(const BatchIds& batch, float* out, const float* dense, void* stream) override {
    PBX_RETURN_IF_ERROR(CheckOpen("pull"));
    const pbx_hbm_segments segments = SegmentsOf(batch);
    PBX_RETURN_IF_ERROR(
        Check(Hbm().pull_pooled(open_table(), &segments, out, stream), "pull_pooled"));
    PBX_RETURN_IF_ERROR(Check(CopyDense(batch, embedx_dim_, dense, out, stream), "pull_pooled"));
    return Called(batch.nnz, stream);
  }

  size_t PlanRoom(size_t nnz) const override { return Hbm().plan_room(nnz); }

  Status Plan(const BatchIds& batch, int32_t* plan, void* stream) override {
    PBX_RETURN_IF_ERROR(CheckOpen("push"));
    if (batch.shared.list_of != nullptr) {
      // A plan names each occurrence in each instance, because another order of sums gives other
      // bits. The number of occurrences follows from the lengths of the shared lists, which only
      // the device knows. Allocating memory for the plan here would make the host wait in each
      // step. The feeder knows this number.
      return Error(
          Code::kInvalidArgument,
          "push: instances share lists, and no plan was fed: feed the plan of the feeder, "
          "or give each slot of each instance its own list, for which the GPU makes plans");
    }
    const size_t segments = batch.offsets == nullptr ? batch.nnz : batch.instances * batch.slots;
    return Check(Hbm().plan(hbm(), batch.ids, batch.offsets, segments, batch.nnz, open_stamp(),
                            plan, stream),
                 "plan");
  }

  Status Push(const int32_t* plan, size_t plan_size, size_t n, const float* grad, float scale,
              void* stream) override {
    return PushGradient(plan, plan_size, GradientOfRows(n, embedx_dim_, grad, scale), stream);
  }

  Status PushPooled(const BatchIds& batch, const int32_t* plan, size_t plan_size,
                    const float* show_click, const float* grad, void* stream) override {
    return PushGradient(plan, plan_size, GradientOfPooled(batch, embedx_dim_, show_click, grad),
                        stream);
  }

 protected:
  const HbmDeviceConfig& device() const { return device_; }
  int embedx_dim() const { return embedx_dim_; }
  Status Check(int code, const char* what) const { return StatusOf(code, what, if_full_); }

  // FailedPrecondition, naming `what`, if no rows are open.
  virtual Status CheckOpen(const char* what) const = 0;
  // The functions below are called only while rows are open.
  virtual pbx_hbm* hbm() const = 0;
  virtual pbx_hbm_table* open_table() const = 0;
  virtual int32_t open_stamp() const = 0;
  // Called after each call in the stream; n ids were pulled.
  virtual Status Called(size_t n, void* stream) = 0;
  // Sets clip, bound and day of the gradient, and pushes it.
  virtual Status PushGradient(const int32_t* plan, size_t plan_size, pbx_hbm_gradient gradient,
                              void* stream) = 0;

 private:
  const HbmDeviceConfig device_;
  const int embedx_dim_;
  const char* const if_full_;
};

}  // namespace pbx
