#include "base/sorted_index.h"

#include <map>

#include "base/hash.h"
#include "check.h"

using namespace pbx;

namespace {

std::vector<uint64_t> Keys(const std::map<uint64_t, int32_t>& model) {
  std::vector<uint64_t> keys;
  for (const auto& entry : model) keys.push_back(entry.first);
  return keys;
}

// A map from key to position, as the index should be.
std::map<uint64_t, int32_t> Model(std::vector<uint64_t> keys) {
  std::map<uint64_t, int32_t> model;
  for (const uint64_t key : keys) model[key] = 0;
  int32_t next = 0;
  for (auto& entry : model) entry.second = next++;
  return model;
}

void CheckAgainst(const std::map<uint64_t, int32_t>& model, const std::vector<uint64_t>& queries) {
  const std::vector<uint64_t> keys = Keys(model);
  const SortedIndex index(keys.data(), keys.size());
  std::vector<int32_t> found(queries.size(), 12345);
  index.FindBatch(queries.data(), queries.size(), found.data());
  for (size_t i = 0; i < queries.size(); ++i) {
    const auto entry = model.find(queries[i]);
    const int32_t expected = entry == model.end() ? -1 : entry->second;
    CHECK_EQ(found[i], expected);
    CHECK_EQ(index.Find(queries[i]), expected);
  }
}

}  // namespace

TEST(an_empty_index_finds_nothing) {
  CheckAgainst({}, {0, 1, UINT64_MAX});
  CHECK_EQ(SortedIndex().Find(7), -1);
}

TEST(the_ends_of_the_key_range_are_found) {
  const std::vector<uint64_t> queries = {0, 1, 2, UINT64_MAX - 1, UINT64_MAX, 1ULL << 63};
  CheckAgainst(Model({0}), queries);
  CheckAgainst(Model({UINT64_MAX}), queries);
  CheckAgainst(Model({0, UINT64_MAX}), queries);
  CheckAgainst(Model({1, 1ULL << 63, UINT64_MAX - 1}), queries);
}

TEST(uniform_keys_agree_with_a_map) {
  for (const uint64_t n : {1u, 2u, 3u, 31u, 32u, 33u, 1000u, 4096u, 5000u}) {
    std::vector<uint64_t> keys, queries;
    for (uint64_t i = 1; i <= n; ++i) {
      keys.push_back(Mix(i));
      queries.push_back(Mix(i));      // here
      queries.push_back(Mix(i) + 1);  // a neighbour that is not
      queries.push_back(Mix(i + 100000));
    }
    CheckAgainst(Model(keys), queries);
  }
}

// The directory assumes uniform keys for speed only.
TEST(keys_crowded_into_one_bucket_are_still_found) {
  std::vector<uint64_t> keys, queries;
  for (uint64_t i = 0; i < 300; ++i) {
    keys.push_back(1000 + 2 * i);
    queries.push_back(1000 + i);
  }
  CheckAgainst(Model(keys), queries);
}
