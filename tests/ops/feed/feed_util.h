// What the feeder's tests share: schemas in a line, and a parse that notices a read past the end.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "check.h"
#include "feed/text/parser.h"
#include "feed/text/tokens.h"

namespace pbx::test {

inline SlotSpec Label(const std::string& name) { return {name, SlotKind::kLabel, 1, ""}; }
inline SlotSpec Dense(const std::string& name, int dim) {
  return {name, SlotKind::kDense, dim, ""};
}
inline SlotSpec Sparse(const std::string& name) { return {name, SlotKind::kSparse, 1, ""}; }

inline FeedSchema Schema(Format format, std::vector<SlotSpec> slots) {
  FeedSchema schema;
  schema.format = format;
  schema.slots = std::move(slots);
  return schema;
}

// The text lies in a block of exactly its size, so that the address sanitizer sees every byte
// beyond.
inline ParsedChunk ParseBlock(const FeedSchema& schema, const std::string& text) {
  const std::unique_ptr<char[]> block(new char[text.size()]);
  std::memcpy(block.get(), text.data(), text.size());
  ParsedChunk chunk;
  CHECK_OK(ParseChunk(schema, block.get(), text.size(), &chunk));
  return chunk;
}

template <typename T>
bool SameBytes(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

inline void CheckSame(const ParsedChunk& a, const ParsedChunk& b, uint64_t lines_before) {
  CHECK_EQ(a.instances, b.instances);
  CHECK(SameBytes(a.labels, b.labels));
  CHECK(SameBytes(a.dense, b.dense));
  CHECK(SameBytes(a.feasigns, b.feasigns));
  CHECK(SameBytes(a.weights, b.weights));
  CHECK(SameBytes(a.lengths, b.lengths));
  CHECK_EQ(a.bad_lines, b.bad_lines);
  CHECK_EQ(a.left_out, b.left_out);
  CHECK_EQ(a.first_bad.size(), b.first_bad.size());
  for (size_t i = 0; i < std::min(a.first_bad.size(), b.first_bad.size()); ++i) {
    CHECK_EQ(a.first_bad[i].line + lines_before, b.first_bad[i].line);
    CHECK_EQ(a.first_bad[i].reason, b.first_bad[i].reason);
    CHECK_EQ(a.first_bad[i].excerpt, b.first_bad[i].excerpt);
  }
  CHECK_EQ(a.large.size(), b.large.size());
  for (size_t i = 0; i < std::min(a.large.size(), b.large.size()); ++i) {
    CHECK_EQ(a.large[i].slot, b.large[i].slot);
    CHECK_EQ(a.large[i].line + lines_before, b.large[i].line);
    CHECK_EQ(a.large[i].value, b.large[i].value);
  }
  CHECK(SameBytes(a.cut_lists, b.cut_lists));
  CHECK(SameBytes(a.cut_values, b.cut_values));
}

// What the plain path makes of the text, after a check that every other path of this processor
// makes the same of it. Those look at lines with bytes around them only: line breaks are added.
inline ParsedChunk Parse(const FeedSchema& schema, const std::string& text) {
  CHECK_OK(feed::SelectTokenKernels("plain"));
  const ParsedChunk plain = ParseBlock(schema, text);
  const std::string around(feed::TokenKernels::kReach, '\n');
  for (const char* path : {"avx2", "avx512"}) {
    if (!feed::SelectTokenKernels(path).ok()) continue;
    CheckSame(plain, ParseBlock(schema, text), 0);
    CheckSame(plain, ParseBlock(schema, around + text + around), around.size());
  }
  CHECK_OK(feed::SelectTokenKernels("auto"));
  return plain;
}

template <typename T>
std::string Text(const std::vector<T>& values) {
  std::ostringstream out;
  for (size_t i = 0; i < values.size(); ++i) out << (i ? " " : "") << values[i];
  return out.str();
}

// A text, how many instances and bad lines it makes, and a part of the first bad line's reason.
struct Hostile {
  const char* why;
  std::string text;
  size_t instances;
  size_t bad;
  const char* reason;
};

inline void CheckHostile(const FeedSchema& schema, const std::vector<Hostile>& table) {
  for (const Hostile& row : table) {
    const ParsedChunk chunk = Parse(schema, row.text);
    const bool counted = chunk.instances == row.instances && chunk.bad_lines == row.bad;
    const std::string reason = chunk.first_bad.empty() ? "" : chunk.first_bad[0].reason;
    const bool said = row.bad == 0 || reason.find(row.reason) != std::string::npos;
    if (!counted || !said) {
      std::ostringstream out;
      out << row.why << ": " << chunk.instances << " instances, " << chunk.bad_lines
          << " bad lines, reason '" << reason << "'";
      Fail(__FILE__, __LINE__, out.str());
    }
    // A bad line leaves nothing behind in any column.
    size_t total = 0;
    for (const uint32_t length : chunk.lengths) total += length;
    CHECK_EQ(total, chunk.feasigns.size());
    CHECK_EQ(chunk.labels.size(), chunk.instances);
    CHECK_EQ(chunk.dense.size(), chunk.instances * schema.dense_width());
    CHECK_EQ(chunk.lengths.size(), chunk.instances * schema.sparse_slots());
  }
}

}  // namespace pbx::test
