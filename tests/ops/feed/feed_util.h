// What the feeder's tests share: schemas in a line, and a parse that notices a read past the end.
#pragma once

#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "check.h"
#include "feed/parser.h"

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
inline ParsedChunk Parse(const FeedSchema& schema, const std::string& text) {
  const std::unique_ptr<char[]> block(new char[text.size()]);
  std::memcpy(block.get(), text.data(), text.size());
  ParsedChunk chunk;
  CHECK_OK(ParseChunk(schema, block.get(), text.size(), &chunk));
  return chunk;
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
