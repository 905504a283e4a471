// The records of rows that ranks exchange (ops/ranks/quantize.h), on the device.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/status.h"
#include "cuda/hbm.h"
#include "cuda/launch.h"
#include "ranks/quantize_values.h"

namespace pbx::hbm {

enum class Record : int32_t {
  kFloat32 = PBX_HBM_WIRE_FLOAT32,
  kFloat16 = PBX_HBM_WIRE_FLOAT16,
  kBfloat16 = PBX_HBM_WIRE_BFLOAT16,
  kInt8 = PBX_HBM_WIRE_INT8,
};

// InvalidArgument for an unknown wire.
Status RecordOf(int32_t wire, Record* out);

// columns: P.
inline uint64_t RecordBytes(Record record, int columns) {
  const auto values = static_cast<uint64_t>(columns);
  switch (record) {
    case Record::kFloat32: return 4 * values;
    case Record::kInt8: return quantize::kInt8Head + values - 3;
    default: return quantize::kCounts + 2 * (values - 2);
  }
}

// Records are not aligned.
template <typename T>
PBX_HOST_DEVICE T Read(const char* at) {
  T value;
  memcpy(&value, at, sizeof(T));
  return value;
}

// Column c of a record.
template <Record kRecord>
PBX_HOST_DEVICE float ValueOf(const char* record, int c) {
  if (kRecord == Record::kFloat32 || c < 2) return Read<float>(record + 4 * c);
  if (kRecord == Record::kInt8) {
    if (c == 2) return quantize::FromHalf(Read<uint16_t>(record + quantize::kCounts + 4));
    const auto quantized = Read<int8_t>(record + quantize::kInt8Head + c - 3);
    return quantize::Restored(quantized, Read<float>(record + quantize::kCounts));
  }
  const auto bits = Read<uint16_t>(record + quantize::kCounts + 2 * (c - 2));
  return kRecord == Record::kFloat16 ? quantize::FromHalf(bits) : quantize::FromBfloat16(bits);
}

}  // namespace pbx::hbm

// Calls function<record>.
#define PBX_FOR_RECORD(record, function, ...)                                            \
  switch (record) {                                                                      \
    case ::pbx::hbm::Record::kFloat16: return function<Record::kFloat16>(__VA_ARGS__);   \
    case ::pbx::hbm::Record::kBfloat16: return function<Record::kBfloat16>(__VA_ARGS__); \
    case ::pbx::hbm::Record::kInt8: return function<Record::kInt8>(__VA_ARGS__);         \
    default: return function<Record::kFloat32>(__VA_ARGS__);                             \
  }
