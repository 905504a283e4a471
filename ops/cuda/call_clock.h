// How long the device is at calls: a moment of the stream before each and one behind it, looked at
// when both have passed. No call waits.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "cuda/launch.h"

namespace pbx::hbm {

class CallClock {
 public:
  // A call under way.
  struct Span {
#ifdef __CUDACC__
    cudaEvent_t begin = nullptr, end = nullptr;
#else
    std::chrono::steady_clock::time_point begin;
#endif
  };

  CallClock() = default;
  ~CallClock();
  CallClock(const CallClock&) = delete;
  CallClock& operator=(const CallClock&) = delete;

  Result<Span> Begin(Stream stream);
  Status End(Span span, Stream stream);
  // The sum of calls that have passed since the last Take.
  Status Take(uint64_t* ns);

 private:
  Status Collect();  // with mutex_ held

  std::mutex mutex_;
  std::deque<Span> under_way_;  // in the order of their ends
  std::vector<Span> free_;      // events to be recorded again
  uint64_t ns_ = 0;
};

}  // namespace pbx::hbm
