// Blocks of an export file (docs/formats/export.md): a block has the rows of one range of keys.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "serve/row.h"

namespace pbx {

// The block of a key, in a layer that is cut by the upper `bits` bits.
inline uint64_t BlockOf(uint64_t key, int bits) { return bits == 0 ? 0 : key >> (64 - bits); }

// Builds a block from its rows.
class BlockBuilder {
 public:
  explicit BlockBuilder(const ServeCodec& codec) : codec_(codec) {}

  size_t rows() const { return full_.size(); }
  // Keys ascend. row: as encoded by ServeCodec; null: a deleted feasign.
  void Add(uint64_t key, bool full, const char* row);
  // Returns the bytes of the block and empties the builder.
  std::string Finish(uint32_t number);

 private:
  const ServeCodec codec_;
  std::vector<uint8_t> full_;  // of each row: whether it is full
  std::string full_rows_, short_rows_;
};

// Reads a block whose CRC and sizes were checked. The bytes belong to the caller and may have any
// alignment.
class BlockView {
 public:
  static constexpr uint32_t kKeyBytes = 8;  // before each row

  BlockView() = default;
  BlockView(const ServeCodec& codec, const char* data, uint32_t rows, uint32_t full)
      : full_bytes_(kKeyBytes + codec.full_bytes()),
        short_bytes_(kKeyBytes + codec.short_bytes()),
        rows_(rows),
        full_(full),
        marks_(data + 16),
        full_rows_(marks_ + (size_t{rows} + 63) / 64 * 16),
        short_rows_(full_rows_ + size_t{full} * full_bytes_) {}

  // Whether these bytes are a valid block with this number. If so, sets its number of rows and its
  // number of full rows.
  static bool Sound(const ServeCodec& codec, const char* data, size_t size, uint64_t number,
                    uint32_t* rows, uint32_t* full);

  uint32_t rows() const { return rows_; }
  uint64_t key(uint32_t i) const {
    bool full;
    return KeyOf(Row(i, &full));
  }
  static uint64_t KeyOf(const char* row) { return Word(row - kKeyBytes); }
  // The encoded row; its key is before it. If all rows of the block are of one kind, the marks are
  // not read.
  const char* Row(uint32_t i, bool* full) const {
    if (full_ != 0 && full_ != rows_) return MarkedRow(i, full);
    *full = full_ != 0;
    return *full ? FullRow(i) : ShortRow(i);
  }

 private:
  const char* MarkedRow(uint32_t i, bool* full) const;
  const char* FullRow(size_t i) const { return full_rows_ + i * full_bytes_ + kKeyBytes; }
  const char* ShortRow(size_t i) const { return short_rows_ + i * short_bytes_ + kKeyBytes; }
  static uint64_t Word(const char* at) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    return word;
  }
  uint32_t full_bytes_ = 0, short_bytes_ = 0, rows_ = 0, full_ = 0;
  const char *marks_ = nullptr, *full_rows_ = nullptr, *short_rows_ = nullptr;
};

}  // namespace pbx
