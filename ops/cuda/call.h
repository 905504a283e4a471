// The C interface around functions that return a Status.
#pragma once

#include <string>

#include "base/status.h"
#include "cuda/hbm.h"
#include "cuda/memory.h"
#include "cuda/table.h"

namespace pbx::hbm {

// Keeps the message for pbx_hbm_error and gives the code.
int Told(const Status& status);

// f() on the device of hbm.
template <class F>
int Call(const pbx_hbm* hbm, const F& f) {
  const OnDevice here(hbm->device);
  return Told(here.status().ok() ? f() : here.status());
}

}  // namespace pbx::hbm
