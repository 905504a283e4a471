// The rows of a pass in the memory of a GPU, using ops/cuda. Without CUDA the device is the host:
// it makes the same calls and gives the same bits, so that everything except speed can be tested.
#pragma once

#include <memory>
#include <string>

#include "table/device_rows.h"
#include "table/table.h"

namespace pbx {

struct HbmDeviceConfig {
  int device = 0;
  bool host_is_device = false;  // the build that the caller expects
};

// "plugged in" if rows are on the device of libpaddlebox_gpu.so. Else "cuda" or "host": the device
// that ops/cuda was compiled for.
const char* HbmBackend();

// FailedPrecondition if HbmBackend is not what config expects. table: its name, for the message.
Status CheckBackend(const std::string& table, const HbmDeviceConfig& config);

// Opens the device when the first pass is staged for training or begins, so that a store can be
// read on a machine without one. Of table it uses name, threads, accessor, slot_rates, precision,
// on_bad_grad and bad_grad_bound.
std::unique_ptr<DevicePass> NewHbmDevice(const TableConfig& table, const HbmDeviceConfig& config);

}  // namespace pbx
