// Wraps functions that return a Status for the C interface.
#pragma once

#include <string>

#include "base/status.h"
#include "cuda/hbm.h"
#include "cuda/memory.h"
#include "cuda/table.h"

namespace pbx::hbm {

// Stores the message for pbx_hbm_error and returns the code.
int Told(const Status& status);

// Calls f() on the device of hbm.
template <class F>
int Call(const pbx_hbm* hbm, const F& f) {
  const OnDevice here(hbm->device);
  return Told(here.status().ok() ? f() : here.status());
}

// The same. Also measures how long the device works on what f puts into the stream.
template <class F>
int TimedCall(const pbx_hbm* hbm, CallClock* clock, void* stream, const F& f) {
  return Call(hbm, [&]() -> Status {
    Result<CallClock::Span> span = clock->Begin(static_cast<Stream>(stream));
    if (!span.ok()) return span.status();
    const Status status = f();
    // NOLINTNEXTLINE(performance-move-const-arg): only on the host is Span trivially copyable
    const Status ended = clock->End(std::move(span.value()), static_cast<Stream>(stream));
    return status.ok() ? ended : status;
  });
}

}  // namespace pbx::hbm
