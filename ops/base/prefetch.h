// Prefetch: fetches the cache line of an address that is about to be read.
#pragma once

#include "base/host_device.h"

namespace pbx {

// Into the second-level cache. Into the first level, an AMD EPYC fetches only 24 lines at a time. A
// pull then takes 1.3 times as long, a push 2.4 times, a find in the MEM tier 1.4 times, and taking
// rows out of it twice.
//
// gcc takes a function that only prefetches for one without effects, and removes calls that it does
// not inline, so functions around this one are PBX_INLINE, too.
PBX_INLINE void Prefetch(const void* at) { __builtin_prefetch(at, 0, 2); }

}  // namespace pbx
