#include "feed/columns/columns.h"

#include <sys/mman.h>

#include <algorithm>
#include <memory>

#include "feed/columns/column_block.h"
#include "feed/columns/column_types.h"
#include "feed/columns/column_values.h"
#include "feed/columns/expression_columns.h"
#include "feed/text/transform.h"

namespace pbx {
namespace {

// Reserves room for n values, on huge pages if possible: page faults of small pages took more time
// than the rest of this file.
template <typename T>
void ReserveHuge(std::vector<T>* values, size_t n) {
  constexpr uintptr_t kHugePage = 2u << 20;
  values->reserve(n);
  const uintptr_t begin = reinterpret_cast<uintptr_t>(values->data());
  const uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t end = (begin + values->capacity() * sizeof(T)) / kHugePage * kHugePage;
  if (first >= end) return;
  madvise(reinterpret_cast<char*>(values->data()) + (first - begin), end - first, MADV_HUGEPAGE);
}

}  // namespace

Status ParseColumns(const FeedSchema& schema, const std::vector<ColumnBatch>& batches,
                    ParsedChunk* out) {
  *out = ParsedChunk();
  out->nonzero = true;  // every value is checked
  out->single = true;   // until a length differs
  const FeedSchema read = schema.WithoutMade();
  feed::Block block(read, out);
  std::vector<SlotSpec> tag_specs;
  for (const TagColumn& tag : read.TagColumnsRead()) tag_specs.push_back(feed::SpecOf(tag));
  std::vector<SlotSpec> weight_specs;
  for (const SlotSpec& slot : read.slots) {
    if (slot.weighted) weight_specs.push_back(feed::SpecOfWeights(slot));
  }
  std::unique_ptr<feed::ExpressionColumns> computed;
  if (read.program != nullptr) computed = std::make_unique<feed::ExpressionColumns>(read);
  for (const ColumnBatch& batch : batches) {
    PBX_RETURN_IF_ERROR(CheckColumns(read, *batch.type));
    if (computed != nullptr) PBX_RETURN_IF_ERROR(computed->Open(batch));
    const int64_t rows = batch.values->length;
    std::vector<feed::Column> columns, tags, weights;
    const auto add = [&](const std::vector<SlotSpec>& specs, std::vector<feed::Column>* to) {
      for (const SlotSpec& spec : specs) {
        const int64_t place = feed::FindColumn(spec, *batch.type).value();
        to->emplace_back(spec, *batch.type->children[place], *batch.values->children[place],
                         batch.values->offset);
        PBX_RETURN_IF_ERROR(to->back().CheckBuffers(rows));
      }
      return Status::Ok();
    };
    PBX_RETURN_IF_ERROR(add(tag_specs, &tags));
    PBX_RETURN_IF_ERROR(add(weight_specs, &weights));
    int64_t feasigns = 0;
    for (const SlotSpec& slot : read.slots) {
      if (slot.output >= 0) {
        feasigns += slot.kind == SlotKind::kSparse ? rows : 0;
        continue;
      }
      const int64_t place = feed::FindColumn(slot, *batch.type).value();
      columns.emplace_back(slot, *batch.type->children[place], *batch.values->children[place],
                           batch.values->offset);
      PBX_RETURN_IF_ERROR(columns.back().CheckBuffers(rows));
      const int64_t items = columns.back().ItemsOf(rows);
      if (slot.kind == SlotKind::kSparse && items >= 0 && items <= columns.back().leaf().length) {
        feasigns += items;
      }
    }
    const size_t expected = out->instances + static_cast<size_t>(rows);
    ReserveHuge(&out->feasigns,
                out->feasigns.size() + static_cast<size_t>(feasigns) + feed::kShort);
    out->labels.reserve(expected);
    ReserveHuge(&out->dense, expected * read.dense_width());
    ReserveHuge(&out->lengths, expected * read.sparse_slots());
    for (int64_t begin = 0; begin < rows; begin += feed::kBlockRows) {
      const int64_t n = std::min(feed::kBlockRows, rows - begin);
      if (computed == nullptr) {
        PBX_RETURN_IF_ERROR(block.Add(columns, tags, weights, begin, n));
        continue;
      }
      PBX_RETURN_IF_ERROR(computed->Take(begin, n));
      block.Refuse(computed->errors());
      std::vector<feed::Column> all;  // in the order of the slots
      all.reserve(read.slots.size());
      auto next = columns.begin();
      for (const SlotSpec& slot : read.slots) {
        all.push_back(slot.output >= 0 ? computed->column(slot) : *next++);
      }
      PBX_RETURN_IF_ERROR(block.Add(all, tags, weights, begin, n));
    }
  }
  Transform(schema, out);
  return Status::Ok();
}

}  // namespace pbx
