#include "dense/jagged_rows.h"

#include <limits>

#include "check.h"

using namespace pbx;

namespace {

using Floats = std::vector<float>;

// Sequences of 2, 0 and 1 rows of one column.
const int32_t kOffsets[] = {0, 2, 2, 3};
const JaggedRows kRows{kOffsets, 3, 1, 4};  // one spare row

}  // namespace

TEST(offsets_are_sums_of_lengths) {
  const float lengths[] = {2, 0, 1};
  int32_t offsets[4];
  CHECK_OK(OffsetsOf(lengths, 3, 2, offsets));
  for (size_t i = 0; i < 4; ++i) CHECK_EQ(offsets[i], kOffsets[i]);
}

TEST(a_length_that_is_none_is_an_error) {
  int32_t offsets[2];
  for (const float length : {-1.0f, 3.0f, 0.5f, std::numeric_limits<float>::quiet_NaN()})
    CHECK_CODE(OffsetsOf(&length, 1, 2, offsets), Code::kInvalidArgument);
}

TEST(offsets_beyond_the_rows_or_descending_are_an_error) {
  CHECK_OK(CheckRows(kOffsets, 3, 3));
  CHECK_OK(CheckRows(kOffsets, 3, 4));
  CHECK_CODE(CheckRows(kOffsets, 3, 2), Code::kInvalidArgument);
  const int32_t descending[] = {0, 2, 1}, late[] = {1, 2};
  CHECK_CODE(CheckRows(descending, 2, 9), Code::kInvalidArgument);
  CHECK_CODE(CheckRows(late, 1, 9), Code::kInvalidArgument);
}

TEST(pack_drops_empty_places_and_unpack_restores_them) {
  const Floats padded = {1, 2, 8, 8, 3, 8};
  Floats rows(4, -1.0f), back(6, -1.0f);
  PackRows(kRows, 2, RowOrder::kSame, padded.data(), rows.data());
  CHECK(rows == (Floats{1, 2, 3, 0}));
  UnpackRows(kRows, 2, RowOrder::kSame, rows.data(), back.data());
  CHECK(back == (Floats{1, 2, 0, 0, 3, 0}));
  PackRows(kRows, 2, RowOrder::kReversed, padded.data(), rows.data());
  CHECK(rows == (Floats{2, 1, 3, 0}));
  UnpackRows(kRows, 2, RowOrder::kReversed, rows.data(), back.data());
  CHECK(back == (Floats{1, 2, 0, 0, 3, 0}));
}

TEST(repeat_and_sum_are_each_others_transpose) {
  const Floats x = {5, 6, 7}, from = {1, 2, 3, 100};
  Floats rows(4, -1.0f), sums(3, -1.0f);
  RepeatRows(kRows, x.data(), rows.data());
  CHECK(rows == (Floats{5, 5, 7, 0}));
  SumRows(kRows, from.data(), sums.data());
  CHECK(sums == (Floats{3, 0, 3}));
}

TEST(a_softmax_is_over_the_rows_of_a_sequence) {
  const Floats x = {0, 0, 9, 1};
  Floats weights(4, -1.0f), dx(4, -1.0f);
  SoftmaxRows(kRows, x.data(), weights.data());
  CHECK(weights == (Floats{0.5f, 0.5f, 1, 0}));
  const Floats dweights = {1, 3, 7, 9};
  SoftmaxRowsBackward(kRows, weights.data(), dweights.data(), dx.data());
  CHECK(dx == (Floats{-0.5f, 0.5f, 0, 0}));
}

TEST(places_count_from_the_start_of_a_sequence) {
  int32_t places[4];
  PlacesOfRows(kRows, places);
  const int32_t expected[] = {0, 1, 0, 0};
  for (size_t i = 0; i < 4; ++i) CHECK_EQ(places[i], expected[i]);
}
