// The parts of the MEM tier's index: a bucket is one cache line with 7 keys and everything that a
// lookup needs; the key space tells which bucket is the home of a key.
//
// A key is in its home bucket or, if that was full, in a later one. Each bucket counts the keys
// that had to pass it, and a lookup goes on while that count is not zero. So there are no
// tombstones, and looking up an absent key costs one cache line, or two if the tier is full.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace pbx {

struct alignas(64) MemBucket {
  static constexpr unsigned kSlots = 7;
  static constexpr unsigned kNoSlot = kSlots;
  // The state of a slot, one byte of `head`. The level (kLevel) is highest when the row comes in
  // and falls with time. A slot that is not used keeps a row number (kRow) until another slot needs
  // that number.
  enum State : uint8_t { kLevel = 15, kRow = 32, kDirty = 64, kUsed = 128 };

  uint64_t keys[kSlots];
  uint64_t head;  // byte i: state of slot i; last byte: number of keys that passed

  // ---- Masks of slots: bit 8 i + 7 for slot i.
  static constexpr uint64_t kEach = 0x0001010101010101;
  static constexpr uint64_t kAll = kEach * kUsed;
  static unsigned First(uint64_t mask) { return static_cast<unsigned>(__builtin_ctzll(mask)) / 8; }
  static uint64_t Bit(unsigned slot) { return uint64_t{kUsed} << (8 * slot); }

  uint64_t Empty() const { return ~head & kAll; }
  uint64_t Clean() const { return head & ~(head << 1) & kAll; }
  uint64_t SpareRows() const { return Empty() & (head << 2); }
  // The slots whose level is at most `level`: the addition carries into bit 4 of all other slots.
  uint64_t AtMost(unsigned level) const {
    const uint64_t sums = (head & kEach * kLevel) + kEach * (kLevel - level);
    return ~(sums << 3) & kAll;
  }
  uint64_t Matches(uint64_t key) const {
    uint64_t mask = 0;
    for (unsigned i = 0; i < kSlots; ++i) mask |= keys[i] == key ? Bit(i) : 0;
    return mask;
  }

  uint8_t state(unsigned slot) const { return static_cast<uint8_t>(head >> (8 * slot)); }
  void set_state(unsigned slot, unsigned state) {
    head = (head & ~(uint64_t{0xff} << (8 * slot))) | (uint64_t{state} << (8 * slot));
  }
  void Age() { head -= (~AtMost(0) & kAll) >> 7; }  // lowers each level above 0 by one

  // ---- The number of keys that passed. It stays at 255 once it is 255, which happens only if keys
  // are not uniform.
  bool passed() const { return (head >> 56) != 0; }
  void AddPassed() {
    if ((head >> 56) != 255) head += uint64_t{1} << 56;
  }
  void DropPassed() {
    if ((head >> 56) != 255) head -= uint64_t{1} << 56;
  }
};
static_assert(sizeof(MemBucket) == 64, "a line");

// Tells which of `buckets` is the home of a key. Keys are uniform over [low, high], and homes
// ascend with keys. Keys outside this range are legal but crowd the first or the last bucket.
class MemKeySpace {
 public:
  MemKeySpace() = default;
  MemKeySpace(uint64_t low, uint64_t high, size_t buckets)
      : low_(low), last_(high - low), buckets_(buckets) {
    // The range is scaled to more than half of 2^64, so that a multiplication can replace the
    // division by it.
    shift_ = last_ == 0 ? 63 : static_cast<unsigned>(__builtin_clzll(last_));
    const Wide width = ((static_cast<Wide>(last_) + 1) << shift_);  // in (2^63, 2^64]
    factor_ = static_cast<uint64_t>((static_cast<Wide>(buckets) << 64) / width);
  }

  size_t Home(uint64_t key) const {
    const uint64_t at = key < low_ ? 0 : std::min(key - low_, last_);
    return static_cast<size_t>((static_cast<Wide>(at << shift_) * factor_) >> 64);
  }
  size_t buckets() const { return buckets_; }

 private:
  __extension__ using Wide = unsigned __int128;
  uint64_t low_ = 0, last_ = UINT64_MAX, factor_ = 1;
  unsigned shift_ = 0;
  size_t buckets_ = 1;
};

}  // namespace pbx
