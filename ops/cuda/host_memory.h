// The memory of the device in the host build, where the host is the device. host_memory.cu takes it
// from the heap. ops/gpu/guarded_memory.cc, which may be linked in its place, protects it, so that
// host code that touches it crashes as it would with a GPU.
#pragma once

#include <cstddef>

namespace pbx::hbm {

void* TakeDeviceMemory(size_t bytes);  // aligned to 256; null: there is no more
void GiveDeviceMemory(void* data);     // null is fine

// While an object lives, the device's memory may be touched. Kernels and copies hold one.
class OpenMemory {
 public:
  OpenMemory();
  ~OpenMemory();  // NOLINT(performance-trivially-destructible): the guard of ops/gpu closes here
  OpenMemory(const OpenMemory&) = delete;
  OpenMemory& operator=(const OpenMemory&) = delete;
};

}  // namespace pbx::hbm
