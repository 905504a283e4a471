// A stream of the host build, where the host is the device. Its work is done at once. If
// PADDLEBOX_DEVICE_LATE is 1 when it is opened, its work is done when the host waits for it, as
// late as a GPU may do it: tests with it find waits that are missing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>

namespace pbx::hbm {

class HostStream {
 public:
  HostStream();
  ~HostStream();  // waits
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;

  bool late() const { return late_; }
  void Add(std::function<void()> work);
  uint64_t added() const;        // how much work, since it was opened
  void WaitFor(uint64_t added);  // does the first `added` of it
  static void WaitForAll();      // does the work of all streams

 private:
  const bool late_;
  mutable std::recursive_mutex mutex_;
  std::deque<std::function<void()>> work_;
  uint64_t added_ = 0;
};

template <class F>
void InStream(HostStream* stream, F f) {
  if (stream == nullptr || !stream->late()) return f();
  stream->Add(std::move(f));
}

// Host memory that the device copies asynchronously. On a GPU, a copy from or to other memory of
// the host has read or written it when the call returns.
void NotePinned(const void* data, size_t bytes);  // 0: no longer
bool IsPinned(const void* data);

}  // namespace pbx::hbm
