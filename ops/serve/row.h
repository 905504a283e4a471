// ServeCodec: encodes rows for export files (docs/formats/export.md): the fields that prediction
// reads, without the state of training.
#pragma once

#include <cstdint>

#include "row/layout.h"

namespace pbx {

enum class ServePrecision : uint8_t { kFloat32, kFloat16, kInt8 };

class ServeCodec {
 public:
  ServeCodec() : ServeCodec(8, true, ServePrecision::kFloat32) {}
  // counts: rows have show and click, which CVM needs, and more_counts further counts after them.
  // REQUIRES: more_counts is 0 without counts.
  ServeCodec(int embedx_dim, bool counts, ServePrecision precision, int more_counts = 0);

  int embedx_dim() const { return dim_; }
  bool counts() const { return counts_; }
  int more_counts() const { return more_; }
  uint32_t counts_bytes() const { return counts_ ? 8 + 4 * static_cast<uint32_t>(more_) : 0; }
  uint32_t short_bytes() const { return counts_bytes() + 4; }  // size of a row without embedx
  uint32_t full_bytes() const { return full_bytes_; }
  uint32_t bytes(bool full) const { return full ? full_bytes() : short_bytes(); }

  // The layout of decoded rows: no states.
  RowLayout decoded() const { return {dim_, 0, 0, 0, 0, more_}; }

  // Whether all values of the row that Encode keeps are finite.
  bool Finite(const RowLayout& layout, const float* row) const;
  // out: (full_bytes()). Returns whether the row has embedx: true: it takes full_bytes(), otherwise
  // short_bytes(). REQUIRES: Finite().
  bool Encode(const RowLayout& layout, const float* row, char* out) const;
  // row: (decoded().words()). Words that a pull does not read are not written.
  void Decode(const char* from, bool full, float* row) const;
  // weights: (1 + D), embed_w and embedx. They are adjacent in a decoded row too.
  void DecodeWeights(const char* from, bool full, float* weights) const;

 private:
  int dim_;
  bool counts_;
  int more_;
  ServePrecision precision_;
  uint32_t full_bytes_;
};

}  // namespace pbx
