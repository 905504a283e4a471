#include "store/fuse_filter.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "check.h"

namespace pbx {
namespace {

using Keys = std::vector<uint64_t>;

Keys MakeKeys(size_t n, const std::function<uint64_t(uint64_t)>& key_of) {
  Keys keys;
  for (uint64_t i = 1; i <= n; ++i) keys.push_back(key_of(i));
  std::sort(keys.begin(), keys.end());
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

struct Built {
  FuseShape shape;
  std::vector<char> table;
  FuseFilter filter;
};

Built Build(const Keys& keys, uint32_t bits) {
  Built built;
  built.shape = BuildFuseFilter(keys.data(), keys.size(), bits, &built.table);
  CHECK(built.shape.Sane());
  CHECK_EQ(built.table.size(), built.shape.bytes());
  built.filter = FuseFilter(built.shape, keys.front(), keys.back(), built.table.data());
  return built;
}

// Those of asked, ascending, that the filter lets through.
size_t Passed(const Built& built, const Keys& asked) {
  std::vector<uint32_t> ask, passed(asked.size()), rejected(asked.size());
  for (uint32_t i = 0; i < asked.size(); ++i) ask.push_back(i);
  size_t n_rejected = 0;
  const size_t n = built.filter.Select(asked.data(), ask.data(), ask.size(), passed.data(),
                                       rejected.data(), &n_rejected);
  CHECK_EQ(n + n_rejected, asked.size());
  passed.resize(n);
  passed.insert(passed.end(), rejected.begin(),
                rejected.begin() + static_cast<ptrdiff_t>(n_rejected));
  std::sort(passed.begin(), passed.end());
  CHECK(passed == ask);  // each is in one of the two, once
  return n;
}

TEST(no_key_is_lost_whatever_the_keys) {
  const std::vector<std::function<uint64_t(uint64_t)>> kinds = {
      [](uint64_t i) { return Mix(i); },
      [](uint64_t i) { return i; },
      [](uint64_t i) { return UINT64_MAX - i; },
      [](uint64_t i) { return (i % 4) << 62 | i; },                       // in clusters
      [](uint64_t i) { return i < 3 ? i : (1ull << 63) + i; },            // two ends
      [](uint64_t i) { return 0xabcdef0000000000ull | (Mix(i) >> 24); },  // one range of many
  };
  for (const auto& kind : kinds) {
    for (const size_t n : {1, 2, 3, 4, 5, 10, 63, 64, 100, 1000, 20000}) {
      for (const uint32_t bits : {8u, 12u}) {
        const Keys keys = MakeKeys(n, kind);
        const Built built = Build(keys, bits);
        CHECK_EQ(built.shape.bits, bits);
        CHECK_EQ(Passed(built, keys), keys.size());
      }
    }
  }
}

double FalsePositives(const Keys& keys, uint32_t bits) {
  const Built built = Build(keys, bits);
  Keys absent;
  for (uint64_t i = 0; i < 200000; ++i) {
    const uint64_t key = Mix((uint64_t{1} << 40) + i);
    if (key > keys.front() && key < keys.back()) absent.push_back(key);
  }
  std::sort(absent.begin(), absent.end());
  return static_cast<double>(Passed(built, absent)) / static_cast<double>(absent.size());
}

TEST(of_absent_keys_1_in_256_or_1_in_4096_passes) {
  for (const size_t n : {1000, 100000}) {
    const Keys keys = MakeKeys(n, Mix);
    CHECK(FalsePositives(keys, 8) < 0.0045);
    CHECK(FalsePositives(keys, 12) < 0.0004);
  }
}

TEST(a_hashed_filter_passes_as_few) {
  const Keys keys = MakeKeys(100000, [](uint64_t i) { return (i % 4) << 62 | i; });
  const Built built = Build(keys, 8);
  CHECK_EQ(built.shape.by_hash, 1u);
  CHECK(FalsePositives(keys, 8) < 0.0045);
}

TEST(a_filter_costs_nine_or_fourteen_bits_a_row) {
  const Keys keys = MakeKeys(300000, Mix);
  CHECK(static_cast<double>(Build(keys, 8).table.size()) * 8 < 9.4 * 300000);
  CHECK(static_cast<double>(Build(keys, 12).table.size()) * 8 < 14.0 * 300000);
}

TEST(the_same_keys_make_the_same_bytes) {
  const Keys keys = MakeKeys(5000, Mix);
  CHECK(Build(keys, 12).table == Build(keys, 12).table);
  CHECK_EQ(HashBytes(Build(keys, 12).table.data(), Build(keys, 12).table.size(), 1),
           2498388929685544330ULL);
  CHECK_EQ(HashBytes(Build(keys, 8).table.data(), Build(keys, 8).table.size(), 1),
           13385321192711897521ULL);
}

TEST(without_a_filter_every_key_passes) {
  const Built none;
  const Keys keys = MakeKeys(100, Mix);
  CHECK_EQ(Passed(none, keys), keys.size());
}

TEST(shapes_that_no_writer_makes_are_not_sane) {
  CHECK((FuseShape{8, 2, 1, 0, 0}.Sane()));
  CHECK((FuseShape{0, 0, 0, 0, 0}.Sane()));
  for (const FuseShape& bad :
       {FuseShape{9, 2, 1, 0, 0}, FuseShape{8, 1, 1, 0, 0}, FuseShape{8, 19, 1, 0, 0},
        FuseShape{8, 2, 0, 0, 0}, FuseShape{8, 2, 1, 0, 2}, FuseShape{0, 0, 1, 0, 0}}) {
    CHECK(!bad.Sane());
  }
}

}  // namespace
}  // namespace pbx
