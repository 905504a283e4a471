#include "serve/block.h"

#include <algorithm>

#include "base/crc32c.h"

namespace pbx {
namespace {

template <typename T>
void Put(T value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

uint32_t Word32(const char* at) {
  uint32_t word;
  std::memcpy(&word, at, 4);
  return word;
}

}  // namespace

void BlockBuilder::Add(uint64_t key, bool full, const char* row) {
  full_.push_back(full ? 1 : 0);
  std::string& rows = full ? full_rows_ : short_rows_;
  Put(key, &rows);
  if (row == nullptr) {
    rows.append(codec_.short_bytes(), '\0');
  } else {
    rows.append(row, codec_.bytes(full));
  }
}

std::string BlockBuilder::Finish(uint32_t number) {
  std::string out(4, '\0');
  const auto n = static_cast<uint32_t>(full_.size());
  const auto total =
      static_cast<uint32_t>(full_rows_.size() / (BlockView::kKeyBytes + codec_.full_bytes()));
  Put(number, &out);
  Put(n, &out);
  Put(total, &out);
  uint32_t before = 0;
  for (size_t first = 0; first < full_.size(); first += 64) {
    uint64_t bits = 0;
    const size_t stop = std::min(full_.size(), first + 64);
    for (size_t i = first; i < stop; ++i) bits |= uint64_t{full_[i]} << (i - first);
    Put(bits, &out);
    Put(before, &out);
    Put(uint32_t{0}, &out);
    before += static_cast<uint32_t>(__builtin_popcountll(bits));
  }
  out += full_rows_;
  out += short_rows_;
  const uint32_t crc = Crc32c(out.data() + 4, out.size() - 4);
  std::memcpy(out.data(), &crc, 4);
  full_.clear();
  full_rows_.clear();
  short_rows_.clear();
  return out;
}

bool BlockView::Sound(const ServeCodec& codec, const char* data, size_t size, uint64_t number,
                      uint32_t* rows, uint32_t* full) {
  if (size < 16 || Word32(data) != Crc32c(data + 4, size - 4)) return false;
  *rows = Word32(data + 8);
  *full = Word32(data + 12);
  if (Word32(data + 4) != number || *full > *rows || *rows > INT32_MAX) return false;
  const uint64_t wanted = 16 + (uint64_t{*rows} + 63) / 64 * 16 + uint64_t{kKeyBytes} * *rows +
                          uint64_t{*full} * codec.full_bytes() +
                          uint64_t{*rows - *full} * codec.short_bytes();
  if (size != wanted) return false;
  // A CRC can be made for any bytes, so it does not suffice: the values from which Row computes
  // addresses are checked too.
  const char* const marks = data + 16;
  uint64_t before = 0;
  for (uint32_t first = 0; first < *rows; first += 64) {
    const char* const mark = marks + size_t{first} / 64 * 16;
    uint64_t bits = Word(mark);
    if (*rows - first < 64) bits &= (uint64_t{1} << (*rows - first)) - 1;
    if (Word32(mark + 8) != before) return false;
    before += static_cast<uint64_t>(__builtin_popcountll(bits));
  }
  return before == *full;
}

const char* BlockView::MarkedRow(uint32_t i, bool* full) const {
  const char* const mark = marks_ + size_t{i} / 64 * 16;
  const uint64_t bits = Word(mark);
  const uint32_t before =
      Word32(mark + 8) +
      static_cast<uint32_t>(__builtin_popcountll(bits & ((uint64_t{1} << (i % 64)) - 1)));
  *full = (bits >> (i % 64) & 1) != 0;
  return *full ? FullRow(before) : ShortRow(i - before);
}

}  // namespace pbx
