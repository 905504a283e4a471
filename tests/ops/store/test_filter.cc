#include "store/filter.h"

#include <cstring>
#include <vector>

#include "check.h"

namespace pbx {
namespace {

// Keys of a segment that is one of very many ranges: their first 24 bits agree.
uint64_t NarrowKey(uint64_t i) { return 0xabcdef0000000000ULL | (Mix(i) >> 24); }

template <typename KeyOf>
double FalsePositives(size_t rows, const KeyOf& key_of) {
  Filter filter(Filter::LinesFor(rows));
  for (size_t i = 0; i < rows; ++i) filter.Add(key_of(i));
  for (size_t i = 0; i < rows; ++i) CHECK(filter.MayContain(key_of(i)));
  size_t passed = 0;
  const size_t asked = 200000;
  for (size_t i = 0; i < asked; ++i) passed += filter.MayContain(key_of(rows + 1 + i)) ? 1 : 0;
  return static_cast<double>(passed) / static_cast<double>(asked);
}

TEST(no_key_is_lost_and_under_two_percent_of_absent_ones_pass) {
  for (const size_t rows : {1000, 30000, 1000000}) {
    CHECK(FalsePositives(rows, [](uint64_t i) { return Mix(i); }) < 0.02);
    CHECK(FalsePositives(rows, NarrowKey) < 0.02);
    CHECK(FalsePositives(rows, [](uint64_t i) { return i; }) < 0.02);
  }
}

TEST(a_filter_costs_ten_bits_a_row) {
  CHECK_EQ(Filter::LinesFor(1), 1u);
  CHECK_EQ(Filter::LinesFor(51), 1u);
  CHECK_EQ(Filter::LinesFor(52), 2u);
  CHECK_EQ(Filter(Filter::LinesFor(512000)).bytes(), size_t{640000});
}

TEST(the_bits_of_a_key_are_those_of_the_format_page) {
  Filter filter(4);
  filter.Add(0x0123456789abcdefULL);
  const uint64_t h = Mix(0x0123456789abcdefULL ^ 0x9e3779b97f4a7c15ULL);
  const uint64_t g = h * 0xd6e8feb86659fd93ULL;
  std::vector<uint64_t> expected(32);
  for (int i = 0; i < 6; ++i) {
    const uint64_t bit = (g >> (10 + 9 * i)) & 511;
    expected[((h >> 32) * 4 >> 32) * 8 + bit / 64] |= 1ULL << (bit % 64);
  }
  CHECK_EQ(std::memcmp(filter.data(), expected.data(), filter.bytes()), 0);
}

}  // namespace
}  // namespace pbx
