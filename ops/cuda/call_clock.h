// Measures the time that the device spends on calls: an event in the stream before each call and
// one after it, read once both have passed. No call waits.
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
  // A running call.
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
  // The total time of the calls that ended since the last Take.
  Status Take(uint64_t* ns);

 private:
  Status Collect();  // REQUIRES: mutex_ is held

  std::mutex mutex_;
  std::deque<Span> under_way_;  // in the order in which they end
  std::vector<Span> free_;      // events to reuse
  uint64_t ns_ = 0;
};

}  // namespace pbx::hbm
