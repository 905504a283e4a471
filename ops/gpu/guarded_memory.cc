// Device memory that host code cannot touch, for tests without a GPU: one range of addresses
// without access, which is opened while a kernel or a copy runs. Huge pages make that cheap: with
// 100 MB of small ones, it takes longer than most kernels. If several threads use the device, an
// access of one of them may go unnoticed while another has opened it, but none is refused wrongly.
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

constexpr size_t kPage = 4096, kHugePage = size_t{2} << 20;
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
      used_ += size;
      if (opened_ > 0 && !Allow(true)) Fail();
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
    if (opened_++ == 0 && !Allow(true)) Fail();
  }

  void Close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (--opened_ == 0 && !Allow(false)) Fail();
  }

 private:
  Guarded() {
    void* const base = mmap(nullptr, kReserved + kHugePage, PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) Fail();
    base_ = static_cast<char*>(base) + -reinterpret_cast<uintptr_t>(base) % kHugePage;
    madvise(base_, kReserved, MADV_HUGEPAGE);  // without them, it is only slower
  }

  // Whole huge pages: a part of one would be split.
  bool Allow(bool access) const {
    const size_t bytes = (used_ + kHugePage - 1) / kHugePage * kHugePage;
    return bytes == 0 || mprotect(base_, bytes, access ? PROT_READ | PROT_WRITE : PROT_NONE) == 0;
  }
  [[noreturn]] static void Fail() {
    std::perror("paddlebox: guarded memory of the device");
    std::abort();
  }

  std::mutex mutex_;
  char* base_ = nullptr;
  size_t used_ = 0;  // from base_
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
