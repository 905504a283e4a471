// std::condition_variable::wait for the extension, whose linker replaces it (--wrap in setup.py).
//
// Since GCC 12 libstdc++ has it under the symbol version GLIBCXX_3.4.30. It would be the only such
// symbol of the extension, and a wheel would not load on systems with an older libstdc++, such as
// RHEL 9. This does the same as libstdc++.

#include <pthread.h>

#include <condition_variable>
#include <mutex>

// NOLINTNEXTLINE(bugprone-reserved-identifier): the linker gives the name
extern "C" void __wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(
    std::condition_variable* condition, std::unique_lock<std::mutex>& lock) noexcept;

// NOLINTNEXTLINE(bugprone-reserved-identifier)
extern "C" void __wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(
    std::condition_variable* condition, std::unique_lock<std::mutex>& lock) noexcept {
  pthread_cond_wait(condition->native_handle(), lock.mutex()->native_handle());
}
