#include "base/hash.h"

#include <cstdint>
#include <initializer_list>
#include <set>
#include <string>

#include "check.h"

namespace pbx {
namespace {

// Stored files hold these numbers: if one of them changes, every file written before is lost.
TEST(mix_and_hash_bytes_have_their_golden_values) {
  CHECK_EQ(Mix(0), 0u);
  CHECK_EQ(Mix(1), 0x5692161d100b05e5u);
  CHECK_EQ(Mix(2), 0xdbd238973a2b148au);
  CHECK_EQ(Mix(0x9e3779b97f4a7c15u), 0xe220a8397b1dcdafu);  // splitmix64's first output of seed 0
  CHECK_EQ(Mix(UINT64_MAX), 0xb4d055fcf2cbbd7bu);
  CHECK_EQ(Unmix(1), 0x966dbfc16913c5d2u);

  const char text[] = "0123456789abcdef";
  CHECK_EQ(HashBytes(text, 0, 0), 0x48218226ff3cd4bfu);
  CHECK_EQ(HashBytes(text, 1, 0), 0x936f57de1e24ed12u);
  CHECK_EQ(HashBytes(text, 8, 0), 0xda67bf364e8d7344u);
  CHECK_EQ(HashBytes(text, 16, 0), 0x89a8e27d930166d4u);
  CHECK_EQ(HashBytes(text, 11, 42), 0xca0fb4df4b44d6c3u);
}

TEST(unmix_takes_mix_back_and_mix_takes_unmix_back) {
  uint64_t random = 1;
  size_t wrong = 0;
  const auto both = [&](uint64_t x) { wrong += Unmix(Mix(x)) != x || Mix(Unmix(x)) != x; };
  for (int bit = 0; bit < 64; ++bit) {
    const uint64_t x = uint64_t{1} << bit;
    for (const uint64_t near : {x - 1, x, x + 1, ~x}) both(near);
  }
  for (int i = 0; i < 1000000; ++i) both(random = random * 6364136223846793005u + 1);
  CHECK_EQ(wrong, 0u);
}

TEST(every_byte_and_the_length_and_the_seed_change_the_hash) {
  const std::string base(40, '\0');
  for (size_t size = 0; size <= base.size(); ++size) {
    std::set<uint64_t> hashes = {HashBytes(base.data(), size, 0)};
    for (size_t at = 0; at < size; ++at) {
      std::string other = base;
      other[at] = 1;
      hashes.insert(HashBytes(other.data(), size, 0));
    }
    CHECK_EQ(hashes.size(), size + 1);
  }
  std::set<uint64_t> lengths_and_seeds;
  for (size_t size = 0; size <= base.size(); ++size) {
    for (uint64_t seed = 0; seed < 100; ++seed) {
      lengths_and_seeds.insert(HashBytes(base.data(), size, seed));
    }
  }
  CHECK_EQ(lengths_and_seeds.size(), 100 * (base.size() + 1));
}

TEST(zero_bytes_may_come_with_a_null_pointer) {
  CHECK_EQ(HashBytes(nullptr, 0, 7), HashBytes("", 0, 7));
}

}  // namespace
}  // namespace pbx
