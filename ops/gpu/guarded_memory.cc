// Device memory that host code cannot touch, for tests without a GPU: one range of addresses
// without access, which is opened while a kernel or a copy runs. If several threads use the device,
// an access of one of them may go unnoticed while another has opened it, but none is refused
// wrongly.
#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <unordered_map>

#include "cuda/host_memory.h"

namespace pbx::hbm {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kReserved = size_t{64} << 30;  // of addresses, not of memory

class Guarded {
 public:
  static Guarded& Get() {
    static auto* const guarded = new Guarded;  // never destroyed: Paddle frees memory at exit
    return *guarded;
  }

  void* Take(size_t bytes) {
    if (bytes > kReserved) return nullptr;
    const size_t size = (bytes + kPage - 1) / kPage * kPage + (bytes == 0 ? kPage : 0);
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto reused = free_.find(size);
    char* data = nullptr;
    if (reused != free_.end()) {
      data = reused->second;
      free_.erase(reused);
    } else {
      if (size > kReserved - used_) return nullptr;
      data = base_ + used_;
      if (opened_ > 0 && !Allow(data, size, true)) return nullptr;
      used_ += size;
    }
    sizes_[data] = size;
    return data;
  }

  void Give(void* data) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = sizes_.find(data);
    free_.emplace(found->second, static_cast<char*>(data));
    sizes_.erase(found);
  }

  void Open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (opened_++ == 0 && !Allow(base_, used_, true)) Fail();
  }

  void Close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (--opened_ == 0 && !Allow(base_, used_, false)) Fail();
  }

 private:
  Guarded() {
    void* const base =
        mmap(nullptr, kReserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) Fail();
    base_ = static_cast<char*>(base);
  }

  static bool Allow(void* from, size_t bytes, bool access) {
    return bytes == 0 || mprotect(from, bytes, access ? PROT_READ | PROT_WRITE : PROT_NONE) == 0;
  }
  [[noreturn]] static void Fail() {
    std::perror("paddlebox: guarded memory of the device");
    std::abort();
  }

  std::mutex mutex_;
  char* base_ = nullptr;
  size_t used_ = 0;  // from base_; only these bytes are ever opened
  int opened_ = 0;   // objects of OpenMemory that live
  std::unordered_map<void*, size_t> sizes_;
  std::multimap<size_t, char*> free_;  // by size
};

}  // namespace

void* TakeDeviceMemory(size_t bytes) { return Guarded::Get().Take(bytes); }
void GiveDeviceMemory(void* data) {
  if (data != nullptr) Guarded::Get().Give(data);
}
OpenMemory::OpenMemory() { Guarded::Get().Open(); }
OpenMemory::~OpenMemory() { Guarded::Get().Close(); }

}  // namespace pbx::hbm
