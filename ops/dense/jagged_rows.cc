#include "dense/jagged_rows.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/exp.h"

namespace pbx {
namespace {

size_t At(const int32_t* offsets, size_t i) { return static_cast<size_t>(offsets[i]); }

// Calls one(sequence, begin, end) with the rows of each sequence.
template <typename One>
void ForSequences(const JaggedRows& rows, const One& one) {
  for (size_t b = 0; b < rows.sequences; ++b) one(b, At(rows.offsets, b), At(rows.offsets, b + 1));
}

void ZeroSpareRows(const JaggedRows& rows, float* to) {
  const size_t used = At(rows.offsets, rows.sequences);
  std::fill(to + used * rows.columns, to + rows.rows * rows.columns, 0.0f);
}

// Calls copy(row, place), with the place in the padded array, for each row.
template <typename Copy>
void ForPlaces(const JaggedRows& rows, size_t places, RowOrder order, const Copy& copy) {
  ForSequences(rows, [&](size_t b, size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row)
      copy(row, b * places + (order == RowOrder::kSame ? row - begin : end - 1 - row));
  });
}

}  // namespace

Status OffsetsOf(const float* lengths, size_t sequences, size_t places, int32_t* offsets) {
  int64_t at = 0;
  offsets[0] = 0;
  for (size_t b = 0; b < sequences; ++b) {
    const float length = lengths[b];
    if (!(length >= 0.0f && length <= static_cast<float>(places)) ||
        length != static_cast<float>(static_cast<int64_t>(length))) {
      return Error(Code::kInvalidArgument,
                   "the length of sequence %zu is %g, expected a whole number from 0 to %zu", b,
                   static_cast<double>(length), places);
    }
    at += static_cast<int64_t>(length);
    if (at > std::numeric_limits<int32_t>::max())
      return Error(Code::kInvalidArgument, "more than 2^31 - 1 rows in a batch");
    offsets[b + 1] = static_cast<int32_t>(at);
  }
  return Status::Ok();
}

Status CheckRows(const int32_t* offsets, size_t sequences, size_t rows) {
  bool ascending = offsets[0] == 0;
  for (size_t b = 0; b < sequences; ++b) ascending &= offsets[b] <= offsets[b + 1];
  if (ascending && At(offsets, sequences) <= rows) return Status::Ok();
  return Error(Code::kInvalidArgument,
               "Offsets: expected %zu ascending values from 0 to at most %zu, the number of rows, "
               "found first %d, last %d%s",
               sequences + 1, rows, offsets[0], offsets[sequences],
               ascending ? "" : ", not ascending or not from 0");
}

void PackRows(const JaggedRows& rows, size_t places, RowOrder order, const float* padded,
              float* to) {
  const size_t columns = rows.columns, bytes = columns * sizeof(float);
  ForPlaces(rows, places, order, [&](size_t row, size_t place) {
    std::memcpy(to + row * columns, padded + place * columns, bytes);
  });
  ZeroSpareRows(rows, to);
}

void UnpackRows(const JaggedRows& rows, size_t places, RowOrder order, const float* from,
                float* padded) {
  const size_t columns = rows.columns, bytes = columns * sizeof(float);
  std::memset(padded, 0, rows.sequences * places * bytes);
  ForPlaces(rows, places, order, [&](size_t row, size_t place) {
    std::memcpy(padded + place * columns, from + row * columns, bytes);
  });
}

void RepeatRows(const JaggedRows& rows, const float* x, float* to) {
  const size_t columns = rows.columns;
  ForSequences(rows, [&](size_t b, size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row)
      std::memcpy(to + row * columns, x + b * columns, columns * sizeof(float));
  });
  ZeroSpareRows(rows, to);
}

void SumRows(const JaggedRows& rows, const float* from, float* to) {
  const size_t columns = rows.columns;
  std::memset(to, 0, rows.sequences * columns * sizeof(float));
  ForSequences(rows, [&](size_t b, size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row)
      for (size_t c = 0; c < columns; ++c) to[b * columns + c] += from[row * columns + c];
  });
}

void SoftmaxRows(const JaggedRows& rows, const float* x, float* to) {
  const size_t columns = rows.columns;
  ForSequences(rows, [&](size_t /*b*/, size_t begin, size_t end) {
    for (size_t c = 0; c < columns; ++c) {
      float highest = -std::numeric_limits<float>::infinity(), sum = 0.0f;
      for (size_t row = begin; row < end; ++row) highest = std::max(highest, x[row * columns + c]);
      for (size_t row = begin; row < end; ++row) {
        const float e = Exp(x[row * columns + c] - highest);
        to[row * columns + c] = e;
        sum += e;
      }
      for (size_t row = begin; row < end; ++row) to[row * columns + c] /= sum;
    }
  });
  ZeroSpareRows(rows, to);
}

void SoftmaxRowsBackward(const JaggedRows& rows, const float* weights, const float* dweights,
                         float* dx) {
  const size_t columns = rows.columns;
  ForSequences(rows, [&](size_t /*b*/, size_t begin, size_t end) {
    for (size_t c = 0; c < columns; ++c) {
      float mean = 0.0f;
      for (size_t row = begin; row < end; ++row)
        mean += weights[row * columns + c] * dweights[row * columns + c];
      for (size_t row = begin; row < end; ++row) {
        const size_t at = row * columns + c;
        dx[at] = weights[at] * (dweights[at] - mean);
      }
    }
  });
  ZeroSpareRows(rows, dx);
}

void PlacesOfRows(const JaggedRows& rows, int32_t* to) {
  ForSequences(rows, [&](size_t /*b*/, size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) to[row] = static_cast<int32_t>(row - begin);
  });
  std::fill(to + At(rows.offsets, rows.sequences), to + rows.rows, 0);
}

}  // namespace pbx
