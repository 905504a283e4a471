#include "base/map_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>

namespace pbx {
namespace {

// The handler may interrupt any thread at any point, so it uses only these atomics and mmap.
struct Slot {
  std::atomic<uintptr_t> begin{0}, end{0};  // end 0: the slot is free
  std::atomic<bool> shrunk{false};
};
Slot slots[256];
uintptr_t page_bytes;
struct sigaction before;

bool Replaced(uintptr_t at) {
  for (Slot& slot : slots) {
    const uintptr_t end = slot.end.load();
    if (at >= end || at < slot.begin.load()) continue;
    const uintptr_t page = at / page_bytes * page_bytes;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the kernel reports an address
    void* const start = reinterpret_cast<void*>(page);
    slot.shrunk = true;
    return mmap(start, end - page, PROT_READ,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) != MAP_FAILED;
  }
  return false;
}

void OnSigbus(int number, siginfo_t* info, void* context) {
  const int saved = errno;
  const bool replaced =
      info->si_code == BUS_ADRERR && Replaced(reinterpret_cast<uintptr_t>(info->si_addr));
  errno = saved;
  if (replaced) return;
  if ((before.sa_flags & SA_SIGINFO) != 0) return before.sa_sigaction(number, info, context);
  if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    return before.sa_handler(number);
  }
  (void)sigaction(SIGBUS, &before, nullptr);
  (void)raise(SIGBUS);
}

bool Install() {
  page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  struct sigaction own = {};
  own.sa_sigaction = &OnSigbus;
  own.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  return sigaction(SIGBUS, nullptr, &before) == 0 && sigaction(SIGBUS, &own, nullptr) == 0;
}

}  // namespace

Result<std::unique_ptr<MapGuard>> MapGuard::Of(uintptr_t begin, size_t bytes) {
  static const bool installed = Install();
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  for (size_t i = 0; installed && i < std::size(slots); ++i) {
    if (slots[i].end != 0) continue;
    slots[i].shrunk = false;
    slots[i].begin = begin;
    slots[i].end = begin + bytes;
    return std::unique_ptr<MapGuard>(new MapGuard(i));
  }
  return Error(Code::kFailedPrecondition,
               "the map of a file cannot be guarded: expected at most %zu open files and leave to "
               "handle SIGBUS",
               std::size(slots));
}

MapGuard::~MapGuard() { slots[slot_].end = 0; }

bool MapGuard::shrunk() const { return slots[slot_].shrunk; }

}  // namespace pbx
