// FeedSchema: which columns a line of input has and what each becomes. Made from slots.yaml.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "feed/text/tags.h"
#include "row/feasign.h"

namespace pbx {

namespace feed {
class Plugin;
}

enum class Format {
  kMultiSlot,
  kFeasignSlot,
  kSlotValue,
  kCriteoTsv,
  kCsv,
  kColumns,  // no text: Arrow columns, see columns.h
  kPlugin,   // lines that a shared library parses, see plugin.h
};

enum class SlotKind {
  kLabel,   // one number in [0, 1]; exactly one slot of this kind. It is the click.
  kDense,   // dim floats, each finite
  kSparse,  // any number of feasigns; 0 is padding and dropped
};

// What becomes of a slot's values once they are read; see transform.h. Nothing, by default.
struct SlotTransform {
  // kSparse: the values are strings, FeasignOfString makes feasigns of them. Not for criteo_tsv.
  bool hash = false;
  uint32_t max_length = 0;  // kSparse: feasigns after so many are dropped; 0: none are
  bool has_default = false;
  uint64_t default_feasign = 0;  // kSparse: of an empty slot
  float default_value = 0;       // kDense: of a null or absent value
  bool clip = false;             // kDense: to [clip_low, clip_high], before log1p
  float clip_low = 0;
  float clip_high = 0;
  bool log1p = false;  // kDense: log(1 + max(v, 0))
  // kSparse, made of other slots and not read: the bucket of a dense slot of dim 1, or all pairs of
  // two sparse slots before it. At most one of the two.
  std::string bucket_of;
  std::vector<float> boundaries;   // ascending; none: one bucket, of a slot of any dim
  std::vector<std::string> cross;  // two names, or empty

  bool made() const { return !bucket_of.empty() || !cross.empty(); }
};

struct SlotSpec {
  std::string name;  // in feasign_slot and slot_value text: the slot's name on the line
  SlotKind kind = SlotKind::kSparse;
  int dim = 1;  // kDense only
  // kCsv, kColumns: the column's name. kCriteoTsv: which column, "label", "I1".."I13",
  // "C1".."C26". Empty: the same as name.
  std::string column = {};
  SlotTransform transform = {};

  const std::string& column_name() const { return column.empty() ? name : column; }
};

enum class Tag { kInsId, kContent, kLogKey };

// A tag that is a column of its own.
struct TagColumn {
  Tag tag;
  const char* name;  // of the tag
  std::string column;
};

struct FeedSchema {
  Format format = Format::kMultiSlot;
  std::vector<SlotSpec> slots;  // in the order of the line for kMultiSlot; made ones last
  bool per_slot_keys = false;   // FeasignInSlot(feasign, KeySlot(index among the sparse slots))
  // (S) per_slot_keys: the sparse slot whose number is mixed into each one's feasigns. Slots with
  // the same number share their feasigns. Empty: each slot's own.
  std::vector<uint32_t> key_slots = {};
  TagSpec tags = {};  // kMultiSlot, kCsv, kColumns: what instances have beside slots
  std::string ins_id_column = "ins_id";  // kCsv, kColumns: where the tags are
  std::string content_column = "content";
  std::string log_key_column = "logkey";
  size_t max_line_bytes = 1 << 20;  // a longer line is a bad line
  // kCsv. The columns of the file; none: ColumnNames().
  std::vector<std::string> csv_columns = {};
  char csv_delimiter = ',';
  char csv_list_separator = '|';                    // between the values of one cell
  std::vector<std::string> csv_nulls = {};          // texts of a whole cell that make it empty
  std::shared_ptr<const feed::Plugin> plugin = {};  // kPlugin, see line_plugin.h

  uint32_t KeySlot(size_t sparse) const {
    return key_slots.empty() ? static_cast<uint32_t>(sparse) : key_slots[sparse];
  }
  // What a feasign read from sparse slot `sparse` becomes.
  uint64_t Keyed(uint64_t feasign, size_t sparse) const {
    return per_slot_keys ? FeasignInSlot(feasign, KeySlot(sparse)) : feasign;
  }

  size_t sparse_slots() const;  // S
  size_t dense_width() const;   // sum of dim over the dense slots

  // InvalidArgument for a schema that makes no sense: not exactly one label, a name that is empty
  // or occurs twice, dim < 1, more than 65535 sparse slots; for criteo_tsv also an unknown column,
  // or one that does not fit the kind of its slot; a transform that does not fit its slot or names
  // one that is not there; key_slots that are not S or name a slot that is made or is itself keyed
  // by another; tags in another format than kMultiSlot, kCsv or kColumns; kPlugin without a
  // plugin, or with slots that are hashed.
  Status Check() const;

  // Names of the columns that are read, each once: those of TagColumns, then in the order of the
  // slots.
  std::vector<std::string> ColumnNames() const;

  // The tags of kCsv and kColumns. A log key comes last, for it is the id in place of an ins_id.
  std::vector<TagColumn> TagColumnsRead() const;

  // The schema of what is read: without the slots that are made.
  FeedSchema WithoutMade() const;
};

// criteo_tsv: the slot's place on the line, 0 label, 1..13 I1..I13, 14..39 C1..C26; -1 for no such
// column.
int CriteoColumn(const SlotSpec& slot);

}  // namespace pbx
