// RowCodec: a row as the MEM and SSD tiers hold it (docs/formats/row.md, "Packed rows"). With
// Precision::kFloat32 it is the row itself; with 16 bits embedx takes half the space. Packing loses
// nothing, because embedx is already rounded: when a pass ends, it rounds embedx of the rows it
// changed, once. After that rows are only copied.
#pragma once

#include <cstdint>

#include "row/layout.h"
#include "row/round.h"

namespace pbx {

class RowCodec {
 public:
  RowCodec() = default;
  RowCodec(const RowLayout& layout, Precision precision) : layout_(layout), precision_(precision) {}

  bool identity() const { return precision_ == Precision::kFloat32; }
  uint32_t bytes() const;  // size of a packed row
  // Identifies the layout in files.
  uint64_t Fingerprint() const;

  // row: (words), with embedx rounded already. packed: (bytes), aligned to 4.
  void Pack(const float* row, char* packed) const;
  void Unpack(const char* packed, float* row) const;

  // Rounds embedx to the precision that Pack keeps, up or down at random so that the mean is right.
  // The random numbers depend on (seed, key, pass, column) alone. A value beyond the largest finite
  // number of the precision becomes that number; infinities and NaN stay.
  void Round(uint64_t seed, uint64_t key, uint64_t pass, float* row) const;

 private:
  RowLayout layout_;
  Precision precision_ = Precision::kFloat32;
};

// Exact if the value is representable, otherwise rounded towards zero. For tests and Pack.
uint16_t HalfOf(float value);
float FloatOfHalf(uint16_t half);

}  // namespace pbx
