// Blocks of an export file (docs/formats/export.md): the rows of one stretch of keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "serve/row.h"

namespace pbx {

// The block of a layer, cut by the upper `bits` bits, that a key lies in.
inline uint64_t BlockOf(uint64_t key, int bits) { return bits == 0 ? 0 : key >> (64 - bits); }

// Gathers the rows of one block.
class BlockBuilder {
 public:
  explicit BlockBuilder(const ServeCodec& codec) : codec_(codec) {}

  size_t rows() const { return keys_.size(); }
  // Keys ascend. row: as ServeCodec encodes it; null: a deleted feasign.
  void Add(uint64_t key, bool full, const char* row);
  // The block's bytes; the builder is empty again.
  std::string Finish(uint32_t number);

 private:
  const ServeCodec codec_;
  std::vector<uint64_t> keys_;
  std::vector<uint8_t> full_;
  std::string full_rows_, short_rows_;
};

// Reads a block whose CRC and sizes were tested. The bytes are borrowed, at any alignment.
class BlockView {
 public:
  BlockView() = default;
  BlockView(const ServeCodec& codec, const char* data, uint32_t rows, uint32_t full)
      : full_bytes_(codec.full_bytes()),
        short_bytes_(codec.short_bytes()),
        rows_(rows),
        full_(full),
        keys_(data + 16),
        marks_(keys_ + size_t{8} * rows),
        full_rows_(marks_ + (size_t{rows} + 63) / 64 * 16),
        short_rows_(full_rows_ + size_t{full} * full_bytes_) {}

  // Whether these bytes are the block they should be; then its rows and how many are full.
  static bool Sound(const ServeCodec& codec, const char* data, size_t size, uint64_t number,
                    uint32_t* rows, uint32_t* full);

  uint32_t rows() const { return rows_; }
  uint64_t key(size_t i) const { return Word(keys_ + 8 * i); }
  // Where key is in a layer of these bits, if it is in this block; rows() if it is not. In three
  // steps, between which a caller can ask for what the next one reads. REQUIRES: rows() > 0.
  uint64_t Guess(uint64_t key, int bits) const {
    __extension__ using Wide = unsigned __int128;
    // Keys are uniform: position is to rows as the key's lower bits are to their range.
    return static_cast<uint64_t>((static_cast<Wide>(key << bits) * rows_) >> 64);
  }
  // From the key there: off by some sqrt(sqrt(rows)), where the first guess is by sqrt(rows).
  uint64_t Refine(uint64_t at, uint64_t key, int bits) const;
  uint32_t FindFrom(uint64_t at, uint64_t key) const;
  const char* KeyAt(uint64_t i) const { return keys_ + 8 * i; }
  // Whether Row reads a mark: not where all rows are of one kind.
  bool mixed() const { return full_ != 0 && full_ != rows_; }
  const char* MarkOf(uint32_t i) const { return marks_ + size_t{i} / 64 * 16; }
  const char* Row(uint32_t i, bool* full) const;

 private:
  static uint64_t Word(const char* at) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    return word;
  }
  uint32_t full_bytes_ = 0, short_bytes_ = 0, rows_ = 0, full_ = 0;
  const char *keys_ = nullptr, *marks_ = nullptr, *full_rows_ = nullptr, *short_rows_ = nullptr;
};

}  // namespace pbx
