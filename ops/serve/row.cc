#include "serve/row.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "row/codec.h"

namespace pbx {
namespace {

// Copies in a loop: for a few bytes, a call of memcpy costs as much as the copy.
void CopyFloats(const char* from, size_t n, float* to) {
  size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    float four[4];
    std::memcpy(four, from + 4 * i, sizeof(four));
    std::memcpy(to + i, four, sizeof(four));
  }
  for (; i < n; ++i) std::memcpy(to + i, from + 4 * i, 4);
}

uint32_t Padded(uint32_t bytes) { return (bytes + 3) / 4 * 4; }

// HalfOf rounds towards zero, this function to nearest.
uint16_t NearestHalf(float value) {
  const uint16_t low = HalfOf(value);
  if ((low & 0x7fffu) >= 0x7bffu) return low;
  const auto high = static_cast<uint16_t>(low + 1);
  const float below = std::fabs(value - FloatOfHalf(low));
  const float above = std::fabs(FloatOfHalf(high) - value);
  if (below != above) return below < above ? low : high;
  return (low & 1u) == 0 ? low : high;
}

}  // namespace

ServeCodec::ServeCodec(int embedx_dim, bool counts, ServePrecision precision, int more_counts)
    : dim_(embedx_dim), counts_(counts), more_(more_counts), precision_(precision) {
  const auto dim = static_cast<uint32_t>(dim_);
  switch (precision_) {
    case ServePrecision::kFloat32: full_bytes_ = 4 * dim; break;
    case ServePrecision::kFloat16: full_bytes_ = Padded(2 * dim); break;
    case ServePrecision::kInt8: full_bytes_ = 4 + Padded(dim); break;
  }
  full_bytes_ += short_bytes();
}

bool ServeCodec::Finite(const RowLayout& layout, const float* row) const {
  bool finite = std::isfinite(row[RowLayout::kEmbed]);
  if (counts_) {
    finite =
        finite && std::isfinite(row[RowLayout::kShow]) && std::isfinite(row[RowLayout::kClick]);
  }
  for (int i = 0; i < more_; ++i) finite = finite && std::isfinite(row[layout.counts_at() + i]);
  if (!HasEmbedx(row)) return finite;
  for (int i = 0; i < dim_; ++i) finite = finite && std::isfinite(row[layout.embedx_at() + i]);
  return finite;
}

bool ServeCodec::Encode(const RowLayout& layout, const float* row, char* out) const {
  std::memset(out, 0, full_bytes());  // padding too
  if (counts_) {
    std::memcpy(out, row + RowLayout::kShow, 8);
    std::memcpy(out + 8, row + layout.counts_at(), static_cast<size_t>(more_) * 4);
    out += counts_bytes();
  }
  std::memcpy(out, row + RowLayout::kEmbed, 4);
  out += 4;
  if (!HasEmbedx(row)) return false;
  const float* const embedx = row + layout.embedx_at();
  if (precision_ == ServePrecision::kFloat32) {
    std::memcpy(out, embedx, static_cast<size_t>(dim_) * 4);
  } else if (precision_ == ServePrecision::kFloat16) {
    for (int i = 0; i < dim_; ++i) {
      const uint16_t half = NearestHalf(embedx[i]);
      std::memcpy(out + 2 * i, &half, 2);
    }
  } else {
    float largest = 0;
    for (int i = 0; i < dim_; ++i) largest = std::max(largest, std::fabs(embedx[i]));
    const float scale = largest / 127.0f;
    std::memcpy(out, &scale, 4);
    for (int i = 0; i < dim_; ++i) {
      const float q = scale == 0 ? 0 : std::nearbyint(embedx[i] / scale);
      // The scale of a row of denormals has lost bits, so q could be out of range.
      out[4 + i] = static_cast<char>(static_cast<int8_t>(std::clamp(q, -127.0f, 127.0f)));
    }
  }
  return true;
}

void ServeCodec::Decode(const char* from, bool full, float* row) const {
  row[RowLayout::kShow] = row[RowLayout::kClick] = 0;
  if (counts_) std::memcpy(row + RowLayout::kShow, from, 8);
  if (more_ != 0) {
    std::memcpy(row + decoded().counts_at(), from + 8, static_cast<size_t>(more_) * 4);
  }
  DecodeWeights(from, full, row + RowLayout::kEmbed);
}

void ServeCodec::DecodeWeights(const char* from, bool full, float* weights) const {
  from += counts_bytes();
  std::memcpy(weights, from, 4);
  from += 4;
  float* const embedx = weights + 1;
  const auto dim = static_cast<size_t>(dim_);
  if (!full) {
    std::memset(embedx, 0, dim * 4);
  } else if (precision_ == ServePrecision::kFloat32) {
    CopyFloats(from, dim, embedx);
  } else if (precision_ == ServePrecision::kFloat16) {
    for (size_t i = 0; i < dim; ++i) {
      uint16_t half;
      std::memcpy(&half, from + 2 * i, 2);
      embedx[i] = FloatOfHalf(half);
    }
  } else {
    float scale;
    std::memcpy(&scale, from, 4);
    for (size_t i = 0; i < dim; ++i) {
      embedx[i] = scale * static_cast<float>(static_cast<signed char>(from[4 + i]));
    }
  }
}

}  // namespace pbx
