// The device `paddlebox_gpu` of the stock Paddle wheel: what Paddle's CustomDevice interface asks
// of a device. Paddle loads the library from the folder that CUSTOM_DEVICE_ROOT names.
#include <cstring>
#include <memory>
#include <string>

#include "gpu/device.h"
#include "paddle/phi/backends/device_ext.h"

namespace pbx::gpu {
namespace {

std::string& LastError() {
  thread_local std::string error;
  return error;
}

C_Status Told(const Status& status) {
  if (status.ok()) return C_SUCCESS;
  LastError() = status.message();
  std::fprintf(stderr, "paddlebox: %s\n", status.message().c_str());
  return C_FAILED;
}

hbm::Stream Raw(C_Stream stream) { return reinterpret_cast<hbm::Stream>(stream); }
Event Raw(C_Event event) { return reinterpret_cast<Event>(event); }

// NOLINTBEGIN(misc-misplaced-const): Paddle's signatures.
// Runs f on the device.
template <class F>
C_Status On(const C_Device device, const F& f) {
  const hbm::OnDevice here(device->id);
  return Told(here.status().ok() ? f() : here.status());
}

// A copy that the host waits for.
template <class F>
C_Status Waiting(const C_Device device, const F& copy) {
  return On(device, [&]() -> Status {
    PBX_RETURN_IF_ERROR(copy());
    return hbm::Synchronize(nullptr);
  });
}

C_Status Nothing() { return C_SUCCESS; }
C_Status InitDevice(const C_Device device) { return Told(SetDevice(device->id)); }
C_Status DeinitDevice(const C_Device) { return C_SUCCESS; }
C_Status CurrentDevice(const C_Device device) { return Told(GetDevice(&device->id)); }
C_Status Count(size_t* count) {
  *count = static_cast<size_t>(DeviceCount(nullptr));
  return C_SUCCESS;
}
C_Status List(size_t* devices) {
  for (int device = 0; device < DeviceCount(nullptr); ++device) {
    devices[device] = static_cast<size_t>(device);
  }
  return C_SUCCESS;
}

C_Status NewStream(const C_Device device, C_Stream* stream) {
  return On(device, [&] { return OpenStream(reinterpret_cast<hbm::Stream*>(stream)); });
}
C_Status EndStream(const C_Device device, C_Stream stream) {
  return On(device, [&] { return CloseStream(Raw(stream)); });
}
C_Status QueryStream(const C_Device, C_Stream stream) {
  return IsDone(Raw(stream)) ? C_SUCCESS : C_FAILED;
}
C_Status WaitForStream(const C_Device device, C_Stream stream) {
  return On(device, [&] { return hbm::Synchronize(Raw(stream)); });
}
C_Status WaitForDevice(const C_Device device) { return On(device, hbm::SynchronizeAll); }

struct Callback {
  C_Device_st device;
  C_Stream stream;
  C_Callback function;
  void* argument;
};
void Call(void* argument) {
  const std::unique_ptr<Callback> callback(static_cast<Callback*>(argument));
  C_Status status = C_SUCCESS;
  callback->function(&callback->device, callback->stream, callback->argument, &status);
}
C_Status AddCallback(const C_Device device, C_Stream stream, C_Callback function, void* argument) {
  auto callback = std::make_unique<Callback>(Callback{*device, stream, function, argument});
  const Status status = Then(Raw(stream), Call, callback.get());
  // Call deletes it. NOLINTNEXTLINE(bugprone-unused-return-value)
  if (status.ok()) static_cast<void>(callback.release());
  return Told(status);
}

C_Status NewEvent(const C_Device device, C_Event* event) {
  return On(device, [&] { return OpenEvent(reinterpret_cast<Event*>(event)); });
}
C_Status EndEvent(const C_Device device, C_Event event) {
  return On(device, [&] { return CloseEvent(Raw(event)); });
}
C_Status RecordEvent(const C_Device device, C_Stream stream, C_Event event) {
  return On(device, [&] { return Record(Raw(event), Raw(stream)); });
}
C_Status QueryEvent(const C_Device, C_Event event) {
  return IsPast(Raw(event)) ? C_SUCCESS : C_FAILED;
}
C_Status WaitForEvent(const C_Device device, C_Event event) {
  return On(device, [&] { return WaitFor(Raw(event)); });
}
C_Status StreamWaitsFor(const C_Device device, C_Stream stream, C_Event event) {
  return On(device, [&] { return MakeWait(Raw(stream), Raw(event)); });
}

C_Status NewMemory(const C_Device device, void** data, size_t bytes) {
  return On(device, [&] { return Allocate("tensors of the program", bytes, false, data); });
}
C_Status EndMemory(const C_Device, void* data, size_t) {
  Free(data, false);
  return C_SUCCESS;
}
C_Status NewPinned(const C_Device device, void** data, size_t bytes) {
  return On(device, [&] { return Allocate("pinned memory of the program", bytes, true, data); });
}
C_Status EndPinned(const C_Device, void* data, size_t) {
  Free(data, true);
  return C_SUCCESS;
}
C_Status SetMemory(const C_Device device, void* data, unsigned char value, size_t bytes) {
  return On(device, [&] { return Fill(data, value, bytes); });
}
C_Status Stats(const C_Device device, size_t* all, size_t* left) {
  return Told(MemoryOf(device->id, all, left));
}
C_Status LeastChunk(const C_Device, size_t* bytes) {
  *bytes = 256;
  return C_SUCCESS;
}

C_Status Upload(const C_Device device, void* to, const void* from, size_t bytes) {
  return Waiting(device, [&] { return hbm::ToDevice(to, from, bytes, nullptr); });
}
C_Status Download(const C_Device device, void* to, const void* from, size_t bytes) {
  return Waiting(device, [&] { return hbm::ToHost(to, from, bytes, nullptr); });
}
C_Status Copy(const C_Device device, void* to, const void* from, size_t bytes) {
  return Waiting(device, [&] { return hbm::CopyOnDevice(to, from, bytes, nullptr); });
}
C_Status UploadInStream(const C_Device device, C_Stream stream, void* to, const void* from,
                        size_t bytes) {
  return On(device, [&] { return hbm::ToDevice(to, from, bytes, Raw(stream)); });
}
C_Status DownloadInStream(const C_Device device, C_Stream stream, void* to, const void* from,
                          size_t bytes) {
  return On(device, [&] { return hbm::ToHost(to, from, bytes, Raw(stream)); });
}
C_Status CopyInStream(const C_Device device, C_Stream stream, void* to, const void* from,
                      size_t bytes) {
  return On(device, [&] { return hbm::CopyOnDevice(to, from, bytes, Raw(stream)); });
}

void FillInterface(C_DeviceInterface* to) {
  const size_t size = to->size;
  std::memset(to, 0, sizeof(*to));
  to->size = size;
  to->initialize = to->finalize = Nothing;
  to->init_device = to->set_device = InitDevice;
  to->get_device = CurrentDevice;
  to->deinit_device = DeinitDevice;
  to->get_device_count = Count;
  to->get_device_list = List;
  to->create_stream = NewStream;
  to->destroy_stream = EndStream;
  to->query_stream = QueryStream;
  to->stream_add_callback = AddCallback;
  to->synchronize_stream = WaitForStream;
  to->synchronize_device = WaitForDevice;
  to->create_event = NewEvent;
  to->destroy_event = EndEvent;
  to->record_event = RecordEvent;
  to->query_event = QueryEvent;
  to->synchronize_event = WaitForEvent;
  to->stream_wait_event = StreamWaitsFor;
  to->device_memory_allocate = NewMemory;
  to->device_memory_deallocate = EndMemory;
  to->device_memory_set = SetMemory;
  to->host_memory_allocate = NewPinned;
  to->host_memory_deallocate = EndPinned;
  to->device_memory_stats = Stats;
  to->device_min_chunk_size = LeastChunk;
  to->memory_copy_h2d = Upload;
  to->memory_copy_d2h = Download;
  to->memory_copy_d2d = Copy;
  to->async_memory_copy_h2d = UploadInStream;
  to->async_memory_copy_d2h = DownloadInStream;
  to->async_memory_copy_d2d = CopyInStream;
}

// NOLINTEND(misc-misplaced-const)
}  // namespace
}  // namespace pbx::gpu

#define PBX_EXPORT extern "C" __attribute__((visibility("default")))

// Why there is no device: null if there is one.
PBX_EXPORT const char* pbx_gpu_missing() {
  const char* why = nullptr;
  return pbx::gpu::DeviceCount(&why) > 0 ? nullptr : why;
}

// Without a GPU it fills in nothing, and Paddle goes on without the device.
PBX_EXPORT void InitPlugin(CustomRuntimeParams* params) {
  PADDLE_CUSTOM_RUNTIME_CHECK_VERSION(params);
  if (pbx_gpu_missing() != nullptr) return;
  params->device_type = const_cast<char*>("paddlebox_gpu");
  params->sub_device_type = const_cast<char*>("");
  pbx::gpu::FillInterface(params->interface);
}
