// Rows of sequences that lie one after another, without padding, and conversions from padded
// arrays and back.
//
// Letters: B = sequences, L = places of a padded sequence, T = rows of all sequences, C = columns.
//
//     padded   a a .    rows     a a    offsets  0 2 2 5
//              . . .
//              b b b             b b b
//
// Arrays of rows may be longer than T: rows after the last sequence are spare. They are written as
// zeros and not read. All loops run over the sequences in ascending order, on the calling thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace pbx {

// offsets (B + 1) of sequences of these lengths, (B). The lengths are floats, as the batch has
// them. InvalidArgument unless each is a whole number from 0 to `places`.
Status OffsetsOf(const float* lengths, size_t sequences, size_t places, int32_t* offsets);

// offsets (B + 1) ascend from 0 to at most `rows`.
Status CheckRows(const int32_t* offsets, size_t sequences, size_t rows);

struct JaggedRows {
  const int32_t* offsets = nullptr;  // (B + 1)
  size_t sequences = 0;              // B
  size_t columns = 0;                // C
  size_t rows = 0;                   // at least T
};

// Whether the first place of a padded sequence is its first row or its last.
enum class RowOrder { kSame, kReversed };

// padded (B, L, C) -> to (rows, C)
void PackRows(const JaggedRows& rows, size_t places, RowOrder order, const float* padded,
              float* to);

// from (rows, C) -> padded (B, L, C), with zeros in places without a row
void UnpackRows(const JaggedRows& rows, size_t places, RowOrder order, const float* from,
                float* padded);

// x (B, C) -> to (rows, C): the row of its sequence, for each row
void RepeatRows(const JaggedRows& rows, const float* x, float* to);

// from (rows, C) -> to (B, C): the sums over the sequences
void SumRows(const JaggedRows& rows, const float* from, float* to);

// x (rows, C) -> to (rows, C): the softmax of each column over the rows of a sequence
void SoftmaxRows(const JaggedRows& rows, const float* x, float* to);

// weights, the result of SoftmaxRows, and dweights -> dx; each (rows, C)
void SoftmaxRowsBackward(const JaggedRows& rows, const float* weights, const float* dweights,
                         float* dx);

// to (rows): the place of each row in its sequence, from 0
void PlacesOfRows(const JaggedRows& rows, int32_t* to);

}  // namespace pbx
