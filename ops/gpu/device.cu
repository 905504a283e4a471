#include "gpu/device.h"

#include <cstring>

namespace pbx::gpu {

Status Allocate(const char* what, size_t bytes, bool pinned, void** data) {
  using hbm::Memory;
  Result<Memory> memory =
      Memory::New(what, bytes, pinned ? Memory::Where::kPinned : Memory::Where::kDevice);
  if (!memory.ok()) return memory.status();
  *data = memory.value().Release();
  return Status::Ok();
}
void Free(void* data, bool pinned) {
  hbm::Memory::Free(data, pinned ? hbm::Memory::Where::kPinned : hbm::Memory::Where::kDevice);
}

#ifdef __CUDACC__

using hbm::CudaStatus;

int DeviceCount(const char** why) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) cudaGetLastError();
  if (why != nullptr) *why = error == cudaSuccess ? "no NVIDIA GPU" : cudaGetErrorString(error);
  return error == cudaSuccess ? count : 0;
}
Status SetDevice(int device) { return CudaStatus(cudaSetDevice(device), "choosing the GPU"); }
Status GetDevice(int* device) { return CudaStatus(cudaGetDevice(device), "the current GPU"); }
Status MemoryOf(int device, size_t* all, size_t* left) {
  const hbm::OnDevice here(device);
  if (!here.status().ok()) return here.status();
  return CudaStatus(cudaMemGetInfo(left, all), "memory of the GPU");
}
Status Fill(void* data, unsigned char value, size_t bytes) {
  return CudaStatus(cudaMemset(data, value, bytes), "setting memory of the GPU");
}

Status OpenStream(Stream* stream) {
  return CudaStatus(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), "a stream");
}
Status CloseStream(Stream stream) { return CudaStatus(cudaStreamDestroy(stream), "a stream"); }
bool IsDone(Stream stream) { return cudaStreamQuery(stream) == cudaSuccess; }
Status Then(Stream stream, void (*function)(void*), void* argument) {
  return CudaStatus(cudaLaunchHostFunc(stream, function, argument), "a callback of a stream");
}

Status OpenEvent(Event* event) {
  return CudaStatus(
      cudaEventCreateWithFlags(reinterpret_cast<cudaEvent_t*>(event), cudaEventDisableTiming),
      "an event");
}
Status CloseEvent(Event event) {
  return CudaStatus(cudaEventDestroy(static_cast<cudaEvent_t>(event)), "an event");
}
Status Record(Event event, Stream stream) {
  return CudaStatus(cudaEventRecord(static_cast<cudaEvent_t>(event), stream), "an event");
}
bool IsPast(Event event) { return cudaEventQuery(static_cast<cudaEvent_t>(event)) == cudaSuccess; }
Status WaitFor(Event event) {
  return CudaStatus(cudaEventSynchronize(static_cast<cudaEvent_t>(event)), "waiting for the GPU");
}
Status MakeWait(Stream stream, Event event) {
  return CudaStatus(cudaStreamWaitEvent(stream, static_cast<cudaEvent_t>(event), 0), "an event");
}

#else  // the host as the device

int DeviceCount(const char** why) {
  if (why != nullptr) *why = "";
  return 1;
}
Status SetDevice(int device) { return hbm::CheckDevice(device); }
Status GetDevice(int* device) {
  *device = 0;
  return Status::Ok();
}
Status MemoryOf(int, size_t* all, size_t* left) {
  *all = *left = size_t{32} << 30;
  return Status::Ok();
}
Status Fill(void* data, unsigned char value, size_t bytes) {
  const hbm::OpenMemory open;
  std::memset(data, value, bytes);
  return Status::Ok();
}

Status OpenStream(Stream* stream) {
  *stream = new hbm::HostStream;
  return Status::Ok();
}
Status CloseStream(Stream stream) {
  delete stream;
  return Status::Ok();
}
bool IsDone(Stream stream) { return hbm::Synchronize(stream).ok(); }
Status Then(Stream stream, void (*function)(void*), void* argument) {
  hbm::InStream(stream, [function, argument] { function(argument); });
  return Status::Ok();
}

Status OpenEvent(Event* event) {
  *event = new hbm::Event;
  return Status::Ok();
}
Status CloseEvent(Event event) {
  delete static_cast<hbm::Event*>(event);
  return Status::Ok();
}
Status Record(Event event, Stream stream) {
  return static_cast<hbm::Event*>(event)->Record(stream);
}
bool IsPast(Event event) { return WaitFor(event).ok(); }
Status WaitFor(Event event) { return static_cast<hbm::Event*>(event)->Wait(); }
Status MakeWait(Stream, Event event) { return WaitFor(event); }

#endif

}  // namespace pbx::gpu
