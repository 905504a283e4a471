// RowCodec: a row as the MEM and SSD tiers hold it (docs/formats/row.md, "Packed rows"). With
// Precision::kFloat32 it is the row itself; with 16 bits embedx takes half the room. Packing loses
// nothing: a pass rounds the embedx of the rows it changed once, when it ends, and everything after
// that copies.
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
  uint32_t bytes() const;  // of a packed row
  // Tells layouts apart in files.
  uint64_t Fingerprint() const;

  // row: (words) floats whose embedx was rounded. packed: (bytes), aligned to 4.
  void Pack(const float* row, char* packed) const;
  void Unpack(const char* packed, float* row) const;

  // Rounds embedx to what Pack keeps, up or down by chance so that the mean is right: the chance is
  // a function of (seed, key, pass, column) alone. Beyond the largest finite value is that value;
  // infinities and NaN stay.
  void Round(uint64_t seed, uint64_t key, uint64_t pass, float* row) const;

 private:
  RowLayout layout_;
  Precision precision_ = Precision::kFloat32;
};

// Exact where the value is representable, else towards zero; for tests and Pack.
uint16_t HalfOf(float value);
float FloatOfHalf(uint16_t half);

}  // namespace pbx
