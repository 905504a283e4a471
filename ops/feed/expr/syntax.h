// The syntax of expressions: from text to a tree. docs/expressions.md describes the language.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace pbx::expr {

enum class NodeKind { kNumber, kText, kBool, kNull, kColumn, kCall };

struct Node {
  NodeKind kind = NodeKind::kNull;
  size_t at = 0;                // where it begins in the text, in bytes
  std::string text = {};        // kText: the text; kColumn, kCall: the name. An operator is a call
  double number = 0;            // kNumber; kBool: 0 or 1
  bool whole = false;           // kNumber: an integer in the range of int64
  int64_t integer = 0;          // its value
  std::vector<Node> args = {};  // kCall
  int height = 0;               // of the tree below it
};

// Longer texts and deeper trees are errors.
constexpr size_t kMostText = 10000;
constexpr int kMostDepth = 200;

// InvalidArgument says where the mistake is, what was expected and what was found.
Result<Node> ParseExpression(const std::string& text);

// An error at a byte of the text: "column 12 of 'a + ': <what>".
Status ErrorAt(const std::string& text, size_t at, const std::string& what);

}  // namespace pbx::expr
