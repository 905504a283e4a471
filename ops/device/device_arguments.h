// Helpers around the C interface of ops/cuda: its errors as Status, owning pointers, and its
// arguments for an operator's tensors.
#pragma once

#include "base/status.h"
#include "device/hbm_library.h"
#include "table/device_rows.h"

namespace pbx {

inline Status StatusOf(int code, const char* what, const char* where_full = "") {
  if (code == PBX_HBM_OK) return Status::Ok();
  const Code of = code == PBX_HBM_INVALID  ? Code::kInvalidArgument
                  : code == PBX_HBM_MEMORY ? Code::kOutOfSpace
                                           : Code::kIOError;
  return Error(of, "%s: %s%s", what, Hbm().error(), code == PBX_HBM_MEMORY ? where_full : "");
}

// Deleters for std::unique_ptr.
struct Close {
  void operator()(pbx_hbm* hbm) const { Hbm().close(hbm); }
  void operator()(pbx_hbm_table* table) const { Hbm().drop(table); }
  void operator()(pbx_hbm_staging* staging) const { Hbm().close_staging(staging); }
  void operator()(pbx_hbm_parcel* parcel) const { Hbm().close_parcel(parcel); }
  void operator()(pbx_hbm_report* pinned) const { Hbm().free_pinned(pinned); }
};

inline pbx_hbm_segments SegmentsOf(const BatchIds& batch) {
  pbx_hbm_segments segments{};
  segments.ids = batch.ids;
  segments.nnz = batch.nnz;
  segments.offsets = batch.offsets;
  segments.list_of = batch.shared.list_of;
  segments.lists = batch.shared.lists;
  segments.segments = batch.instances * batch.slots;
  segments.slots = batch.slots;
  segments.extra = batch.dense_width;
  segments.use_cvm = batch.use_cvm ? 1 : 0;
  return segments;
}

// grad: (n, 3 + dim).
inline pbx_hbm_gradient GradientOfRows(size_t n, int dim, const float* grad, float scale) {
  pbx_hbm_gradient gradient{};
  gradient.grad = gradient.show_click = grad;
  gradient.stride = gradient.show_click_stride = 3 + dim;
  gradient.weights_at = 2;
  gradient.instances = static_cast<int64_t>(n);
  gradient.slots = 1;
  gradient.scale = scale;
  return gradient;
}

inline pbx_hbm_gradient GradientOfPooled(const BatchIds& batch, int dim, const float* show_click,
                                         const float* grad) {
  pbx_hbm_gradient gradient{};
  gradient.grad = grad;
  gradient.weights_at = batch.use_cvm ? 2 : 0;
  gradient.stride = gradient.weights_at + 1 + dim;
  gradient.extra = static_cast<int64_t>(batch.dense_width);
  gradient.show_click = show_click;
  gradient.show_click_stride = 2;
  gradient.instances = static_cast<int64_t>(batch.instances);
  gradient.slots = static_cast<int64_t>(batch.slots);
  gradient.scale = static_cast<float>(batch.instances);
  return gradient;
}

// Copies dense (instances, dense_width) after the slots of out. Returns a pbx_hbm_code.
inline int CopyDense(const BatchIds& batch, int dim, const float* dense, float* out, void* stream) {
  if (batch.dense_width == 0) return PBX_HBM_OK;
  const size_t of_slot = static_cast<size_t>(dim) + (batch.use_cvm ? 3 : 1);
  const size_t pooled = batch.slots * of_slot, dense_bytes = batch.dense_width * sizeof(float);
  return Hbm().copy_rows(out + pooled, pooled * sizeof(float) + dense_bytes, dense, dense_bytes,
                         dense_bytes, batch.instances, stream);
}

}  // namespace pbx
