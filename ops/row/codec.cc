#include "row/codec.h"

#include <cstring>

namespace pbx {
namespace {

using rounding::Bits;
using rounding::FromBits;
using rounding::kInfinity;
using rounding::kMaxHalf;
using rounding::kSign;

uint32_t Padded(int dim) { return (static_cast<uint32_t>(dim) * 2 + 3) / 4 * 4; }

}  // namespace

uint16_t HalfOf(float value) {
  const uint32_t bits = Bits(value);
  const uint32_t sign = (bits & kSign) >> 16;
  const uint32_t magnitude = bits & ~kSign;
  uint32_t half;
  if (magnitude > kInfinity) {
    half = 0x7e00u;
  } else if (magnitude == kInfinity) {
    half = 0x7c00u;
  } else if (magnitude >= 0x38800000u) {
    const float size = FromBits(magnitude);
    half = size >= kMaxHalf ? 0x7bffu : (magnitude - 0x38000000u) >> 13;
  } else {
    half = static_cast<uint32_t>(FromBits(magnitude) * 16777216.0f);
  }
  return static_cast<uint16_t>(sign | half);
}

float FloatOfHalf(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) {
    return FromBits(sign | kInfinity | (magnitude > 0x7c00u ? 0x400000u : 0u));
  }
  if (magnitude >= 0x400u) return FromBits(sign | ((magnitude << 13) + 0x38000000u));
  return FromBits(sign | Bits(static_cast<float>(magnitude) * (1.0f / 16777216.0f)));
}

uint32_t RowCodec::bytes() const {
  if (identity()) return layout_.bytes();
  return layout_.bytes() - static_cast<uint32_t>(layout_.embedx_dim) * 4 +
         Padded(layout_.embedx_dim);
}

uint64_t RowCodec::Fingerprint() const {
  const uint64_t layout = layout_.Fingerprint();
  return identity() ? layout : Mix(layout ^ static_cast<uint64_t>(precision_));
}

void RowCodec::Pack(const float* row, char* packed) const {
  if (identity()) {
    std::memcpy(packed, row, layout_.bytes());
    return;
  }
  const auto head = static_cast<size_t>(layout_.embedx_at()) * 4;
  const int dim = layout_.embedx_dim;
  const float* embedx = row + layout_.embedx_at();
  std::memcpy(packed, row, head);
  char* out = packed + head;
  std::memset(out + Padded(dim) - 4, 0, 4);
  for (int i = 0; i < dim; ++i) {
    const uint16_t stored = precision_ == Precision::kFloat16
                                ? HalfOf(embedx[i])
                                : static_cast<uint16_t>(Bits(embedx[i]) >> 16);
    std::memcpy(out + 2 * i, &stored, 2);
  }
  std::memcpy(out + Padded(dim), row + layout_.embedx_state_at(),
              static_cast<size_t>(layout_.words() - layout_.embedx_state_at()) * 4);
}

void RowCodec::Unpack(const char* packed, float* row) const {
  if (identity()) {
    std::memcpy(row, packed, layout_.bytes());
    return;
  }
  const auto head = static_cast<size_t>(layout_.embedx_at()) * 4;
  const int dim = layout_.embedx_dim;
  float* embedx = row + layout_.embedx_at();
  std::memcpy(row, packed, head);
  const char* in = packed + head;
  for (int i = 0; i < dim; ++i) {
    uint16_t stored;
    std::memcpy(&stored, in + 2 * i, 2);
    embedx[i] =
        precision_ == Precision::kFloat16 ? FloatOfHalf(stored) : FromBits(uint32_t{stored} << 16);
  }
  std::memcpy(row + layout_.embedx_state_at(), in + Padded(dim),
              static_cast<size_t>(layout_.words() - layout_.embedx_state_at()) * 4);
}

void RowCodec::Round(uint64_t seed, uint64_t key, uint64_t pass, float* row) const {
  if (identity()) return;
  const uint64_t base = rounding::BaseOf(seed, key, pass);
  float* embedx = row + layout_.embedx_at();
  for (int i = 0; i < layout_.embedx_dim; ++i) {
    embedx[i] = rounding::Rounded(precision_, base, i, embedx[i]);
  }
}

}  // namespace pbx
