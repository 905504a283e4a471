#include "store/fuse_filter.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/buffer.h"

namespace pbx {
namespace {

constexpr uint32_t kMaxWindowLog2 = 18;
constexpr uint32_t kOrderedSeeds = 4;
constexpr uint32_t kHashedSeeds = 64;

uint32_t Get(const char* table, uint32_t bits, uint64_t i) {
  if (bits == 8) return static_cast<unsigned char>(table[i]);
  uint16_t two;  // 12 bits: two positions share three bytes
  std::memcpy(&two, table + (3 * i) / 2, 2);
  return (two >> (4 * (i & 1))) & 0xfffu;
}

void Set(char* table, uint32_t bits, uint64_t i, uint32_t value) {
  if (bits == 8) {
    table[i] = static_cast<char>(value);
    return;
  }
  uint16_t two;
  std::memcpy(&two, table + (3 * i) / 2, 2);
  const unsigned shift = 4 * (i & 1);
  two = static_cast<uint16_t>((two & ~(0xfffu << shift)) | (value << shift));
  std::memcpy(table + (3 * i) / 2, &two, 2);
}

// One attempt to build a filter. Peel removes the keys one by one, each at a position that no other
// remaining key has. Fill then sets that position so that the key's three positions give its
// fingerprint. Peel fails if some keys share all their positions.
class Peeler {
 public:
  // False: out of memory.
  bool Allocate(const FuseShape& shape, size_t n) {
    positions_ = shape.positions();
    n_ = n;
    // Not from the heap: a large block that a thread frees would stay in its malloc arena.
    auto memory = Buffer::Allocate(9 * (positions_ + n));
    if (!memory.ok()) return false;
    memory_ = std::move(memory.value());
    key_xor_ = reinterpret_cast<uint64_t*>(memory_.data());
    order_ = key_xor_ + positions_;
    count_ = reinterpret_cast<uint8_t*>(order_ + n);
    alone_at_ = count_ + positions_;
    return true;
  }

  bool Peel(const FuseHash& hash, const uint64_t* keys, size_t n) {
    std::fill_n(key_xor_, positions_, uint64_t{0});
    std::fill_n(count_, positions_, uint8_t{0});
    for (size_t i = 0; i < n; ++i) {
      const FuseHash::Place place = hash.Of(keys[i]);
      for (unsigned k = 0; k < 3; ++k) {
        uint8_t& count = count_[place.at[k]];
        if (count >= kMaxCount) return false;
        count = static_cast<uint8_t>((count + 4) ^ k);
        key_xor_[place.at[k]] ^= keys[i];
      }
    }
    std::vector<uint32_t> alone;
    for (size_t at = 0; at < positions_; ++at) {
      if (count_[at] >> 2 == 1) alone.push_back(static_cast<uint32_t>(at));
    }
    size_t peeled = 0;
    while (!alone.empty()) {
      const uint32_t at = alone.back();
      alone.pop_back();
      if (count_[at] >> 2 != 1) continue;
      const uint64_t key = key_xor_[at];
      const unsigned which = count_[at] & 3;
      order_[peeled] = key;
      alone_at_[peeled] = static_cast<uint8_t>(which);
      ++peeled;
      const FuseHash::Place place = hash.Of(key);
      for (unsigned k = 0; k < 3; ++k) {
        const uint64_t other = place.at[k];
        count_[other] = static_cast<uint8_t>((count_[other] - 4) ^ k);
        key_xor_[other] ^= key;
        if (k != which && count_[other] >> 2 == 1) alone.push_back(static_cast<uint32_t>(other));
      }
    }
    return peeled == n;
  }

  void Fill(const FuseHash& hash, uint32_t bits, char* table) const {
    for (size_t i = n_; i-- > 0;) {
      const FuseHash::Place place = hash.Of(order_[i]);
      uint32_t value = place.fingerprint;
      for (unsigned k = 0; k < 3; ++k) {
        if (k != alone_at_[i]) value ^= Get(table, bits, place.at[k]);
      }
      Set(table, bits, place.at[alone_at_[i]], value);
    }
  }

 private:
  static constexpr uint8_t kMaxCount = 252;  // 4 x keys at a position: another key would overflow

  Buffer memory_;
  size_t positions_ = 0, n_ = 0;
  uint64_t* key_xor_ = nullptr;  // (positions) XOR of the keys there
  uint8_t* count_ = nullptr;     // (positions) 4 x keys there, XOR the k of each
  uint64_t* order_ = nullptr;    // (n) keys in the order of their removal
  uint8_t* alone_at_ = nullptr;  // (n) k of the position that no other key had
};

}  // namespace

// The sizes that the paper gives.
FuseShape FuseShapeFor(uint64_t n, uint32_t bits) {
  FuseShape shape;
  shape.bits = bits;
  const double size = static_cast<double>(std::max<uint64_t>(n, 2));
  const double window_log2 = std::floor(std::log(size) / std::log(3.33) + 2.25);
  shape.window_log2 = static_cast<uint32_t>(std::clamp(window_log2, 2.0, double{kMaxWindowLog2}));
  const double factor = std::max(1.125, 0.875 + 0.25 * std::log(1e6) / std::log(size));
  const uint64_t window = 1ull << shape.window_log2;
  const uint64_t capacity = static_cast<uint64_t>(std::llround(size * factor));
  const uint64_t windows = (capacity + window - 1) / window;
  shape.windows = static_cast<uint32_t>(windows > 3 ? windows - 2 : 1);
  return shape;
}

bool FuseShape::Sane() const {
  if (bits == 0) return windows == 0;
  return (bits == 8 || bits == 12) && window_log2 >= 2 && window_log2 <= kMaxWindowLog2 &&
         windows > 0 && by_hash <= 1 && positions() <= 1ull << 40;
}

FuseHash::FuseHash(const FuseShape& shape, uint64_t min_key, uint64_t max_key)
    : salt_(Mix(shape.seed + 0x9e3779b97f4a7c15ULL)),
      min_key_(min_key),
      positions_(uint64_t{shape.windows} << shape.window_log2),
      mask_((1ull << shape.window_log2) - 1),
      fingerprint_shift_(static_cast<int>(64 - std::max(1u, shape.bits))),
      by_hash_(shape.by_hash != 0) {
  const uint64_t span = max_key - min_key;
  if (span == 0) return;  // one key: scale 0, position 0
  __extension__ using Wide = unsigned __int128;
  shift_ = __builtin_clzll(span);
  // ((key - min) << shift) * scale >> 64 is less than positions for every key up to max.
  scale_ = static_cast<uint64_t>((static_cast<Wide>(positions_) << 64) /
                                 (static_cast<Wide>(span << shift_) + 1));
}

FuseShape BuildFuseFilter(const uint64_t* keys, size_t n, uint32_t bits, std::vector<char>* table) {
  FuseShape shape = FuseShapeFor(n, bits);
  Peeler peeler;
  const uint32_t attempts = peeler.Allocate(shape, n) ? kOrderedSeeds + kHashedSeeds : 0;
  for (uint32_t attempt = 0; attempt < attempts; ++attempt) {
    shape.seed = attempt;
    shape.by_hash = attempt >= kOrderedSeeds ? 1 : 0;
    const FuseHash hash(shape, keys[0], keys[n - 1]);
    if (!peeler.Peel(hash, keys, n)) continue;
    table->assign(shape.bytes(), 0);
    peeler.Fill(hash, bits, table->data());
    return shape;
  }
  table->clear();
  return FuseShape();
}

template <uint32_t kBits>
size_t FuseFilter::SelectBits(const uint64_t* keys, const uint32_t* ask, size_t n, uint32_t* passed,
                              uint32_t* rejected, size_t* n_rejected) const {
  const FuseHash hash = hash_;
  const char* const table = table_;
  size_t yes = 0, no = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint32_t index = ask[i];
    const FuseHash::Place place = hash.Of(keys[index]);
    const bool may = (Get(table, kBits, place.at[0]) ^ Get(table, kBits, place.at[1]) ^
                      Get(table, kBits, place.at[2])) == place.fingerprint;
    passed[yes] = index;  // no branch: it would be mispredicted half of the time
    rejected[no] = index;
    yes += may ? 1 : 0;
    no += may ? 0 : 1;
  }
  *n_rejected = no;
  return yes;
}

size_t FuseFilter::Select(const uint64_t* keys, const uint32_t* ask, size_t n, uint32_t* passed,
                          uint32_t* rejected, size_t* n_rejected) const {
  if (bits_ == 8) return SelectBits<8>(keys, ask, n, passed, rejected, n_rejected);
  if (bits_ == 12) return SelectBits<12>(keys, ask, n, passed, rejected, n_rejected);
  std::copy_n(ask, n, passed);
  *n_rejected = 0;
  return n;
}

}  // namespace pbx
