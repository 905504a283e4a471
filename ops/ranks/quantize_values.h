// Conversions of single values for ranks/quantize.h, on the host and on the device. They have no
// branches, so that the compiler vectorizes loops over them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/host_device.h"

namespace pbx::quantize {

constexpr uint32_t kSign = 0x80000000u, kInfinity = 0x7f800000u, kNan = 0x7fc00000u;
constexpr size_t kCounts = 2 * sizeof(float);  // show, click: the start of a record
constexpr size_t kInt8Head = kCounts + sizeof(float) + sizeof(uint16_t);
// For x above this number, 127 / x is finite. A smaller embedx is sent as zeros.
constexpr uint32_t kSmallest = 0x0d800000u;  // 2^-100
constexpr float kToInteger = 12582912.0f;    // 1.5 * 2^23: adding it rounds to an integer

PBX_INLINE uint32_t BitsOf(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}
PBX_INLINE float FloatOf(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

PBX_INLINE uint16_t ToHalf(float value) {
  const uint32_t bits = BitsOf(value), magnitude = bits & ~kSign;
  const uint32_t odd = (magnitude >> 13) & 1;
  const uint32_t normal = (magnitude - (112u << 23) + 0xfff + odd) >> 13;
  // Below 2^-14 a half has steps of 2^-24, like a float next to 0.5.
  const uint32_t small = BitsOf(FloatOf(magnitude) + 0.5f) - BitsOf(0.5f);
  uint32_t half = magnitude < 0x38800000u ? small : normal;
  half = magnitude >= 0x477fe000u ? 0x7bffu : half;
  half = magnitude == kInfinity ? 0x7c00u : half;
  half = magnitude > kInfinity ? 0x7e00u : half;
  return static_cast<uint16_t>(half | ((bits & kSign) >> 16));
}

PBX_INLINE float FromHalf(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu;
  const uint32_t normal = (magnitude << 13) + (112u << 23);
  const uint32_t small = BitsOf(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
  uint32_t bits = magnitude < 0x400u ? small : normal;
  bits = magnitude >= 0x7c00u ? kInfinity | (magnitude << 13) : bits;
  return FloatOf(bits | sign);
}

PBX_INLINE uint16_t ToBfloat16(float value) {
  const uint32_t bits = BitsOf(value), magnitude = bits & ~kSign;
  uint32_t found = (magnitude + 0x7fff + ((magnitude >> 16) & 1)) >> 16;
  found = magnitude >= 0x7f7f0000u ? 0x7f7fu : found;
  found = magnitude == kInfinity ? 0x7f80u : found;
  found = magnitude > kInfinity ? 0x7fc0u : found;
  return static_cast<uint16_t>(found | ((bits & kSign) >> 16));
}

PBX_INLINE float FromBfloat16(uint16_t value) {
  return FloatOf(static_cast<uint32_t>(value) << 16);
}

// The bits of the largest magnitude of an embedx. Bits of magnitudes compare like the floats.
PBX_INLINE uint32_t LargestOf(const float* embedx, size_t dim) {
  uint32_t largest = 0;
  for (size_t i = 0; i < dim; ++i) {
    const uint32_t magnitude = BitsOf(embedx[i]) & ~kSign;
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

// The scale of an int8 embedx; NaN if a value is not finite. inverse: 0 if values are sent as 0.
PBX_INLINE float ScaleOf(uint32_t largest, float* inverse) {
  *inverse = 0.0f;
  if (largest >= kInfinity) return FloatOf(kNan);
  if (largest < kSmallest) return 0.0f;
  *inverse = 127.0f / FloatOf(largest);
  return FloatOf(largest) / 127.0f;
}

PBX_INLINE int8_t Quantized(float value, float inverse) {
  const uint32_t rounded = BitsOf(value * inverse + kToInteger) - BitsOf(kToInteger);
  return static_cast<int8_t>(inverse == 0.0f ? 0 : rounded);  // infinity * 0
}

// If the scale is NaN, returns the scale: the product with it could be another NaN on another
// processor.
PBX_INLINE float Restored(int8_t quantized, float scale) {
  const float product = static_cast<float>(quantized) * scale;
  return scale == scale ? product : scale;
}

}  // namespace pbx::quantize
