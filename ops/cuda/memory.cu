#include "cuda/memory.h"

#include <cstdlib>
#include <cstring>
#include <vector>

namespace pbx::hbm {

#ifdef __CUDACC__

Status CudaStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return Status::Ok();
  const Code code = error == cudaErrorMemoryAllocation ? Code::kOutOfSpace : Code::kIOError;
  return Error(code, "%s: %s (%s)", what, cudaGetErrorString(error), cudaGetErrorName(error));
}

namespace {

Status Copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, const char* where,
            Stream stream) {
  if (bytes == 0) return Status::Ok();
  const Status status = CudaStatus(cudaMemcpyAsync(to, from, bytes, kind, stream), where);
  if (status.ok()) return status;
  return Error(status.code(), "%zu bytes: %s", bytes, status.message().c_str());
}

}  // namespace

Status ToDevice(void* device, const void* host, size_t bytes, Stream stream) {
  return Copy(device, host, bytes, cudaMemcpyHostToDevice, "copy to the device", stream);
}
Status ToHost(void* host, const void* device, size_t bytes, Stream stream) {
  return Copy(host, device, bytes, cudaMemcpyDeviceToHost, "copy from the device", stream);
}
Status CopyOnDevice(void* to, const void* from, size_t bytes, Stream stream) {
  return Copy(to, from, bytes, cudaMemcpyDeviceToDevice, "copy on the device", stream);
}
Status CopyRowsOnDevice(void* to, size_t to_stride, const void* from, size_t from_stride,
                        size_t bytes, size_t rows, Stream stream) {
  if (bytes == 0 || rows == 0) return Status::Ok();
  return CudaStatus(cudaMemcpy2DAsync(to, to_stride, from, from_stride, bytes, rows,
                                      cudaMemcpyDeviceToDevice, stream),
                    "copy of rows on the device");
}
Status SetZero(void* device, size_t bytes, Stream stream) {
  if (bytes == 0) return Status::Ok();
  return CudaStatus(cudaMemsetAsync(device, 0, bytes, stream), "zeros on the device");
}
Status Synchronize(Stream stream) {
  return CudaStatus(cudaStreamSynchronize(stream), "waiting for the device");
}
Status SynchronizeAll() { return CudaStatus(cudaDeviceSynchronize(), "waiting for the device"); }

Result<Memory> Memory::New(const char* what, size_t bytes, Where where) {
  Memory memory;
  memory.where_ = where;
  if (bytes == 0) return Result<Memory>(std::move(memory));
  const cudaError_t error = where == Where::kDevice ? cudaMalloc(&memory.data_, bytes)
                                                    : cudaMallocHost(&memory.data_, bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // reported here, and cleared, so that the next call does not report it
    size_t left = 0, all = 0;
    cudaMemGetInfo(&left, &all);
    return Error(Code::kOutOfSpace, "%s: %zu bytes of %s needed, the device has %zu of %zu free",
                 what, bytes, where == Where::kDevice ? "device memory" : "pinned memory", left,
                 all);
  }
  PBX_RETURN_IF_ERROR(CudaStatus(error, what));
  memory.bytes_ = bytes;
  return Result<Memory>(std::move(memory));
}

void Memory::Free(void* data, Where where) {
  if (data == nullptr) return;
  if (where == Where::kDevice) {
    cudaFree(data);
  } else {
    cudaFreeHost(data);
  }
}

Status OwnStream::Open() {
  return CudaStatus(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
}
OwnStream::~OwnStream() {
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

Status Event::Record(Stream stream) {
  if (event_ == nullptr) {
    PBX_RETURN_IF_ERROR(
        CudaStatus(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "an event"));
  }
  return CudaStatus(cudaEventRecord(event_, stream), "an event");
}
Status Event::Wait() {
  if (event_ == nullptr) return Status::Ok();
  return CudaStatus(cudaEventSynchronize(event_), "waiting for the device");
}
Event::~Event() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}

OnDevice::OnDevice(int device) {
  status_ = CudaStatus(cudaGetDevice(&before_), "the current device");
  if (status_.ok()) status_ = CudaStatus(cudaSetDevice(device), "choosing the device");
}
OnDevice::~OnDevice() { cudaSetDevice(before_); }

Status CheckDevice(int device) {
  int count = 0;
  PBX_RETURN_IF_ERROR(CudaStatus(cudaGetDeviceCount(&count), "counting devices"));
  if (device >= 0 && device < count) return Status::Ok();
  return Error(Code::kInvalidArgument, "device %d: there are %d devices, numbered from 0", device,
               count);
}

#else  // the host as the device

Status ToDevice(void* device, const void* host, size_t bytes, Stream stream) {
  if (bytes == 0) return Status::Ok();
  std::vector<char> kept;
  if (stream != nullptr && stream->late() && !IsPinned(host)) {
    kept.assign(static_cast<const char*>(host), static_cast<const char*>(host) + bytes);
  }
  InStream(stream, [device, host, bytes, kept = std::move(kept)] {
    const OpenMemory open;
    std::memcpy(device, kept.empty() ? host : kept.data(), bytes);
  });
  return Status::Ok();
}
Status ToHost(void* host, const void* device, size_t bytes, Stream stream) {
  if (bytes == 0) return Status::Ok();
  InStream(stream, [host, device, bytes] {
    const OpenMemory open;
    std::memcpy(host, device, bytes);
  });
  return IsPinned(host) ? Status::Ok() : Synchronize(stream);
}
Status CopyOnDevice(void* to, const void* from, size_t bytes, Stream stream) {
  if (bytes == 0) return Status::Ok();
  InStream(stream, [to, from, bytes] {
    const OpenMemory open;
    std::memmove(to, from, bytes);
  });
  return Status::Ok();
}
Status CopyRowsOnDevice(void* to, size_t to_stride, const void* from, size_t from_stride,
                        size_t bytes, size_t rows, Stream stream) {
  if (bytes == 0) return Status::Ok();
  InStream(stream, [=] {
    const OpenMemory open;
    for (size_t i = 0; i < rows; ++i) {
      std::memcpy(static_cast<char*>(to) + i * to_stride,
                  static_cast<const char*>(from) + i * from_stride, bytes);
    }
  });
  return Status::Ok();
}
Status SetZero(void* device, size_t bytes, Stream stream) {
  if (bytes == 0) return Status::Ok();
  InStream(stream, [device, bytes] {
    const OpenMemory open;
    std::memset(device, 0, bytes);
  });
  return Status::Ok();
}
Status Synchronize(Stream stream) {
  if (stream != nullptr) stream->WaitFor(stream->added());
  return Status::Ok();
}
Status SynchronizeAll() {
  HostStream::WaitForAll();
  return Status::Ok();
}

Result<Memory> Memory::New(const char* what, size_t bytes, Where where) {
  Memory memory;
  memory.where_ = where;
  if (bytes == 0) return Result<Memory>(std::move(memory));
  memory.data_ = where == Where::kDevice ? TakeDeviceMemory(bytes) : std::malloc(bytes);
  if (memory.data_ == nullptr) {
    return Error(Code::kOutOfSpace, "%s: cannot allocate %zu bytes", what, bytes);
  }
  if (where == Where::kPinned) NotePinned(memory.data_, bytes);
  memory.bytes_ = bytes;
  return Result<Memory>(std::move(memory));
}

void Memory::Free(void* data, Where where) {
  if (data == nullptr) return;
  HostStream::WaitForAll();  // as cudaFree does
  if (where == Where::kDevice) return GiveDeviceMemory(data);
  NotePinned(data, 0);
  std::free(data);
}

Status OwnStream::Open() {
  stream_ = new HostStream;
  return Status::Ok();
}
OwnStream::~OwnStream() { delete stream_; }
Status Event::Record(Stream stream) {
  stream_ = stream;
  added_ = stream == nullptr ? 0 : stream->added();
  return Status::Ok();
}
Status Event::Wait() {
  if (stream_ != nullptr) stream_->WaitFor(added_);
  return Status::Ok();
}
Event::~Event() = default;
OnDevice::OnDevice(int) {}
OnDevice::~OnDevice() = default;

Status CheckDevice(int device) {
  if (device == 0) return Status::Ok();
  return Error(Code::kInvalidArgument, "device %d: there is only device 0", device);
}

#endif

Status Memory::Grow(const char* what, size_t bytes) {
  if (bytes <= bytes_) return Status::Ok();
  Result<Memory> larger = New(what, bytes + bytes / 4, where_);
  if (!larger.ok()) return larger.status();
  *this = std::move(larger.value());
  return Status::Ok();
}

}  // namespace pbx::hbm
