// Buffer: a zeroed block of memory; from 2 MiB on aligned to 2 MiB, offered to the kernel for huge
// pages, and spread over the machine's NUMA nodes. Random access to rows costs a TLB miss each on
// 4 KB pages (22 against 58 M row updates a second).
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/status.h"

namespace pbx {

class Buffer {
 public:
  // Buffers of this size and more start on such a page; their end is on small ones.
  static constexpr size_t kHugePage = 2u << 20;
  static constexpr size_t kSmallPage = 4096;

  Buffer() = default;
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  // Zeroed memory of `bytes`; OutOfSpace with the size when the system has none. 0 bytes is legal.
  static Result<Buffer> Allocate(size_t bytes);

  char* data() { return data_; }
  const char* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  char* data_ = nullptr;
  size_t size_ = 0;
  size_t mapped_ = 0;
};

}  // namespace pbx
