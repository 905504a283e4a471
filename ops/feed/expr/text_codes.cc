#include "feed/expr/text_codes.h"

#include <algorithm>
#include <cstring>

namespace pbx::expr {
namespace {

constexpr int kSlotBits = 11;
static_assert(kRows < (size_t{1} << kSlotBits), "a free slot ends each search");
constexpr int kPause = 15;

}  // namespace

TextCodes::Word TextCodes::WordOf(std::string_view text, bool wide) {
  static constexpr uint64_t kMasks[] = {~uint64_t{0}, ~uint64_t{0}, 0, 0};  // 16 bytes of ones
  const char* const p = text.data();
  const size_t size = text.size();
  uint64_t words[2] = {0, 0};
  if (size > 16) {
    std::memcpy(words, p, 8);
    std::memcpy(words + 1, p + size - 8, 8);
  } else if (wide) {
    uint64_t masks[2];
    std::memcpy(masks, reinterpret_cast<const char*>(kMasks) + 16 - size, 16);
    std::memcpy(words, p, 16);
    words[0] &= masks[0];
    words[1] &= masks[1];
  } else if (size > 0) {
    std::memcpy(words, p, size);
  }
  return {words[0], words[1], size, p};
}

bool TextCodes::Same(const Word& a, const Word& b) {
  if (((a.first ^ b.first) | (a.last ^ b.last) | (a.size ^ b.size)) != 0) return false;
  return a.size <= 16 || std::memcmp(a.begin, b.begin, a.size) == 0;
}

bool TextCodes::Number(const Vector& texts, size_t n, size_t most) {
  codes_.resize(n);
  slots_.assign(size_t{1} << kSlotBits, 0);
  words_.clear();
  const std::string_view* const views = texts.texts.data();
  const uint8_t* const valid = texts.valid.data();
  const auto around = reinterpret_cast<uintptr_t>(texts.around.data());
  const size_t wide = texts.around.size() - std::min<size_t>(texts.around.size(), 15);
  uint16_t *const codes = codes_.data(), *const slots = slots_.data();
  for (size_t row = 0; row < n; ++row) {
    const char* const begin = views[row].data();
    const Word word = WordOf({begin, valid[row] ? views[row].size() : 0},
                             reinterpret_cast<uintptr_t>(begin) - around < wide);
    const uint64_t mixed =
        (word.first ^ (word.last << 29 | word.last >> 35) ^ word.size) * 0x9e3779b97f4a7c15u;
    size_t slot = mixed >> (64 - kSlotBits);
    while (slots[slot] != 0 && !Same(words_[slots[slot] - 1u], word)) {
      slot = (slot + 1) & ((size_t{1} << kSlotBits) - 1);
    }
    if (slots[slot] == 0) {
      if (words_.size() == most) return false;
      words_.push_back(word);
      slots[slot] = static_cast<uint16_t>(words_.size());
    }
    codes[row] = static_cast<uint16_t>(slots[slot] - 1);
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
