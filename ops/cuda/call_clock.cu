#include "cuda/call_clock.h"

#include <utility>

namespace pbx::hbm {

#ifdef __CUDACC__

CallClock::~CallClock() {
  for (const Span& span : under_way_) free_.push_back(span);
  for (const Span& span : free_) {
    cudaEventDestroy(span.begin);
    cudaEventDestroy(span.end);
  }
}

// A pair of events is created only if all pairs are in use by running calls.
Result<CallClock::Span> CallClock::Begin(Stream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  PBX_RETURN_IF_ERROR(Collect());
  if (free_.empty()) {
    Span made;
    PBX_RETURN_IF_ERROR(CudaStatus(cudaEventCreate(&made.begin), "an event"));
    const Status status = CudaStatus(cudaEventCreate(&made.end), "an event");
    if (!status.ok()) {
      cudaEventDestroy(made.begin);
      return status;
    }
    free_.push_back(made);
  }
  // The pair leaves free_ only after its first event was recorded.
  PBX_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(free_.back().begin, stream), "an event"));
  const Span span = free_.back();
  free_.pop_back();
  return Result<Span>(span);
}

Status CallClock::End(Span span, Stream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Status status = CudaStatus(cudaEventRecord(span.end, stream), "an event");
  if (status.ok()) {
    under_way_.push_back(span);
  } else {
    free_.push_back(span);
  }
  return status;
}

Status CallClock::Collect() {
  while (!under_way_.empty()) {
    const Span span = under_way_.front();
    const cudaError_t asked = cudaEventQuery(span.end);
    if (asked == cudaErrorNotReady) {
      cudaGetLastError();  // not an error: cleared, so that the next launch does not report it
      return Status::Ok();
    }
    PBX_RETURN_IF_ERROR(CudaStatus(asked, "an earlier call"));
    float ms = 0.0f;
    PBX_RETURN_IF_ERROR(CudaStatus(cudaEventElapsedTime(&ms, span.begin, span.end), "an event"));
    ns_ += static_cast<uint64_t>(static_cast<double>(ms) * 1e6);
    under_way_.pop_front();
    free_.push_back(span);
  }
  return Status::Ok();
}

#else  // the host as the device

CallClock::~CallClock() = default;

Result<CallClock::Span> CallClock::Begin(Stream) {
  Span span;
  span.begin = std::chrono::steady_clock::now();
  return Result<Span>(span);
}

Status CallClock::End(Span span, Stream) {
  const auto passed = std::chrono::steady_clock::now() - span.begin;
  const std::lock_guard<std::mutex> lock(mutex_);
  ns_ +=
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count());
  return Status::Ok();
}

Status CallClock::Collect() { return Status::Ok(); }

#endif

Status CallClock::Take(uint64_t* ns) {
  const std::lock_guard<std::mutex> lock(mutex_);
  PBX_RETURN_IF_ERROR(Collect());
  *ns = std::exchange(ns_, 0);
  return Status::Ok();
}

}  // namespace pbx::hbm
