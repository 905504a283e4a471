#include "cuda/host_memory.h"

#ifndef __CUDACC__

#include <cstdint>
#include <cstdlib>

namespace pbx::hbm {

void* TakeDeviceMemory(size_t bytes) {
  void* data = nullptr;
  if (bytes > SIZE_MAX / 2 || posix_memalign(&data, 256, bytes) != 0) return nullptr;
  return data;
}
void GiveDeviceMemory(void* data) { std::free(data); }
OpenMemory::OpenMemory() = default;
OpenMemory::~OpenMemory() = default;

}  // namespace pbx::hbm

#endif
