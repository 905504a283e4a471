#include "row/codec.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "check.h"

namespace pbx {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

RowLayout Layout(int dim) {
  RowLayout layout;
  layout.embedx_dim = dim;
  layout.embedx_state = 2;
  return layout;
}

std::vector<float> RowWith(const RowLayout& layout, float value) {
  std::vector<float> row(static_cast<size_t>(layout.words()));
  for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>(i) + 0.1f;
  for (int i = 0; i < layout.embedx_dim; ++i) {
    row[static_cast<size_t>(layout.embedx_at() + i)] = value;
  }
  return row;
}

TEST(every_half_is_converted_there_and_back) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = FloatOfHalf(half);
    if (std::isnan(value)) {
      CHECK(std::isnan(FloatOfHalf(HalfOf(value))));
    } else {
      CHECK_EQ(HalfOf(value), half);
    }
  }
  CHECK_EQ(FloatOfHalf(0x3c00), 1.0f);
  CHECK_EQ(FloatOfHalf(0x0001), std::ldexp(1.0f, -24));
  CHECK_EQ(FloatOfHalf(0xfbff), -65504.0f);
  CHECK_EQ(FloatOfHalf(0x7c00), kInf);
}

TEST(a_rounded_row_is_packed_without_loss) {
  for (const Precision precision :
       {Precision::kFloat32, Precision::kFloat16, Precision::kBfloat16}) {
    for (const int dim : {1, 2, 5, 8}) {
      const RowLayout layout = Layout(dim);
      const RowCodec codec(layout, precision);
      const uint32_t saved =
          precision == Precision::kFloat32 ? 0 : static_cast<uint32_t>(dim / 2) * 4;
      CHECK_EQ(codec.bytes(), layout.bytes() - saved);
      for (const float value :
           {0.0f, -0.0f, 1.0f, 0.1f, -3.3e-5f, 1e-7f, -1e-9f, 7e4f, 1e30f, -3.4e38f, kInf, -kInf}) {
        std::vector<float> row = RowWith(layout, value);
        codec.Round(1, 2, 3, row.data());
        std::vector<char> packed(codec.bytes(), 'x');
        codec.Pack(row.data(), packed.data());
        std::vector<float> back(row.size(), -7.0f);
        codec.Unpack(packed.data(), back.data());
        CHECK_EQ(std::memcmp(row.data(), back.data(), layout.bytes()), 0);
        std::vector<float> again = row;
        codec.Round(1, 2, 4, again.data());  // what is representable is not rounded again
        CHECK_EQ(std::memcmp(row.data(), again.data(), layout.bytes()), 0);
      }
    }
  }
}

TEST(the_padding_of_an_odd_number_of_columns_is_zero) {
  const RowLayout layout = Layout(5);
  const std::vector<float> row = RowWith(layout, 1.0f);
  for (const Precision precision : {Precision::kFloat16, Precision::kBfloat16}) {
    const RowCodec codec(layout, precision);
    std::vector<char> packed(codec.bytes(), 'x');
    codec.Pack(row.data(), packed.data());
    const size_t end = static_cast<size_t>(layout.embedx_at()) * 4 + 5 * 2;
    CHECK(packed[end - 1] != 0);
    CHECK_EQ(packed[end], 0);
    CHECK_EQ(packed[end + 1], 0);
  }
}

TEST(rounding_goes_to_a_neighbour_and_is_right_on_average) {
  const RowLayout layout = Layout(8);
  struct Case {
    Precision precision;
    float value, below, above;
  };
  const float unit = std::ldexp(1.0f, -24);
  const Case cases[] = {
      {Precision::kFloat16, 1.0f + 0.25f / 1024, 1.0f, 1.0f + 1.0f / 1024},
      {Precision::kFloat16, -0.3f, -0.300048828125f, -0.2998046875f},
      {Precision::kFloat16, 2.75f * unit, 2 * unit, 3 * unit},
      {Precision::kFloat16, 0.5f * unit, 0.0f, unit},
      {Precision::kBfloat16, 1.0f + 0.75f / 128, 1.0f, 1.0f + 1.0f / 128},
      {Precision::kBfloat16, -1.5f - 0.25f / 128, -1.5f - 1.0f / 128, -1.5f},
  };
  for (const Case& c : cases) {
    const RowCodec codec(layout, c.precision);
    double sum = 0;
    constexpr int kRows = 20000;
    for (uint64_t key = 1; key <= kRows; ++key) {
      std::vector<float> row = RowWith(layout, c.value);
      codec.Round(9, key, 5, row.data());
      for (int i = 0; i < 8; ++i) {
        const float got = row[static_cast<size_t>(layout.embedx_at() + i)];
        CHECK(got >= c.below - std::abs(c.below) * 1e-5f &&
              got <= c.above + std::abs(c.above) * 1e-5f);
        sum += static_cast<double>(got);
      }
    }
    const double step = static_cast<double>(c.above - c.below);
    CHECK(std::abs(sum / (8 * kRows) - static_cast<double>(c.value)) < 0.01 * std::abs(step));
  }
}

TEST(beyond_the_largest_half_is_the_largest_and_nan_stays) {
  const RowLayout layout = Layout(1);
  const auto round = [&](Precision precision, float value) {
    std::vector<float> row = RowWith(layout, value);
    RowCodec(layout, precision).Round(1, 2, 3, row.data());
    return row[static_cast<size_t>(layout.embedx_at())];
  };
  CHECK_EQ(round(Precision::kFloat16, 1e6f), 65504.0f);
  CHECK_EQ(round(Precision::kFloat16, -65505.0f), -65504.0f);
  CHECK_EQ(round(Precision::kFloat16, kInf), kInf);
  CHECK(std::isnan(round(Precision::kFloat16, std::nanf(""))));
  CHECK(std::isfinite(round(Precision::kBfloat16, 3.4028e38f)));
  CHECK_EQ(round(Precision::kBfloat16, -kInf), -kInf);
  CHECK_EQ(round(Precision::kFloat32, 0.1f), 0.1f);
}

TEST(the_chance_depends_on_seed_key_pass_and_column_alone) {
  const RowLayout layout = Layout(8);
  const RowCodec codec(layout, Precision::kBfloat16);
  const auto round = [&](uint64_t seed, uint64_t key, uint64_t pass) {
    std::vector<float> row = RowWith(layout, 0.1f);
    codec.Round(seed, key, pass, row.data());
    return row;
  };
  CHECK(round(1, 2, 3) == round(1, 2, 3));
  // Eight columns agree by chance in one case of some hundred.
  int different = 0;
  for (uint64_t i = 1; i <= 100; ++i) {
    different += round(1, 2, 3) != round(1 + i, 2, 3) ? 1 : 0;
    different += round(1, 2, 3) != round(1, 2 + i, 3) ? 1 : 0;
    different += round(1, 2, 3) != round(1, 2, 3 + i) ? 1 : 0;
  }
  CHECK(different > 200);
}

TEST(only_32_bits_share_a_fingerprint_with_files_of_before) {
  const RowLayout layout = Layout(8);
  const uint64_t plain = RowCodec(layout, Precision::kFloat32).Fingerprint();
  const uint64_t half = RowCodec(layout, Precision::kFloat16).Fingerprint();
  const uint64_t bfloat = RowCodec(layout, Precision::kBfloat16).Fingerprint();
  CHECK_EQ(plain, layout.Fingerprint());
  CHECK(plain != half && half != bfloat && plain != bfloat);
}

TEST(a_layout_without_further_counts_has_the_fingerprint_that_it_always_had) {
  RowLayout layout;
  CHECK_EQ(layout.Fingerprint(), 0xe8ce5d727c5fb905ULL);
  layout.expand_dim = 4;
  const uint64_t expanded = layout.Fingerprint();
  CHECK_EQ(expanded, 0x6b5be2b9df0acd34ULL);
  layout.counts = 1;
  CHECK(layout.Fingerprint() != expanded);
  layout.expand_dim = 0;
  const uint64_t one = layout.Fingerprint();
  layout.counts = 2;
  CHECK(layout.Fingerprint() != one);
}

TEST(further_counts_are_packed_without_loss) {
  for (const Precision precision : {Precision::kFloat32, Precision::kFloat16}) {
    RowLayout layout = Layout(5);
    layout.counts = 2;
    const RowCodec codec(layout, precision);
    const std::vector<float> row = RowWith(layout, 0.5f);
    std::vector<char> packed(codec.bytes());
    std::vector<float> unpacked(row.size());
    codec.Pack(row.data(), packed.data());
    codec.Unpack(packed.data(), unpacked.data());
    CHECK(unpacked == row);
  }
}

}  // namespace
}  // namespace pbx
