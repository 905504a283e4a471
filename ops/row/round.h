// Rounds embedx to 16 bits, up or down at random so that the mean is right. The host and the GPU
// share one definition, so that both give the same bits.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/hash.h"
#include "base/host_device.h"

namespace pbx {

enum class Precision : uint8_t { kFloat32 = 0, kFloat16 = 1, kBfloat16 = 2 };  // stored in files

namespace rounding {

constexpr uint32_t kSign = 0x80000000u;
constexpr uint32_t kInfinity = 0x7f800000u;
constexpr float kMaxHalf = 65504.0f;
constexpr uint32_t kMaxBfloat = 0x7f7f0000u;

PBX_INLINE uint32_t Bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}
PBX_INLINE float FromBits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

// chance: 32 uniformly random bits.
PBX_INLINE float ToBfloat(float value, uint32_t chance) {
  const uint32_t bits = Bits(value);
  const uint32_t magnitude = bits & ~kSign;
  if (magnitude >= kInfinity) return value;
  const uint32_t rounded = (magnitude + (chance >> 16)) & 0xffff0000u;
  return FromBits((bits & kSign) | (rounded >= kInfinity ? kMaxBfloat : rounded));
}

PBX_INLINE float ToHalf(float value, uint32_t chance) {
  const uint32_t bits = Bits(value);
  const uint32_t magnitude = bits & ~kSign;
  if (magnitude >= kInfinity) return value;
  const float size = FromBits(magnitude);
  float rounded;
  if (size >= kMaxHalf) {
    rounded = kMaxHalf;
  } else if (magnitude >= 0x38800000u) {  // 2^-14: from here on a half has ten bits of fraction
    rounded = FromBits((magnitude + (chance >> 19)) & 0xffffe000u);
  } else {  // multiples of 2^-24; both products are exact, and there are fewer than 2^10 units
    const float units = size * 16777216.0f;
    const float whole = static_cast<float>(static_cast<uint32_t>(units));
    const float u = static_cast<float>(chance >> 8) * (1.0f / 16777216.0f);
    rounded = (u < units - whole ? whole + 1.0f : whole) * (1.0f / 16777216.0f);
  }
  return FromBits((bits & kSign) | Bits(rounded));
}

// The seed of the random numbers of a row.
PBX_INLINE uint64_t BaseOf(uint64_t seed, uint64_t key, uint64_t pass) {
  return Mix(Mix(seed ^ 0x726f756e64ULL) ^ Mix(key) ^ Mix(pass + 0x70617373ULL));
}

// embedx column i, rounded. base: BaseOf the row.
PBX_INLINE float Rounded(Precision precision, uint64_t base, int i, float value) {
  const auto chance = static_cast<uint32_t>(Mix(base + static_cast<uint64_t>(i)) >> 32);
  switch (precision) {
    case Precision::kFloat16: return ToHalf(value, chance);
    case Precision::kBfloat16: return ToBfloat(value, chance);
    case Precision::kFloat32: break;
  }
  return value;
}

}  // namespace rounding
}  // namespace pbx
