#include "serve/vector_index.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "../store/scratch.h"
#include "check.h"

namespace pbx {
namespace {

using test::Scratch;

std::vector<float> Random(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> one(-1, 1);
  std::vector<float> values(n);
  for (float& value : values) value = one(random);
  return values;
}

// The nearest bfloat16, ties to even, by arithmetic on doubles.
float Rounded(float value) {
  if (value == 0) return value;
  const int exponent = std::ilogb(value) - 7;
  return static_cast<float>(std::ldexp(std::nearbyint(std::ldexp(value, -exponent)), exponent));
}

void Write(const std::string& path, const std::vector<float>& vectors, size_t width,
           uint64_t version = 7) {
  auto writer = VectorIndexWriter::Create(path, width, version);
  CHECK_OK(writer.status());
  // In parts that do not end with a block.
  const size_t rows = vectors.size() / width, cut = rows / 3;
  CHECK_OK(writer.value()->Append(vectors.data(), cut));
  CHECK_OK(writer.value()->Append(vectors.data() + cut * width, rows - cut));
  CHECK_OK(writer.value()->Finish());
}

std::unique_ptr<VectorIndex> Opened(const std::string& path) {
  auto index = VectorIndex::Open(path);
  CHECK_OK(index.status());
  return std::move(index.value());
}

struct Results {
  std::vector<uint64_t> numbers;
  std::vector<float> products;
  bool operator==(const Results& other) const {
    return numbers == other.numbers && products == other.products;
  }
};

Results Search(const VectorIndex& index, const std::vector<float>& queries, size_t k, int threads) {
  const size_t q = queries.size() / index.width();
  Results out{std::vector<uint64_t>(q * k), std::vector<float>(q * k)};
  ThreadPool pool(threads);
  CHECK_OK(index.Search(queries.data(), q, k, &pool, out.numbers.data(), out.products.data()));
  return out;
}

Results BruteForce(const std::vector<float>& vectors, const std::vector<float>& queries,
                   size_t width, size_t k) {
  Results out;
  const size_t rows = vectors.size() / width;
  for (size_t q = 0; q < queries.size() / width; ++q) {
    std::vector<float> products(rows);
    for (size_t row = 0; row < rows; ++row) {
      float sum = 0;
      for (size_t d = 0; d < width; ++d) {
        sum += Rounded(vectors[row * width + d]) * queries[q * width + d];
      }
      products[row] = sum;
    }
    std::vector<uint64_t> order(rows);
    std::iota(order.begin(), order.end(), uint64_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](uint64_t a, uint64_t b) { return products[a] > products[b]; });
    for (size_t place = 0; place < k; ++place) {
      out.numbers.push_back(order[place]);
      out.products.push_back(products[order[place]]);
    }
  }
  return out;
}

TEST(a_search_finds_what_brute_force_finds_with_any_number_of_threads) {
  const Scratch scratch;
  const std::string path = scratch / "index";
  for (const size_t width : {1, 3, 32}) {
    for (const size_t rows : {1, 63, 64, 65, 20000}) {
      const std::vector<float> vectors = Random(rows * width, 1);
      const std::vector<float> queries = Random(37 * width, 2);
      Write(path, vectors, width);
      const auto index = Opened(path);
      CHECK_EQ(index->rows(), rows);
      CHECK_EQ(index->width(), width);
      CHECK_EQ(index->version(), uint64_t{7});
      const size_t k = std::min<size_t>(rows, 50);
      const Results expected = BruteForce(vectors, queries, width, k);
      for (const int threads : {1, 3}) {
        CHECK_EQ(Search(*index, queries, k, threads) == expected, true);
      }
    }
  }
}

TEST(of_equal_vectors_the_lower_numbers_come_first) {
  const Scratch scratch;
  const std::string path = scratch / "index";
  Write(path, std::vector<float>(10000, 0.5f), 1);
  const auto index = Opened(path);
  const Results found = Search(*index, {2.0f}, 9, 3);
  for (size_t i = 0; i < 9; ++i) {
    CHECK_EQ(found.numbers[i], uint64_t{i});
    CHECK_EQ(found.products[i], 1.0f);
  }
}

// The last block of 65 vectors has room for 63 more, which are zeros in the file.
TEST(the_padding_of_the_last_block_is_no_result) {
  const Scratch scratch;
  const std::string path = scratch / "index";
  Write(path, std::vector<float>(65, -1.0f), 1);
  const Results found = Search(*Opened(path), {1.0f}, 65, 1);
  for (size_t i = 0; i < 65; ++i) CHECK_EQ(found.numbers[i], uint64_t{i});
}

TEST(a_vector_that_is_not_finite_is_refused_by_its_number) {
  const Scratch scratch;
  auto writer = VectorIndexWriter::Create(scratch / "index", 2, 1);
  CHECK_OK(writer.status());
  std::vector<float> vectors = {1, 2, 3, 4};
  CHECK_OK(writer.value()->Append(vectors.data(), 2));
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                          -std::numeric_limits<float>::infinity(), 3.4e38f}) {
    vectors[3] = bad;
    const Status status = writer.value()->Append(vectors.data(), 2);
    CHECK_CODE(status, Code::kInvalidArgument);
    CHECK_EQ(status.message().find("vector 3 has ") == 0, true);
  }
  vectors[3] = 3.38e38f;
  CHECK_OK(writer.value()->Append(vectors.data(), 2));
  CHECK_OK(writer.value()->Finish());
  CHECK_EQ(Opened(scratch / "index")->rows(), uint64_t{4});
}

// The example of docs/formats/vectors.md.
TEST(the_bytes_of_a_file_are_those_of_the_format_page) {
  const Scratch scratch;
  const std::string path = scratch / "index";
  Write(path, {1.0f}, 1);
  std::string expected(128, '\0');
  expected[0] = '\x80';
  expected[1] = '\x3f';
  const unsigned char trailer[] = {7, 0, 0, 0, 0, 0, 0, 0, 1,    0,    0,    0,
                                   0, 0, 0, 0, 1, 0, 0, 0, 0x1d, 0x7e, 0x62, 0x7d};
  expected.append(reinterpret_cast<const char*>(trailer), sizeof(trailer));
  expected.append(28, '\0');
  const unsigned char end[] = {0x67, 0x15, 0x5e, 0x0b};
  expected.append(reinterpret_cast<const char*>(end), sizeof(end));
  expected += "PBXVECT1";
  CHECK_EQ(test::ReadAll(path) == expected, true);
}

TEST(a_damaged_or_shorter_file_is_refused) {
  const Scratch scratch;
  const std::string path = scratch / "index";
  Write(path, Random(100 * 3, 1), 3);
  const std::string whole = test::ReadAll(path);
  CHECK_EQ(whole.size(), size_t{2 * 64 * 3 * 2 + 64});
  for (const size_t size :
       {size_t{0}, size_t{63}, size_t{64}, whole.size() - 64, whole.size() - 1, whole.size() / 2}) {
    test::WriteAll(path, whole.substr(0, size));
    CHECK_CODE(VectorIndex::Open(path).status(), Code::kCorruption);
  }
  test::WriteAll(path, whole.substr(2));  // a trailer without all of its blocks
  CHECK_CODE(VectorIndex::Open(path).status(), Code::kCorruption);
  for (size_t at = 0; at < whole.size(); at += at + 90 < whole.size() ? 37 : 1) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 4);
    test::WriteAll(path, changed);
    CHECK_CODE(VectorIndex::Open(path).status(), Code::kCorruption);
  }
  CHECK_CODE(VectorIndex::Open(scratch / "none").status(), Code::kNotFound);
}

TEST(a_file_that_another_process_cuts_short_is_an_error_of_the_search) {
  const Scratch scratch;
  const std::string path = scratch / "index";
  Write(path, Random(20000, 1), 1);
  const auto index = Opened(path);
  CHECK_EQ(truncate(path.c_str(), 4096), 0);
  ThreadPool pool(1);
  const float query = 1;
  uint64_t number;
  float product;
  CHECK_CODE(index->Search(&query, 1, 1, &pool, &number, &product), Code::kCorruption);
}

TEST(a_full_disk_leaves_no_file) {
  const Scratch scratch;
  const std::string path = scratch / "index";
  const std::vector<float> vectors = Random(640, 1);
  auto writer = VectorIndexWriter::Create(path, 1, 1);
  CHECK_OK(writer.status());
  InjectWriteFault(300, ENOSPC);
  CHECK_CODE(writer.value()->Append(vectors.data(), 640), Code::kOutOfSpace);
  InjectWriteFault(-1, 0);
  writer.value().reset();
  CHECK_CODE(VectorIndex::Open(path).status(), Code::kNotFound);
}

}  // namespace
}  // namespace pbx
