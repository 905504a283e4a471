#include "ranks/quantize.h"

#include <cstring>
#include <vector>

#include "ranks/quantize_values.h"

namespace pbx {
namespace {

constexpr size_t kAhead = 16;  // rows of a residual to prefetch

// Buffers for values, because records are not aligned.
struct Room {
  explicit Room(size_t columns) : words(columns), bytes(columns) {}
  std::vector<uint16_t> words;
  std::vector<int8_t> bytes;
};

void PackInt8(const float* values, size_t dim, Room* room, char* out) {
  float inverse;
  const float scale = quantize::ScaleOf(quantize::LargestOf(values + 1, dim), &inverse);
  const uint16_t embed_w = quantize::ToHalf(values[0]);
  std::memcpy(out, &scale, sizeof(scale));
  std::memcpy(out + sizeof(scale), &embed_w, sizeof(embed_w));
  int8_t* const quantized = room->bytes.data();
  for (size_t i = 0; i < dim; ++i) quantized[i] = quantize::Quantized(values[1 + i], inverse);
  std::memcpy(out + sizeof(scale) + sizeof(embed_w), quantized, dim);
}

void UnpackInt8(const char* packed, size_t dim, Room* room, float* values) {
  float scale;
  uint16_t embed_w;
  std::memcpy(&scale, packed, sizeof(scale));
  std::memcpy(&embed_w, packed + sizeof(scale), sizeof(embed_w));
  int8_t* const quantized = room->bytes.data();
  std::memcpy(quantized, packed + sizeof(scale) + sizeof(embed_w), dim);
  values[0] = quantize::FromHalf(embed_w);
  for (size_t i = 0; i < dim; ++i) { values[1 + i] = quantize::Restored(quantized[i], scale); }
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
    case Wire::kFloat16: return Pack16<quantize::ToHalf>(values, columns - 2, room, out);
    case Wire::kBfloat16: return Pack16<quantize::ToBfloat16>(values, columns - 2, room, out);
    case Wire::kInt8: return PackInt8(values, columns - 3, room, out);
  }
}

void UnpackValues(Wire wire, const char* packed, size_t columns, Room* room, float* values) {
  switch (wire) {
    case Wire::kFloat16: return Unpack16<quantize::FromHalf>(packed, columns - 2, room, values);
    case Wire::kBfloat16:
      return Unpack16<quantize::FromBfloat16>(packed, columns - 2, room, values);
    case Wire::kInt8: return UnpackInt8(packed, columns - 3, room, values);
  }
}

}  // namespace

size_t WireBytes(Wire wire, size_t columns) {
  return wire == Wire::kInt8 ? quantize::kInt8Head + columns - 3
                             : quantize::kCounts + 2 * (columns - 2);
}

void PackRows(Wire wire, const float* rows, size_t n, size_t columns, char* out) {
  const size_t bytes = WireBytes(wire, columns);
  Room room(columns);
  for (size_t i = 0; i < n; ++i, rows += columns, out += bytes) {
    std::memcpy(out, rows, quantize::kCounts);
    PackValues(wire, rows + 2, columns, &room, out + quantize::kCounts);
  }
}

void UnpackRows(Wire wire, const char* packed, size_t n, size_t columns, float* rows) {
  const size_t bytes = WireBytes(wire, columns);
  Room room(columns);
  for (size_t i = 0; i < n; ++i, rows += columns, packed += bytes) {
    std::memcpy(rows, packed, quantize::kCounts);
    UnpackValues(wire, packed + quantize::kCounts, columns, &room, rows + 2);
  }
}

Status PackWithResidual(Wire wire, const float* rows, size_t n, size_t columns,
                        const int32_t* places, float* residual, size_t residual_rows, char* out) {
  for (size_t i = 0; i < n; ++i) {
    if (places[i] < 0 || static_cast<size_t>(places[i]) >= residual_rows) {
      return Error(Code::kInvalidArgument, "residual: row %d, but there are %zu", places[i],
                   residual_rows);
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
    std::memcpy(out, rows, quantize::kCounts);
    PackValues(wire, sum.data(), columns, &room, out + quantize::kCounts);
    UnpackValues(wire, out + quantize::kCounts, columns, &room, sent.data());
    kept[0] = rows[0];
    for (size_t c = 0; c < values; ++c) {
      const float lost = sum[c] - sent[c];
      kept[1 + c] = lost * 0.0f == 0.0f ? lost : 0.0f;  // NaN if the value is not finite
    }
  }
  return Status::Ok();
}

}  // namespace pbx
