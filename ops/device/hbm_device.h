// The pass's rows in a GPU's memory, by ops/cuda. Built without CUDA its device is the host: the
// same calls and the same bits, for tests of everything but speed.
#pragma once

#include <memory>
#include <string>

#include "table/device_rows.h"
#include "table/table.h"

namespace pbx {

struct HbmDeviceConfig {
  int device = 0;
  bool host_is_device = false;  // what the caller expects of this build
};

// "cuda" or "host": what ops/cuda was compiled for.
const char* HbmBackend();

// FailedPrecondition where that is not what the caller expects. table: its name.
Status CheckBackend(const std::string& table, const HbmDeviceConfig& config);

// Opens the device when the first pass begins, so that a store can be read where there is none.
// table: its accessor, slot_rates, precision and what becomes of bad gradients.
std::unique_ptr<DevicePass> NewHbmDevice(const TableConfig& table, const HbmDeviceConfig& config);

}  // namespace pbx
