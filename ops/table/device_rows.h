// DeviceRows: open rows in the memory of a device, for operators whose tensors are there: those of
// a pass (DevicePass), or of a batch that other ranks own.
//
// Arrays are in the device's memory. Functions with a `stream` (null: the default one) put work
// into it and do not wait; what the device meets there that is a mistake is told by a later call,
// at the latest by End. FailedPrecondition where no pass is open.
//
// Letters: D = embedx_dim, P = 3 + D columns [show, click, embed_w, embedx...], E = expand_dim.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "row/lists.h"
#include "table/pass_table.h"
#include "table/row_access.h"

namespace pbx {

// Ids of a batch and where each slot of each instance has its own, as RowAccess::PullPooled has
// them.
struct DeviceBatch {
  const int32_t* ids = nullptr;  // (nnz)
  size_t nnz = 0;
  const int32_t* offsets = nullptr;
  SharedCells shared;
  size_t instances = 0, slots = 0;
  bool use_cvm = true;
  size_t dense_width = 0;
};

class DeviceRows {
 public:
  DeviceRows() = default;
  virtual ~DeviceRows() = default;
  DeviceRows(const DeviceRows&) = delete;
  DeviceRows& operator=(const DeviceRows&) = delete;

  // Whether tensors are to be on the CPU: a device that is the host.
  virtual bool on_cpu() const = 0;

  // ids: (n) row ids of feasigns, -1 where there is none.
  virtual Status Find(const int64_t* feasigns, size_t n, int32_t* ids, void* stream) = 0;
  // out: (n, P).
  virtual Status Pull(const int32_t* ids, size_t n, float* out, void* stream) = 0;
  // out: (n, P + E).
  virtual Status PullExtended(const int32_t* ids, size_t n, float* out, void* stream) = 0;
  // out: (instances, slots * width + dense_width); dense: (instances, dense_width).
  virtual Status PullPooled(const DeviceBatch& batch, float* out, const float* dense,
                            void* stream) = 0;

  // int32 that a plan of so many ids may take.
  virtual size_t PlanRoom(size_t nnz) const = 0;
  // The dedup plan of a batch; of ids by themselves where it has no offsets.
  virtual Status Plan(const DeviceBatch& batch, int32_t* plan, void* stream) = 0;
  // grad: (n, P), scale: the batch size. plan: of n ids by themselves.
  virtual Status Push(const int32_t* plan, size_t plan_size, size_t n, const float* grad,
                      float scale, void* stream) = 0;
  // grad: (n, P + E).
  virtual Status PushExtended(const int32_t* plan, size_t plan_size, size_t n, const float* grad,
                              float scale, void* stream) = 0;
  // grad: as out of PullPooled. show_click: (instances, 2).
  virtual Status PushPooled(const DeviceBatch& batch, const int32_t* plan, size_t plan_size,
                            const float* show_click, const float* grad, void* stream) = 0;
};

// The rows of a table's open pass, for as long as it is open. The table gives them when a pass
// begins, and takes what pushes have changed when it ends; in between they are there, and what the
// host has of them is old.
class DevicePass : public DeviceRows {
 public:
  // Brings the rows of a pass there. events: life events that have happened; rows that the device
  // has from the pass before are current only while no other has. OutOfSpace.
  virtual Status Begin(const PassTable& pass, size_t events) = 0;
  // Waits for the device and writes the changed rows into pass, marked kTouched; with 16-bit rows
  // rounded, as RowCodec::Round does by pass_number. Adds what was met to counters. An error leaves
  // the pass open.
  virtual Status End(PassTable* pass, uint64_t pass_number, AccessCounters* counters) = 0;
  virtual void Abandon() = 0;
  // Which pushes count shows and clicks from now on: (65536) of 1 and 0, by the slot of their row;
  // empty: all. Waits for the device.
  virtual Status SetCounted(const std::vector<float>& counted) = 0;

  // For other ranks, by way of the host: as Pull and, with scale 1, Push, but that all arrays are
  // in the host's memory, and both return when all is done. From any thread.
  virtual Status PullToHost(const int32_t* ids, size_t n, float* out) = 0;
  // As RowAccess::HaveEmbedx.
  virtual Status HaveEmbedx(const int32_t* ids, size_t n, uint8_t* out) = 0;
  virtual Status PushFromHost(const int32_t* plan, size_t plan_size, size_t n,
                              const float* grad) = 0;
};

}  // namespace pbx
