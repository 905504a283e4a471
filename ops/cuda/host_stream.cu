#include "cuda/host_stream.h"

#ifndef __CUDACC__

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <set>

namespace pbx::hbm {
namespace {

struct All {
  std::recursive_mutex mutex;  // taken before the mutex of a stream
  std::set<HostStream*> streams;
  std::map<const char*, size_t> pinned;  // the bytes at each address
};
All& Every() {
  static auto* const all = new All;  // never destroyed: Paddle frees memory at exit
  return *all;
}

bool StreamsAreLate() {
  const char* const late = std::getenv("PADDLEBOX_DEVICE_LATE");
  return late != nullptr && std::strcmp(late, "1") == 0;
}

}  // namespace

HostStream::HostStream() : late_(StreamsAreLate()) {
  const std::lock_guard<std::recursive_mutex> lock(Every().mutex);
  Every().streams.insert(this);
}

HostStream::~HostStream() {
  const std::lock_guard<std::recursive_mutex> lock(Every().mutex);
  WaitFor(added());
  Every().streams.erase(this);
}

void HostStream::Add(std::function<void()> work) {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  work_.push_back(std::move(work));
  ++added_;
}

uint64_t HostStream::added() const {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  return added_;
}

void HostStream::WaitFor(uint64_t added) {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  while (!work_.empty() && added_ - work_.size() < added) {
    const std::function<void()> work = std::move(work_.front());
    work_.pop_front();
    work();
  }
}

void HostStream::WaitForAll() {
  const std::lock_guard<std::recursive_mutex> lock(Every().mutex);
  for (HostStream* stream : Every().streams) stream->WaitFor(stream->added());
}

void NotePinned(const void* data, size_t bytes) {
  const std::lock_guard<std::recursive_mutex> lock(Every().mutex);
  if (bytes != 0) {
    Every().pinned[static_cast<const char*>(data)] = bytes;
  } else {
    Every().pinned.erase(static_cast<const char*>(data));
  }
}

bool IsPinned(const void* data) {
  const std::lock_guard<std::recursive_mutex> lock(Every().mutex);
  const auto after = Every().pinned.upper_bound(static_cast<const char*>(data));
  if (after == Every().pinned.begin()) return false;
  const auto& [begin, bytes] = *std::prev(after);
  return static_cast<const char*>(data) < begin + bytes;
}

}  // namespace pbx::hbm

#endif
