#include "feed/schema.h"

#include <unordered_set>

namespace pbx {
namespace {

constexpr size_t kMaxSparseSlots = 65535;

// Which kinds a Criteo column can feed.
Status CheckCriteo(const SlotSpec& slot) {
  const int column = CriteoColumn(slot);
  const std::string& name = slot.column.empty() ? slot.name : slot.column;
  if (column < 0) {
    return Error(Code::kInvalidArgument,
                 "slot '%s': '%s' is not a Criteo column; expected label, I1..I13 or C1..C26",
                 slot.name.c_str(), name.c_str());
  }
  const bool integer = column >= 1 && column <= 13;
  const bool fits = slot.kind == SlotKind::kLabel   ? column == 0
                    : slot.kind == SlotKind::kDense ? integer && slot.dim == 1
                                                    : column != 0;
  if (!fits) {
    return Error(
        Code::kInvalidArgument,
        "slot '%s' cannot use the Criteo column '%s': a label slot uses label, a dense slot "
        "(dim 1) I1..I13, a sparse slot I1..I13 or C1..C26",
        slot.name.c_str(), name.c_str());
  }
  return Status::Ok();
}

}  // namespace

size_t FeedSchema::sparse_slots() const {
  size_t count = 0;
  for (const SlotSpec& slot : slots) count += slot.kind == SlotKind::kSparse;
  return count;
}

size_t FeedSchema::dense_width() const {
  size_t width = 0;
  for (const SlotSpec& slot : slots) {
    if (slot.kind == SlotKind::kDense) width += static_cast<size_t>(slot.dim);
  }
  return width;
}

Status FeedSchema::Check() const {
  size_t labels = 0;
  std::unordered_set<std::string> names;
  for (const SlotSpec& slot : slots) {
    labels += slot.kind == SlotKind::kLabel;
    if (slot.name.empty()) return Error(Code::kInvalidArgument, "a slot has an empty name");
    if (!names.insert(slot.name).second) {
      return Error(Code::kInvalidArgument, "slot '%s' is named twice", slot.name.c_str());
    }
    if (slot.kind == SlotKind::kDense && slot.dim < 1) {
      return Error(Code::kInvalidArgument, "slot '%s': dim is %d, expected at least 1",
                   slot.name.c_str(), slot.dim);
    }
    if (format == Format::kCriteoTsv) PBX_RETURN_IF_ERROR(CheckCriteo(slot));
  }
  if (labels != 1) {
    return Error(Code::kInvalidArgument, "the schema has %zu label slots, expected exactly one",
                 labels);
  }
  if (sparse_slots() > kMaxSparseSlots) {
    return Error(Code::kInvalidArgument, "the schema has %zu sparse slots, expected at most %zu",
                 sparse_slots(), kMaxSparseSlots);
  }
  return Status::Ok();
}

int CriteoColumn(const SlotSpec& slot) {
  const std::string& name = slot.column.empty() ? slot.name : slot.column;
  if (name == "label") return 0;
  if (name.size() < 2 || name.size() > 3 || name[1] == '0') return -1;
  int number = 0;
  for (size_t i = 1; i < name.size(); ++i) {
    if (name[i] < '0' || name[i] > '9') return -1;
    number = number * 10 + (name[i] - '0');
  }
  if (name[0] == 'I' && number <= 13) return number;
  if (name[0] == 'C' && number <= 26) return 13 + number;
  return -1;
}

}  // namespace pbx
