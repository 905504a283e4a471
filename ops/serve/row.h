// ServeCodec: a row as an export file holds it (docs/formats/export.md): what prediction reads, and
// nothing of training.
#pragma once

#include <cstdint>

#include "row/layout.h"

namespace pbx {

enum class ServePrecision : uint8_t { kFloat32, kFloat16, kInt8 };

class ServeCodec {
 public:
  ServeCodec() : ServeCodec(8, true, ServePrecision::kFloat32) {}
  // counts: rows keep show and click, which CVM needs.
  ServeCodec(int embedx_dim, bool counts, ServePrecision precision);

  int embedx_dim() const { return dim_; }
  bool counts() const { return counts_; }
  uint32_t short_bytes() const { return counts_ ? 12 : 4; }  // of a row without embedx
  uint32_t full_bytes() const { return full_bytes_; }
  uint32_t bytes(bool full) const { return full ? full_bytes() : short_bytes(); }

  // Where Decode writes: a row with neither state.
  RowLayout decoded() const { return {dim_, 0, 0, 0, 0}; }

  // Whether all that Encode would keep of a row of this layout is finite.
  bool Finite(const RowLayout& layout, const float* row) const;
  // out: (full_bytes()). Returns whether the row owns an embedx, and so how many bytes it took.
  // REQUIRES: Finite().
  bool Encode(const RowLayout& layout, const float* row, char* out) const;
  // row: (decoded().words()); words that a pull does not read stay as they are.
  void Decode(const char* from, bool full, float* row) const;
  // weights: (1 + D), embed_w and embedx, which are neighbours in a decoded row too.
  void DecodeWeights(const char* from, bool full, float* weights) const;

 private:
  int dim_;
  bool counts_;
  ServePrecision precision_;
  uint32_t full_bytes_;
};

}  // namespace pbx
