// DeviceBatchTable: as BatchTable (table/batch_table.h), its rows in the memory of a device. What
// is filled in, and what pushes have merged, is in the host's.
//
//   Prepare(keys) -> Fill ... -> Open -> operators -> Merged -> Prepare ...
//
// Thread safety: as BatchTable.
#pragma once

#include <memory>
#include <string>

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

  // keys: (n) ascending. Its rows read as zeros until they are filled. stamp: > 0, as in the
  // batch's plan. read_only: of an evaluation. Opens the device when the first batch comes.
  Status Prepare(int32_t stamp, const uint64_t* keys, size_t n, bool read_only);
  // values: (count, P). at: (count) places among the prepared rows, or null: [first, first +
  // count).
  Status Fill(size_t first, const int32_t* at, size_t count, const float* values);
  // The prepared batch is the open one from here on; that before it is gone.
  Status Open();

  // What pushes have merged for each row of the open batch, once they are done. out: (rows, P).
  // Tells what they met, as DeviceRows says.
  Status Merged(float* out);
  size_t rows() const;
  size_t columns() const { return 3 + static_cast<size_t>(layout_.embedx_dim); }  // P

  // The device's operators find rows there: FailedPrecondition.
  Status Translate(const uint64_t* feasigns, size_t n, int32_t* out) override;

 protected:
  Result<OpenRows> Open(const char* what) const override;
  int32_t stamp() const override;

 private:
  class Rows;

  std::string name_;
  RowLayout layout_;
  std::unique_ptr<Rows> rows_;
};

}  // namespace pbx
