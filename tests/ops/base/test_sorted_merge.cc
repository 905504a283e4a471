#include "base/sorted_merge.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "check.h"

namespace pbx {
namespace {

using Keys = std::vector<uint64_t>;
using Pairs = std::vector<std::pair<size_t, size_t>>;

Pairs Common(const Keys& a, const Keys& b) {
  Pairs pairs;
  ForEachCommon(a.data(), a.size(), b.data(), b.size(),
                [&](size_t i, size_t j) { pairs.emplace_back(i, j); });
  return pairs;
}

Pairs Naive(const Keys& a, const Keys& b) {
  std::map<uint64_t, size_t> place;
  for (size_t j = 0; j < b.size(); ++j) place[b[j]] = j;
  Pairs pairs;
  for (size_t i = 0; i < a.size(); ++i) {
    if (place.count(a[i]) != 0) pairs.emplace_back(i, place[a[i]]);
  }
  return pairs;
}

Keys Random(size_t n, uint64_t range, uint64_t seed) {
  Keys keys;
  for (size_t i = 0; i < n; ++i) keys.push_back(Mix(seed * 1000003 + i) % range);
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

TEST(a_join_worked_by_hand) {
  CHECK((Common({1, 3, 5, 7}, {0, 3, 4, 7, 9}) == Pairs{{1, 1}, {3, 3}}));
  CHECK((Common({0, UINT64_MAX}, {0, 1, UINT64_MAX}) == Pairs{{0, 0}, {1, 2}}));
}

TEST(empty_and_disjoint_lists_have_nothing_in_common) {
  CHECK(Common({}, {}).empty());
  CHECK(Common({1}, {}).empty());
  CHECK(Common({}, {1}).empty());
  CHECK(Common({1, 2, 3}, {4, 5, 6}).empty());
  CHECK(Common({4, 5, 6}, {1, 2, 3}).empty());
}

TEST(lists_of_all_lengths_and_densities_agree_with_a_map) {
  uint64_t seed = 0;
  for (const size_t n : {1u, 2u, 7u, 100u, 3000u}) {
    for (const size_t m : {1u, 3u, 64u, 1000u}) {
      for (const uint64_t range : {uint64_t{4}, uint64_t{500}, uint64_t{1} << 40}) {
        const Keys a = Random(n, range, ++seed), b = Random(m, range, ++seed);
        CHECK(Common(a, b) == Naive(a, b));
      }
    }
  }
}

}  // namespace
}  // namespace pbx
