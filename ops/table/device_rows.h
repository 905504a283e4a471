// DeviceRows: rows in the memory of a device, for operators whose tensors are there. The rows are
// those of a pass (DevicePass), or those of a batch, which other ranks own.
//
// Arrays are in the device's memory. Functions with a `stream` (null: the default stream) enqueue
// work and do not wait. The errors that the device finds are returned by a later call, at the
// latest by End. FailedPrecondition if no pass is open.
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

// The ids of a batch, and where the ids of each slot of each instance are, as in
// RowAccess::PullPooled.
struct BatchIds {
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

  // Whether the device is the host, so that tensors must be on the CPU.
  virtual bool on_cpu() const = 0;

  // ids: (n) gets the row id of each feasign, -1: none.
  virtual Status Find(const int64_t* feasigns, size_t n, int32_t* ids, void* stream) = 0;
  // out: (n, P).
  virtual Status Pull(const int32_t* ids, size_t n, float* out, void* stream) = 0;
  // out: (n, P + E).
  virtual Status PullExtended(const int32_t* ids, size_t n, float* out, void* stream) = 0;
  // out: (instances, slots * width + dense_width); dense: (instances, dense_width).
  virtual Status PullPooled(const BatchIds& batch, float* out, const float* dense,
                            void* stream) = 0;

  // The most int32 that a plan of nnz ids may take.
  virtual size_t PlanRoom(size_t nnz) const = 0;
  // The dedup plan of a batch. Without offsets each id is its own segment.
  virtual Status Plan(const BatchIds& batch, int32_t* plan, void* stream) = 0;
  // grad: (n, P), scale: the batch size. plan: made of n ids without offsets.
  virtual Status Push(const int32_t* plan, size_t plan_size, size_t n, const float* grad,
                      float scale, void* stream) = 0;
  // grad: (n, P + E).
  virtual Status PushExtended(const int32_t* plan, size_t plan_size, size_t n, const float* grad,
                              float scale, void* stream) = 0;
  // grad: shaped as `out` of PullPooled. show_click: (instances, 2).
  virtual Status PushPooled(const BatchIds& batch, const int32_t* plan, size_t plan_size,
                            const float* show_click, const float* grad, void* stream) = 0;
};

// The rows of a table's open pass. The table hands them over when a pass begins and takes back the
// changed rows when it ends. In between the rows on the device are current and those on the host
// are not. Stage may run beside all functions but Begin, Abandon and itself.
class DevicePass : public DeviceRows {
 public:
  // Copies the rows of the next training pass to the device, while another pass may be open. Leaves
  // out those in `awaited`, which the open pass may change. events: the number of life events so
  // far. After an error, Begin copies all rows.
  virtual void Stage(const PassTable& pass, const std::vector<uint32_t>& awaited,
                     size_t events) = 0;
  // Opens a pass: copies those of its rows that the device does not have. Rows that the device has
  // by Stage or from the last pass are current only if there was no event since. OutOfSpace.
  virtual Status Begin(const PassTable& pass, size_t events) = 0;
  // Waits for the device and writes the changed rows into pass, marked kTouched. If rows are stored
  // with 16 bits, rounds them as RowCodec::Round does with pass_number. Adds to counters. An error
  // leaves the pass open.
  virtual Status End(PassTable* pass, uint64_t pass_number, AccessCounters* counters) = 0;
  virtual void Abandon() = 0;
  // Sets which pushes count shows and clicks from now on. counted: (65536) indexed by the slot of
  // the row, 1: counts, 0: does not; empty: all count. Waits for the device.
  virtual Status SetCounted(const std::vector<float>& counted) = 0;

  // For requests of other ranks, and for pushes that were held on the host. These functions work
  // like Pull and like Push with scale 1, but all arrays are in the host's memory, and they return
  // when the work is done. Any thread may call them. PushFromHost: grad (n, P + E).
  virtual Status PullToHost(const int32_t* ids, size_t n, float* out) = 0;
  // As RowAccess::HaveEmbedx.
  virtual Status HaveEmbedx(const int32_t* ids, size_t n, uint8_t* out) = 0;
  virtual Status PushFromHost(const int32_t* plan, size_t plan_size, size_t n,
                              const float* grad) = 0;
};

}  // namespace pbx
