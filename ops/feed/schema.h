// FeedSchema: which columns a line of input has and what each becomes. Made from slots.yaml.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace pbx {

enum class Format { kMultiSlot, kFeasignSlot, kSlotValue, kCriteoTsv };

enum class SlotKind {
  kLabel,   // one number in [0, 1]; exactly one slot of this kind. It is the click.
  kDense,   // dim floats, each finite
  kSparse,  // any number of feasigns; 0 is padding and dropped
};

struct SlotSpec {
  std::string name;  // in feasign_slot and slot_value text: the slot's name on the line
  SlotKind kind = SlotKind::kSparse;
  int dim = 1;  // kDense only
  // criteo_tsv only: which column, "label", "I1".."I13", "C1".."C26". Empty: the same as name.
  std::string column;
};

struct FeedSchema {
  Format format = Format::kMultiSlot;
  std::vector<SlotSpec> slots;      // in the order of the line for kMultiSlot
  bool per_slot_keys = false;       // FeasignInSlot(feasign, index among the sparse slots)
  size_t max_line_bytes = 1 << 20;  // a longer line is a bad line

  size_t sparse_slots() const;  // S
  size_t dense_width() const;   // sum of dim over the dense slots

  // InvalidArgument for a schema that makes no sense: not exactly one label, a name that is empty
  // or occurs twice, dim < 1, more than 65535 sparse slots; for criteo_tsv also an unknown column,
  // or one that does not fit the kind of its slot.
  Status Check() const;
};

// criteo_tsv: the slot's place on the line, 0 label, 1..13 I1..I13, 14..39 C1..C26; -1 for no such
// column.
int CriteoColumn(const SlotSpec& slot);

}  // namespace pbx
