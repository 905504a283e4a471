// The order in which the occurrences of a row are added up.
#include "row/sum_order.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include "check.h"
#include "literal_sum.h"
#include "row/feasign.h"

namespace pbx {
namespace {

using Floats = std::vector<float>;

struct OneSum {
  float value = 7.0f;
  void Zero() { value = 0.0f; }
  void Add(const OneSum& more) { value += more.value; }
};

float Sum(const Floats& values) {
  OneSum sum;
  const auto add = [&](int64_t i, OneSum* to) { to->value += values[static_cast<size_t>(i)]; };
  SumInOrder(0, static_cast<int64_t>(values.size()), add, &sum);
  return sum.value;
}

// A value for each chunk, in its last occurrence, and then those of the rest.
float SumOfChunks(const Floats& chunks, const Floats& rest = {}) {
  Floats values(chunks.size() * 256);
  for (size_t j = 0; j < chunks.size(); ++j) values[j * 256 + 255] = chunks[j];
  values.insert(values.end(), rest.begin(), rest.end());
  return Sum(values);
}

TEST(a_sum_has_the_bits_of_the_definition_and_is_right) {
  std::vector<size_t> counts = test::Frequencies();
  counts.push_back(0);
  for (uint64_t i = 0; i < 30; ++i) counts.push_back(Mix(i) % 20000);
  for (const size_t count : counts) {
    Floats values(count);
    double exact = 0, size = 0;
    for (size_t i = 0; i < count; ++i) {
      values[i] = static_cast<float>(static_cast<int64_t>(Mix(i + count))) * 0x1p-63f;
      exact += static_cast<double>(values[i]);
      size += std::fabs(static_cast<double>(values[i]));
    }
    const float found = Sum(values), expected = test::LiteralSum(values);
    CHECK(std::memcmp(&found, &expected, sizeof(found)) == 0);
    CHECK_NEAR(static_cast<double>(found), exact, 1e-6 * size);
  }
}

// 2^24 + 1 is 2^24 in float32, and 2^24 + 2 is not.
TEST(fewer_occurrences_than_a_chunk_are_added_in_order) {
  Floats values(255, 1.0f);
  values[0] = 0x1p24f;
  CHECK_EQ(Sum(values), 0x1p24f);
  values[0] = 1.0f;
  values[254] = 0x1p24f;
  CHECK_EQ(Sum(values), 0x1p24f + 254.0f);
}

TEST(the_sums_of_chunks_are_added_by_the_tree_of_their_number) {
  CHECK_EQ(SumOfChunks({0x1p24f, 1, 1}), 0x1p24f);                              // (0 1) 2
  CHECK_EQ(SumOfChunks({0x1p24f, 0, 1, 1}), 0x1p24f + 2.0f);                    // (0 1) (2 3)
  CHECK_EQ(SumOfChunks({0x1p24f, 0, 0, 1, 1}), 0x1p24f);                        // ((0 1) (2 3)) 4
  CHECK_EQ(SumOfChunks({0x1p24f, 0, 0, 0, 1, 0, 1}), 0x1p24f + 2.0f);           // ... ((4 5) 6)
  CHECK_EQ(SumOfChunks({0, 0x1p24f, 0, 0, 0, 0, 0, 0, 1, 1}), 0x1p24f + 2.0f);  // ... (8 9)
}

TEST(occurrences_after_the_chunks_are_added_last_in_order) {
  CHECK_EQ(SumOfChunks({0x1p24f}, {1, 1}), 0x1p24f);
  CHECK_EQ(SumOfChunks({1, 1}, {0x1p24f}), 0x1p24f + 2.0f);
}

}  // namespace
}  // namespace pbx
