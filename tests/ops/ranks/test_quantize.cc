#include "ranks/quantize.h"

#include <cmath>
#include <limits>
#include <vector>

#include "check.h"

namespace pbx {
namespace {

constexpr Wire kWires[] = {Wire::kFloat16, Wire::kBfloat16, Wire::kInt8};
constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> ThereAndBack(Wire wire, const std::vector<float>& rows, size_t columns) {
  const size_t n = rows.size() / columns;
  std::vector<char> packed(n * WireBytes(wire, columns));
  PackRows(wire, rows.data(), n, columns, packed.data());
  std::vector<float> found(rows.size());
  UnpackRows(wire, packed.data(), n, columns, found.data());
  return found;
}

TEST(a_record_is_as_small_as_the_goals_ask) {
  for (const size_t dim : {size_t{16}, size_t{64}}) {
    const double full = 4.0 * static_cast<double>(3 + dim);
    const auto share = [&](Wire wire) {
      return static_cast<double>(WireBytes(wire, 3 + dim)) / full;
    };
    CHECK(share(Wire::kInt8) <= (dim == 16 ? 0.45 : 0.31));
    CHECK(share(Wire::kFloat16) <= (dim == 16 ? 0.60 : 0.53));
    CHECK_EQ(WireBytes(Wire::kBfloat16, 3 + dim), WireBytes(Wire::kFloat16, 3 + dim));
  }
}

TEST(counts_arrive_as_they_are) {
  for (const Wire wire : kWires) {
    const std::vector<float> found = ThereAndBack(wire, {16777215.0f, 70001.0f, 1, 2, 3}, 5);
    CHECK_EQ(found[0], 16777215.0f);
    CHECK_EQ(found[1], 70001.0f);
  }
}

TEST(ties_go_to_even_and_what_is_too_large_to_the_largest) {
  // Halves next to 1 have steps of 2^-10.
  const std::vector<float> half = ThereAndBack(
      Wire::kFloat16, {0, 0, 1.0f + 0x1p-11f, 1.0f + 3 * 0x1p-11f, -1e9f, 0x1p-24f}, 6);
  CHECK_EQ(half[2], 1.0f);
  CHECK_EQ(half[3], 1.0f + 2 * 0x1p-10f);
  CHECK_EQ(half[4], -65504.0f);
  CHECK_EQ(half[5], 0x1p-24f);  // the smallest
  const std::vector<float> brain =
      ThereAndBack(Wire::kBfloat16, {0, 0, 1.0f + 0x1p-8f, 1.0f + 3 * 0x1p-8f, 3.4e38f}, 5);
  CHECK_EQ(brain[2], 1.0f);
  CHECK_EQ(brain[3], 1.0f + 2 * 0x1p-7f);
  CHECK(std::isfinite(brain[4]));
  // embedx of a scale of 1: 127 is the largest.
  const std::vector<float> bytes = ThereAndBack(Wire::kInt8, {0, 0, 9, 127, 0.5f, 1.5f, -2.5f}, 7);
  const std::vector<float> expected = {0, 0, 9, 127, 0, 2, -2};
  CHECK(bytes == expected);
}

TEST(what_is_not_finite_is_seen_by_the_receiver) {
  for (const Wire wire : kWires) {
    const std::vector<float> found =
        ThereAndBack(wire, {1, 0, NAN, 1, kInf, 0, 0, -kInf, NAN, 2}, 5);
    CHECK(std::isnan(found[2]));
    CHECK(!std::isfinite(found[4]));
    CHECK_EQ(found[7], -kInf);
    CHECK(std::isnan(found[8]));
  }
}

TEST(an_embedx_of_nearly_nothing_is_sent_as_zeros) {
  const std::vector<float> found = ThereAndBack(Wire::kInt8, {0, 0, 0, 1e-38f, -1e-40f, 0}, 6);
  for (const float value : found) CHECK_EQ(value, 0.0f);
}

TEST(what_is_lost_is_sent_with_the_next) {
  for (const Wire wire : kWires) {
    constexpr size_t kColumns = 6;
    constexpr int kSteps = 50;
    std::vector<float> residual(3 * (kColumns - 1));
    const int32_t place = 2;
    double sums[kColumns] = {}, sent_sums[kColumns] = {};
    for (int step = 0; step < kSteps; ++step) {
      const auto t = static_cast<float>(step);
      const float row[kColumns] = {2, 1, 0.1f + 0.01f * t, 0.3f, -0.007f * t, 1.0f / 3};
      std::vector<char> packed(WireBytes(wire, kColumns));
      CHECK_OK(PackWithResidual(wire, row, 1, kColumns, &place, residual.data(), 3, packed.data()));
      float sent[kColumns];
      UnpackRows(wire, packed.data(), 1, kColumns, sent);
      for (size_t c = 0; c < kColumns; ++c) {
        sums[c] += static_cast<double>(row[c]);
        sent_sums[c] += static_cast<double>(sent[c]);
      }
    }
    const float* const kept = residual.data() + 2 * (kColumns - 1);
    CHECK_EQ(kept[0], 2.0f);
    for (size_t c = 2; c < kColumns; ++c) {
      CHECK_NEAR(sent_sums[c] + static_cast<double>(kept[c - 1]), sums[c], 1e-5);
      CHECK(std::fabs(kept[c - 1]) < 0.01f);
    }
    for (size_t c = 0; c < 2 * (kColumns - 1); ++c) CHECK_EQ(residual[c], 0.0f);
  }
}

TEST(a_gradient_that_is_not_finite_leaves_nothing_for_the_next) {
  for (const Wire wire : kWires) {
    for (const float bad : {NAN, kInf, -kInf}) {
      std::vector<float> residual(4);
      std::vector<char> packed(WireBytes(wire, 5));
      float sent[5];
      const int32_t place = 0;
      for (const float value : {bad, 1.0f}) {
        const float row[] = {1, 0, value, value, 1};
        CHECK_OK(PackWithResidual(wire, row, 1, 5, &place, residual.data(), 1, packed.data()));
        UnpackRows(wire, packed.data(), 1, 5, sent);
        CHECK_EQ(std::isfinite(sent[2]), std::isfinite(value));
        for (size_t c = 1; c < 4; ++c) CHECK(std::fabs(residual[c]) < 0.01f);
      }
      for (size_t c = 2; c < 5; ++c) CHECK_EQ(sent[c], 1.0f);
    }
  }
}

TEST(a_place_that_is_not_there_changes_nothing) {
  const std::vector<float> rows = {1, 1, 1, 1, 1, 1, 1, 1};
  std::vector<float> residual(2 * 3);
  std::vector<char> packed(2 * WireBytes(Wire::kInt8, 4));
  for (const int32_t bad : {-1, 2}) {
    const int32_t places[] = {0, bad};
    CHECK_CODE(
        PackWithResidual(Wire::kInt8, rows.data(), 2, 4, places, residual.data(), 2, packed.data()),
        Code::kInvalidArgument);
    CHECK_EQ(residual[0], 0.0f);
  }
}

}  // namespace
}  // namespace pbx
