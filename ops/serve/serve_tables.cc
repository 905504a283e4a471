#include "serve/serve_tables.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace pbx {

ServeTables::ServeTables(std::vector<const ServeTable*> tables, std::vector<uint8_t> table_of_slot,
                         size_t dense_width)
    : tables_(std::move(tables)),
      table_of_slot_(std::move(table_of_slot)),
      dense_width_(dense_width),
      width_(dense_width) {
  for (const ServeTable* table : tables_) width_ += table->pooled_width();
}

Result<std::unique_ptr<ServeTables>> ServeTables::Of(std::vector<const ServeTable*> tables,
                                                     std::vector<uint8_t> table_of_slot,
                                                     size_t dense_width) {
  size_t slots = 0;
  for (size_t t = 0; t < tables.size(); ++t) {
    const auto found = static_cast<size_t>(
        std::count(table_of_slot.begin(), table_of_slot.end(), static_cast<uint8_t>(t)));
    if (t > UINT8_MAX || found != tables[t]->slots()) {
      return Error(Code::kInvalidArgument, "table %zu was made for %zu slots, found %zu", t,
                   tables[t]->slots(), found);
    }
    slots += found;
  }
  if (slots != table_of_slot.size()) {
    return Error(Code::kInvalidArgument, "%zu of %zu slots name a table that does not exist",
                 table_of_slot.size() - slots, table_of_slot.size());
  }
  return std::unique_ptr<ServeTables>(
      new ServeTables(std::move(tables), std::move(table_of_slot), dense_width));
}

Status ServeTables::Pull(const uint64_t* feasigns, const int32_t* offsets, const float* factors,
                         size_t instances, const float* dense, float* out) const {
  // Each table gets its own lists. Copying the lists costs a few ns per id, and a lookup ten times
  // as much.
  thread_local std::vector<uint64_t> own;
  thread_local std::vector<int32_t> bounds;
  thread_local std::vector<float> own_factors;
  float* at = out;
  for (size_t t = 0; t < tables_.size(); ++t) {
    own.clear();
    own_factors.clear();
    bounds.assign(1, 0);
    for (size_t b = 0; b < instances; ++b) {
      const int32_t* const of_instance = offsets + b * slots();
      for (size_t s = 0; s < slots(); ++s) {
        if (table_of_slot_[s] != t) continue;
        const int32_t first = of_instance[s], last = of_instance[s + 1];
        own.insert(own.end(), feasigns + first, feasigns + last);
        if (factors != nullptr) {
          own_factors.insert(own_factors.end(), factors + first, factors + last);
        }
        bounds.push_back(static_cast<int32_t>(own.size()));
      }
    }
    PBX_RETURN_IF_ERROR(tables_[t]->PullInto(own.data(), bounds.data(),
                                             factors == nullptr ? nullptr : own_factors.data(),
                                             instances, at, width_));
    at += tables_[t]->pooled_width();
  }
  for (size_t b = 0; dense_width_ != 0 && b < instances; ++b) {
    std::memcpy(at + b * width_, dense + b * dense_width_, dense_width_ * sizeof(float));
  }
  return Status::Ok();
}

}  // namespace pbx
