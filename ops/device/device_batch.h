// DeviceBatchTable: a BatchTable (table/batch_table.h) with its rows in the memory of a device.
// Rows to fill in and merged gradients are in the host's memory.
//
//   Prepare(keys) -> Fill ... -> Open -> operators -> Merged -> Prepare ...
//
// Thread safety: as BatchTable.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/hbm_device.h"
#include "table/batch_table.h"

namespace pbx {

class DeviceBatchTable : public RowAccess {
 public:
  DeviceBatchTable(const BatchTableConfig& config, const HbmDeviceConfig& device);
  ~DeviceBatchTable() override;

  const std::string& name() const override { return name_; }
  const RowLayout& layout() const override { return layout_; }
  DeviceRows* device() const override;

  // keys: (n) ascending. Its rows are zeros until they are filled. stamp: > 0, as in the batch's
  // plan. read_only: the batch is for evaluation. Opens the device for the first batch.
  Status Prepare(int32_t stamp, const uint64_t* keys, size_t n, bool read_only);
  // values: (count, P). at: (count) indexes of prepared rows, or null: [first, first + count).
  Status Fill(size_t first, const int32_t* at, size_t count, const float* values);
  // Opens the prepared batch, which replaces the batch that was open.
  Status Open();
  Status EndPushes();  // as BatchTable::EndPushes

  // Waits for the pushes of the open batch and copies the merged gradients of its rows. out: (rows,
  // P). Returns the errors that the device has found (see DeviceRows).
  Status Merged(float* out);
  size_t rows() const;
  size_t columns() const { return 3 + static_cast<size_t>(layout_.embedx_dim); }  // P

  // FailedPrecondition: operators on the device look rows up there.
  Status Translate(const uint64_t* feasigns, size_t n, int32_t* out) override;

 protected:
  Result<OpenRows> Open(const char* what) const override;
  Result<OpenRows> OpenToHold() const override;
  Status PushStep(const OpenRows& open, const std::vector<int32_t>& rows,
                  const std::vector<float>& values, bool late) override;
  int32_t stamp() const override;

 private:
  class Rows;

  std::string name_;
  RowLayout layout_;
  AccessorConfig accessor_;  // only its layout is used
  std::vector<float> sums_;  // (rows, P) of the steps whose pushes were held; empty: none
  std::unique_ptr<Rows> rows_;
};

}  // namespace pbx
