// bfloat16, the upper 16 bits of a float32, as a uint16_t.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/host_device.h"

namespace pbx {

// Rounds to the nearest, ties to even. NaN stays NaN.
PBX_INLINE uint16_t ToBfloat16(float from) {
  uint32_t bits;
  memcpy(&bits, &from, sizeof(bits));
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40;  // of a NaN
  return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}
PBX_INLINE float FromBfloat16(uint16_t from) {
  const uint32_t bits = static_cast<uint32_t>(from) << 16;
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

// For code that serves both types: T is float, or uint16_t for bfloat16.
template <typename T>
PBX_INLINE T RoundedTo(float value) {
  if constexpr (sizeof(T) == sizeof(uint16_t)) {
    return ToBfloat16(value);
  } else {
    return value;
  }
}
PBX_INLINE float ToFloat(float value) { return value; }
PBX_INLINE float ToFloat(uint16_t value) { return FromBfloat16(value); }

}  // namespace pbx
