// Memory of the device, copies to and from it, and events in streams.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/status.h"
#include "cuda/launch.h"

namespace pbx::hbm {

Status ToDevice(void* device, const void* host, size_t bytes, Stream stream);
Status ToHost(void* host, const void* device, size_t bytes, Stream stream);
Status CopyOnDevice(void* to, const void* from, size_t bytes, Stream stream);
Status CopyRowsOnDevice(void* to, size_t to_stride, const void* from, size_t from_stride,
                        size_t bytes, size_t rows, Stream stream);
Status SetZero(void* device, size_t bytes, Stream stream);
Status Synchronize(Stream stream);
Status SynchronizeAll();  // every stream of the device

// A block of device memory, or of pinned host memory, which the device copies from and to.
class Memory {
 public:
  enum class Where { kDevice, kPinned };

  Memory() = default;
  ~Memory() { Free(data_, where_); }
  Memory(Memory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        where_(other.where_) {}
  Memory& operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(where_, other.where_);
    return *this;
  }

  // what: its name in errors. OutOfSpace, with the bytes needed and free.
  static Result<Memory> New(const char* what, size_t bytes, Where where = Where::kDevice);

  // Makes the block at least so large. If it grows, its contents are lost.
  Status Grow(const char* what, size_t bytes);

  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }

  // Gives the block to the caller, who must call Free.
  void* Release() { return std::exchange(data_, nullptr); }
  static void Free(void* data, Where where);

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  Where where_ = Where::kDevice;
};

// A stream that does not synchronise with the default one.
class OwnStream {
 public:
  OwnStream() = default;
  ~OwnStream();  // NOLINT(performance-trivially-destructible): only on the host
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  Status Open();
  Stream get() const { return stream_; }

 private:
  Stream stream_ = nullptr;
};

// A point in a stream.
class Event {
 public:
  Event() = default;
  ~Event();  // NOLINT(performance-trivially-destructible): only on the host
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  Status Record(Stream stream);
  Status Wait();  // until it has passed; no wait if it was never recorded

 private:
#ifdef __CUDACC__
  cudaEvent_t event_ = nullptr;
#else
  Stream stream_ = nullptr;
  uint64_t added_ = 0;  // to the stream before the event
#endif
};

// Selects a device for the thread as long as the object lives.
class OnDevice {
 public:
  explicit OnDevice(int device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  const Status& status() const { return status_; }

 private:
  int before_ = 0;
  Status status_;
};

Status CheckDevice(int device);

}  // namespace pbx::hbm
