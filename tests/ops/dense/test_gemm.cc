#include "dense/gemm.h"

#include <cstring>

#include "check.h"

using namespace pbx;

namespace {

float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

uint16_t Rounded(uint32_t bits) {
  const float from = FromBits(bits);
  uint16_t to = 0;
  ToBfloat16(1, &from, &to);
  return to;
}

}  // namespace

TEST(bfloat16_rounds_to_nearest_and_ties_to_even) {
  CHECK_EQ(Rounded(0x3f800000), 0x3f80);
  CHECK_EQ(Rounded(0x3f807fff), 0x3f80);  // below a tie
  CHECK_EQ(Rounded(0x3f808000), 0x3f80);  // a tie, even below
  CHECK_EQ(Rounded(0x3f808001), 0x3f81);
  CHECK_EQ(Rounded(0x3f818000), 0x3f82);  // a tie, even above
  CHECK_EQ(Rounded(0xbf818000), 0xbf82);
  CHECK_EQ(Rounded(0x80000000), 0x8000);
}

TEST(bfloat16_keeps_infinity_and_nan) {
  CHECK_EQ(Rounded(0x7f800000), 0x7f80);
  CHECK_EQ(Rounded(0xff800000), 0xff80);
  CHECK_EQ(Rounded(0x7f7fffff), 0x7f80);  // the largest float is nearer to infinity
  CHECK_EQ(Rounded(0x7fc00000), 0x7fc0);
  CHECK_EQ(Rounded(0x7f800001), 0x7fc0);  // its payload would be lost
  CHECK_EQ(Rounded(0xffffffff), 0xffff);
}

TEST(bfloat16_arrays_are_converted_element_by_element) {
  std::vector<float> from(37);
  for (size_t i = 0; i < from.size(); ++i) from[i] = 0.37f * static_cast<float>(i) - 5.0f;
  std::vector<uint16_t> to(from.size());
  ToBfloat16(from.size(), from.data(), to.data());
  for (size_t i = 0; i < from.size(); ++i) {
    uint32_t bits;
    std::memcpy(&bits, &from[i], sizeof(bits));
    CHECK_EQ(to[i], Rounded(bits));
  }
}

TEST(a_process_without_onednn_is_told_what_is_missing) {
  GemmShape shape;
  shape.m = shape.k = shape.n = shape.a_row = shape.b_row = shape.c_row = 1;
  const Result<const Gemm*> gemm = Gemm::Of(shape);
  CHECK(!gemm.ok());
  CHECK(gemm.status().code() == Code::kNotFound);
  CHECK(gemm.status().message().find("found no libdnnl.so.3") != std::string::npos);
  CHECK(!GemmLibrary().ok());
  CHECK(SupportOf(GemmType::kBfloat16) == GemmSupport::kNone);
}

TEST(a_single_row_that_is_not_contiguous_is_refused) {
  GemmShape shape;
  shape.m = shape.n = shape.a_row = shape.b_row = shape.c_row = 1;
  shape.k = 32;
  shape.a_column = 129;
  const Result<const Gemm*> gemm = Gemm::Of(shape);
  CHECK(!gemm.ok());
  CHECK(gemm.status().code() == Code::kInvalidArgument);
  CHECK(gemm.status().message().find("expected a contiguous row, found stride 129") !=
        std::string::npos);
  shape.k = shape.a_column = 1;
  shape.n = 32;
  shape.b_column = 7;
  const Result<const Gemm*> transposed = Gemm::Of(shape);
  CHECK(!transposed.ok());
  CHECK(transposed.status().message().find("found stride 7") != std::string::npos);
}
