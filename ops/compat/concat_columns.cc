#include "compat/concat_columns.h"

#include <cstring>
#include <utility>

namespace pbx {
namespace {

// A ColumnPart in bytes.
struct Bytes {
  Bytes(const ColumnPart& part, size_t element)
      : row(static_cast<size_t>(part.columns) * element),
        start(static_cast<size_t>(part.start) * element),
        length(static_cast<size_t>(part.length) * element) {}
  size_t row, start, length;
};

}  // namespace

Result<ConcatColumns> PlanConcat(std::vector<ColumnPart> parts, int64_t groups) {
  if (groups < 1 || parts.empty() || static_cast<int64_t>(parts.size()) % groups != 0) {
    return Error(Code::kInvalidArgument,
                 "%zu inputs in %lld groups: expected at least one input and one group, and the "
                 "same number of inputs in every group",
                 parts.size(), static_cast<long long>(groups));
  }
  ConcatColumns plan;
  plan.groups = static_cast<size_t>(groups);
  const size_t in_group = parts.size() / plan.groups;
  for (size_t g = 0; g < plan.groups; ++g) {
    size_t width = 0;
    for (size_t p = g * in_group; p < (g + 1) * in_group; ++p) {
      const ColumnPart& part = parts[p];
      if (part.start < 0 || part.length < 1 || part.start > part.columns - part.length) {
        return Error(Code::kInvalidArgument,
                     "%lld columns from %lld on of input %zu, which has %lld columns: expected at "
                     "least one column, and all inside the input",
                     static_cast<long long>(part.length), static_cast<long long>(part.start), p,
                     static_cast<long long>(part.columns));
      }
      width += static_cast<size_t>(part.length);
    }
    if (g == 0) plan.width = width;
    if (width != plan.width) {
      return Error(Code::kInvalidArgument,
                   "group %zu has %zu columns, expected the %zu of the first group", g, width,
                   plan.width);
    }
  }
  plan.parts = std::move(parts);
  return Result<ConcatColumns>(std::move(plan));
}

void ConcatColumnsForward(const ConcatColumns& plan, const std::vector<const char*>& inputs,
                          size_t rows, size_t element, char* out) {
  const size_t in_group = plan.parts.size() / plan.groups;
  for (size_t g = 0; g < plan.groups; ++g) {
    for (size_t b = 0; b < rows; ++b) {
      for (size_t p = g * in_group; p < (g + 1) * in_group; ++p) {
        const Bytes part(plan.parts[p], element);
        std::memcpy(out, inputs[p] + b * part.row + part.start, part.length);
        out += part.length;
      }
    }
  }
}

void ConcatColumnsBackward(const ConcatColumns& plan, const char* dout, size_t rows, size_t element,
                           const std::vector<char*>& dinputs) {
  const size_t in_group = plan.parts.size() / plan.groups;
  for (size_t g = 0; g < plan.groups; ++g) {
    for (size_t b = 0; b < rows; ++b) {
      for (size_t p = g * in_group; p < (g + 1) * in_group; ++p) {
        const Bytes part(plan.parts[p], element);
        char* const to = dinputs[p] + b * part.row;
        std::memset(to, 0, part.start);
        std::memcpy(to + part.start, dout, part.length);
        const size_t end = part.start + part.length;
        std::memset(to + end, 0, part.row - end);
        dout += part.length;
      }
    }
  }
}

}  // namespace pbx
