#include "feed/expr/text_codes.h"

#include <algorithm>
#include <cstring>

namespace pbx::expr {
namespace {

constexpr int kSlotBits = 11;
static_assert(kRows < (size_t{1} << kSlotBits), "a free slot ends each search");
constexpr int kPause = 15;

}  // namespace

TextCodes::Word TextCodes::WordOf(std::string_view text) {
  const char* const p = text.data();
  const size_t size = text.size();
  Word word{0, 0, size, p};
  if (size >= 8) {
    std::memcpy(&word.first, p, 8);
    std::memcpy(&word.last, p + size - 8, 8);
  } else if (size >= 4) {
    std::memcpy(&word.first, p, 4);
    std::memcpy(&word.last, p + size - 4, 4);
  } else if (size > 0) {
    uint8_t bytes[3];
    bytes[0] = static_cast<uint8_t>(p[0]);
    bytes[1] = static_cast<uint8_t>(p[size / 2]);
    bytes[2] = static_cast<uint8_t>(p[size - 1]);
    word.first = bytes[0] | uint64_t{bytes[1]} << 8 | uint64_t{bytes[2]} << 16;
  }
  return word;
}

bool TextCodes::Same(const Word& a, const Word& b) {
  if (a.first != b.first || a.last != b.last || a.size != b.size) return false;
  return a.size <= 16 || std::memcmp(a.begin, b.begin, a.size) == 0;
}

bool TextCodes::Number(const Vector& texts, size_t n, size_t most) {
  codes_.resize(n);
  slots_.assign(size_t{1} << kSlotBits, 0);
  words_.clear();
  for (size_t row = 0; row < n; ++row) {
    const Word word = WordOf(texts.valid[row] ? texts.texts[row] : std::string_view());
    const uint64_t mixed =
        (word.first ^ (word.last << 29 | word.last >> 35) ^ word.size) * 0x9e3779b97f4a7c15u;
    size_t slot = mixed >> (64 - kSlotBits);
    while (slots_[slot] != 0 && !Same(words_[slots_[slot] - 1u], word)) {
      slot = (slot + 1) & ((size_t{1} << kSlotBits) - 1);
    }
    if (slots_[slot] == 0) {
      if (words_.size() == most) return false;
      words_.push_back(word);
      slots_[slot] = static_cast<uint16_t>(words_.size());
    }
    codes_[row] = static_cast<uint16_t>(slots_[slot] - 1);
  }
  return true;
}

bool TextCodes::Take(const Vector& texts, size_t n, size_t most) {
  if (pause_ > 0) {
    --pause_;
    return false;
  }
  if (!Number(texts, n, most)) {
    pause_ = kPause;
    return false;
  }
  distinct_.Reset({Kind::kText, false, -1}, words_.size());
  for (size_t i = 0; i < words_.size(); ++i) {
    distinct_.texts[i] = std::string_view(words_[i].begin, words_[i].size);
    distinct_.valid[i] = words_[i].size != 0;
  }
  return true;
}

}  // namespace pbx::expr
