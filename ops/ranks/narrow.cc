#include "ranks/narrow.h"

#include <cstring>
#include <limits>
#include <vector>

namespace pbx {
namespace {

constexpr uint32_t kSign = 0x80000000u, kInfinity = 0x7f800000u;
constexpr size_t kCounts = 2 * sizeof(float);  // show, click
constexpr size_t kInt8Head = kCounts + sizeof(float) + sizeof(uint16_t);
// 127 / x is finite above it, and an embedx below it is nothing: it is sent as zeros.
constexpr uint32_t kSmallest = 0x0d800000u;  // 2^-100
constexpr size_t kAhead = 16;                // rows of a residual that are on their way
constexpr float kToInteger = 12582912.0f;    // 1.5 * 2^23: adding it rounds to an integer

uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Without branches, so that loops over them become vector code.
inline uint16_t ToHalf(float value) {
  const uint32_t bits = BitsOf(value), magnitude = bits & ~kSign;
  const uint32_t odd = (magnitude >> 13) & 1;
  const uint32_t normal = (magnitude - (112u << 23) + 0xfff + odd) >> 13;
  // Below 2^-14 a half has steps of 2^-24, as a float next to 0.5 has.
  const uint32_t small = BitsOf(FloatOf(magnitude) + 0.5f) - BitsOf(0.5f);
  uint32_t half = magnitude < 0x38800000u ? small : normal;
  half = magnitude >= 0x477fe000u ? 0x7bffu : half;
  half = magnitude == kInfinity ? 0x7c00u : half;
  half = magnitude > kInfinity ? 0x7e00u : half;
  return static_cast<uint16_t>(half | ((bits & kSign) >> 16));
}

inline float FromHalf(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu;
  const uint32_t normal = (magnitude << 13) + (112u << 23);
  const uint32_t small = BitsOf(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
  uint32_t bits = magnitude < 0x400u ? small : normal;
  bits = magnitude >= 0x7c00u ? kInfinity | (magnitude << 13) : bits;
  return FloatOf(bits | sign);
}

inline uint16_t ToBfloat16(float value) {
  const uint32_t bits = BitsOf(value), magnitude = bits & ~kSign;
  uint32_t found = (magnitude + 0x7fff + ((magnitude >> 16) & 1)) >> 16;
  found = magnitude >= 0x7f7f0000u ? 0x7f7fu : found;
  found = magnitude == kInfinity ? 0x7f80u : found;
  found = magnitude > kInfinity ? 0x7fc0u : found;
  return static_cast<uint16_t>(found | ((bits & kSign) >> 16));
}

inline float FromBfloat16(uint16_t value) { return FloatOf(static_cast<uint32_t>(value) << 16); }

// Records have no alignment: values go through room of their own.
struct Room {
  explicit Room(size_t columns) : words(columns), bytes(columns) {}
  std::vector<uint16_t> words;
  std::vector<int8_t> bytes;
};

// The scale of an int8 embedx: NaN where one of it is not finite.
float ScaleOf(const float* embedx, size_t dim, float* inverse) {
  uint32_t largest = 0;
  for (size_t i = 0; i < dim; ++i) {
    const uint32_t magnitude = BitsOf(embedx[i]) & ~kSign;
    largest = magnitude > largest ? magnitude : largest;
  }
  *inverse = 0.0f;
  if (largest >= kInfinity) return std::numeric_limits<float>::quiet_NaN();
  if (largest < kSmallest) return 0.0f;
  *inverse = 127.0f / FloatOf(largest);
  return FloatOf(largest) / 127.0f;
}

void PackInt8(const float* values, size_t dim, Room* room, char* out) {
  float inverse;
  const float scale = ScaleOf(values + 1, dim, &inverse);
  const uint16_t embed_w = ToHalf(values[0]);
  std::memcpy(out, &scale, sizeof(scale));
  std::memcpy(out + sizeof(scale), &embed_w, sizeof(embed_w));
  int8_t* const quantized = room->bytes.data();
  const uint32_t zero = BitsOf(kToInteger);
  for (size_t i = 0; i < dim; ++i) {
    quantized[i] = static_cast<int8_t>(BitsOf(values[1 + i] * inverse + kToInteger) - zero);
  }
  if (inverse == 0.0f) std::memset(quantized, 0, dim);  // infinity * 0
  std::memcpy(out + sizeof(scale) + sizeof(embed_w), quantized, dim);
}

void UnpackInt8(const char* packed, size_t dim, Room* room, float* values) {
  float scale;
  uint16_t embed_w;
  std::memcpy(&scale, packed, sizeof(scale));
  std::memcpy(&embed_w, packed + sizeof(scale), sizeof(embed_w));
  int8_t* const quantized = room->bytes.data();
  std::memcpy(quantized, packed + sizeof(scale) + sizeof(embed_w), dim);
  values[0] = FromHalf(embed_w);
  for (size_t i = 0; i < dim; ++i) values[1 + i] = static_cast<float>(quantized[i]) * scale;
}

template <uint16_t (*kTo)(float)>
void Pack16(const float* values, size_t count, Room* room, char* out) {
  uint16_t* const words = room->words.data();
  for (size_t i = 0; i < count; ++i) words[i] = kTo(values[i]);
  std::memcpy(out, words, count * sizeof(uint16_t));
}

template <float (*kFrom)(uint16_t)>
void Unpack16(const char* packed, size_t count, Room* room, float* values) {
  uint16_t* const words = room->words.data();
  std::memcpy(words, packed, count * sizeof(uint16_t));
  for (size_t i = 0; i < count; ++i) values[i] = kFrom(words[i]);
}

// values: (columns - 2) [embed_w, embedx...].
void PackValues(Wire wire, const float* values, size_t columns, Room* room, char* out) {
  switch (wire) {
    case Wire::kFloat16: return Pack16<ToHalf>(values, columns - 2, room, out);
    case Wire::kBfloat16: return Pack16<ToBfloat16>(values, columns - 2, room, out);
    case Wire::kInt8: return PackInt8(values, columns - 3, room, out);
  }
}

void UnpackValues(Wire wire, const char* packed, size_t columns, Room* room, float* values) {
  switch (wire) {
    case Wire::kFloat16: return Unpack16<FromHalf>(packed, columns - 2, room, values);
    case Wire::kBfloat16: return Unpack16<FromBfloat16>(packed, columns - 2, room, values);
    case Wire::kInt8: return UnpackInt8(packed, columns - 3, room, values);
  }
}

}  // namespace

size_t WireBytes(Wire wire, size_t columns) {
  return wire == Wire::kInt8 ? kInt8Head + columns - 3 : kCounts + 2 * (columns - 2);
}

void PackRows(Wire wire, const float* rows, size_t n, size_t columns, char* out) {
  const size_t bytes = WireBytes(wire, columns);
  Room room(columns);
  for (size_t i = 0; i < n; ++i, rows += columns, out += bytes) {
    std::memcpy(out, rows, kCounts);
    PackValues(wire, rows + 2, columns, &room, out + kCounts);
  }
}

void UnpackRows(Wire wire, const char* packed, size_t n, size_t columns, float* rows) {
  const size_t bytes = WireBytes(wire, columns);
  Room room(columns);
  for (size_t i = 0; i < n; ++i, rows += columns, packed += bytes) {
    std::memcpy(rows, packed, kCounts);
    UnpackValues(wire, packed + kCounts, columns, &room, rows + 2);
  }
}

Status PackWithResidual(Wire wire, const float* rows, size_t n, size_t columns,
                        const int32_t* places, float* residual, size_t residual_rows, char* out) {
  for (size_t i = 0; i < n; ++i) {
    if (places[i] < 0 || static_cast<size_t>(places[i]) >= residual_rows) {
      return Error(Code::kInvalidArgument, "residual: row %d is asked for, there are %zu",
                   places[i], residual_rows);
    }
  }
  const size_t bytes = WireBytes(wire, columns), values = columns - 2;
  Room room(columns);
  std::vector<float> sum(values), sent(values);
  for (size_t i = 0; i < n; ++i, rows += columns, out += bytes) {
    if (i + kAhead < n) {
      const float* const coming =
          residual + static_cast<size_t>(places[i + kAhead]) * (columns - 1);
      for (size_t c = 0; c < columns - 1; c += 16) __builtin_prefetch(coming + c, 1);
    }
    float* const kept = residual + static_cast<size_t>(places[i]) * (columns - 1);
    for (size_t c = 0; c < values; ++c) sum[c] = rows[2 + c] + kept[1 + c];
    std::memcpy(out, rows, kCounts);
    PackValues(wire, sum.data(), columns, &room, out + kCounts);
    UnpackValues(wire, out + kCounts, columns, &room, sent.data());
    kept[0] = rows[0];
    for (size_t c = 0; c < values; ++c) {
      const float lost = sum[c] - sent[c];
      kept[1 + c] = lost * 0.0f == 0.0f ? lost : 0.0f;  // of what is not finite it is NaN
    }
  }
  return Status::Ok();
}

}  // namespace pbx
