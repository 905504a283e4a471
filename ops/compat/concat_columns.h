// concat_columns: puts chosen columns of matrices side by side. PaddleBox's fused_concat,
// fused_seqpool_concat and partial_concat are one kernel here.
//
// Letters: B = rows, G = groups, P = parts of a group, C = chosen columns of a group.
// Elements are copied as bytes, so their type does not matter; zero bytes are 0 in every type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"

namespace pbx {

// The columns [start, start + length) of a matrix of `columns` columns.
struct ColumnPart {
  int64_t columns = 0;
  int64_t start = 0;
  int64_t length = 0;
};

// G * P parts, those of a group one after another.
struct ConcatColumns {
  std::vector<ColumnPart> parts;
  size_t groups = 0;  // G
  size_t width = 0;   // C
};

// Checks that each part is inside its matrix and not empty, and that the groups have one width.
Result<ConcatColumns> PlanConcat(std::vector<ColumnPart> parts, int64_t groups);

// inputs: a matrix (B, columns) for each part -> out (G * B, C): the rows of group 0, then those of
// group 1 and so on. element: bytes of an element.
void ConcatColumnsForward(const ConcatColumns& plan, const std::vector<const char*>& inputs,
                          size_t rows, size_t element, char* out);

// dout (G * B, C) -> a matrix (B, columns) for each part, with zeros outside of the part.
void ConcatColumnsBackward(const ConcatColumns& plan, const char* dout, size_t rows, size_t element,
                           const std::vector<char*>& dinputs);

}  // namespace pbx
