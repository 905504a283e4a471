// The distinct texts of a block of rows, of which most columns have few.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "feed/expr/vector.h"

namespace pbx::expr {

class TextCodes {
 public:
  // Numbers the distinct texts of n rows. False if there are more than `most`, or if there were in
  // a block shortly before. Null counts as a text. REQUIRES: n <= kRows.
  bool Take(const Vector& texts, size_t n, size_t most);

  // Of the last Take that returned true:
  size_t count() const { return words_.size(); }
  const uint16_t* codes() const { return codes_.data(); }  // (n) the number of each row's text
  const Vector& distinct() const { return distinct_; }     // (count)

 private:
  // The length of a text and its first 16 bytes, or its first and last 8 bytes if it is longer.
  struct Word {
    uint64_t first, last;
    size_t size;
    const char* begin;
  };
  // wide: 16 bytes can be read.
  static Word WordOf(std::string_view text, bool wide);
  static bool Same(const Word& a, const Word& b);
  bool Number(const Vector& texts, size_t n, size_t most);

  std::vector<uint16_t> codes_;
  std::vector<uint16_t> slots_;  // of a hash table: a number plus 1, or 0
  std::vector<Word> words_;
  Vector distinct_;
  int pause_ = 0;  // blocks that are not looked at
};

}  // namespace pbx::expr
