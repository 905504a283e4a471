// FeedSchema: the columns of a line of input, and the slots that they become. Made from slots.yaml.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "feed/expr/program.h"
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
  kColumns,  // not text: Arrow columns, see columns.h
  kPlugin,   // lines parsed by a shared library, see plugin.h
};

enum class SlotKind {
  kLabel,   // one number in [0, 1], the click; if there is no label slot, the label is 0
  kDense,   // dim floats, each finite
  kSparse,  // any number of feasigns; 0 is padding and dropped
};

// Transforms of a slot's values after they are read, see transform.h. By default none.
struct SlotTransform {
  // kSparse: the values are strings, turned into feasigns by FeasignOfString. Not for criteo_tsv.
  bool hash = false;
  uint32_t max_length = 0;  // kSparse: further feasigns are dropped; 0: no limit
  bool has_default = false;
  uint64_t default_feasign = 0;  // kSparse: for an empty slot
  double default_value = 0;      // kDense: for a null or absent value
  bool clip = false;             // kDense: to [clip_low, clip_high], before log1p
  float clip_low = 0;
  float clip_high = 0;
  bool log1p = false;  // kDense: log(1 + max(v, 0))
  // kSparse, computed from other slots and not read from the data: the bucket of a dense slot of
  // dim 1, or all pairs of values of two earlier sparse slots. At most one of bucket_of and cross
  // is set.
  std::string bucket_of;
  // Ascending; empty: one bucket, and then dim may be above 1. A long double holds every double and
  // every 64-bit integer.
  std::vector<long double> boundaries;
  std::vector<std::string> cross;  // two slot names, or empty
  // kDense of dim kExactFloats, computed: the first value of an earlier dense slot before clip and
  // log1p, as floats whose sum (as long double) it is. The floats of a dense slot itself are
  // rounded to 24 bits.
  std::string exact_of;

  bool made() const { return !bucket_of.empty() || !cross.empty() || !exact_of.empty(); }
};

// Three floats of 24 bits hold the 64 bits of a long double.
constexpr int kExactFloats = 3;

struct SlotSpec {
  std::string name;  // in feasign_slot and slot_value text: its name on the line
  SlotKind kind = SlotKind::kSparse;
  int dim = 1;  // kDense only
  // kCsv, kColumns: the name of the column. kCriteoTsv: the column, "label", "I1".."I13" or
  // "C1".."C26". Empty: same as name.
  std::string column = {};
  SlotTransform transform = {};
  bool weight = false;  // kDense: the weight of the instance, in [0, kMostWeight]
  // kSparse: each feasign has a weight in [0, kMostWeight], 1 if it is missing. In text the weight
  // follows the last ':' of a value; kColumns: it is in the column weight_column.
  bool weighted = false;
  std::string weight_column = {};
  // kDense of dim 1, kSparse: computed from columns of the line, see docs/expressions.md. kCsv and
  // kColumns only. Empty: read from the slot's own column.
  std::string expr = {};
  std::vector<double> constants = {};  // of zscore, minmax or quantile, see expr::Source
  int output = -1;                     // of FeedSchema::program; set by Compile
  // kDense: the values are needed as they were read, too. Set by WithoutMade.
  bool exact = false;

  const std::string& column_name() const { return column.empty() ? name : column; }
};

enum class Tag { kInsId, kContent, kLogKey, kTime };

// A tag that has its own column.
struct TagColumn {
  Tag tag;
  const char* name;  // of the tag
  std::string column;
};

struct FeedSchema {
  Format format = Format::kMultiSlot;
  std::vector<SlotSpec> slots;  // kMultiSlot: in the order of the line; computed slots last
  bool per_slot_keys = false;   // FeasignInSlot(feasign, KeySlot(index among the sparse slots))
  // (S) per_slot_keys: the number of the sparse slot that is mixed into the feasigns of each slot.
  // Slots with the same number share feasigns. Empty: each slot's own number.
  std::vector<uint32_t> key_slots = {};
  TagSpec tags = {};                     // kMultiSlot, kCsv, kColumns: which tags instances have
  std::string ins_id_column = "ins_id";  // kCsv, kColumns: names of the tags' columns
  std::string content_column = "content";
  std::string log_key_column = "logkey";
  std::string time_column = "time";
  size_t max_line_bytes = 1 << 20;  // a longer line is malformed
  // kCsv. The columns of the file; empty: ColumnNames().
  std::vector<std::string> csv_columns = {};
  char csv_delimiter = ',';
  char csv_list_separator = '|';                    // between the values of one cell
  std::vector<std::string> csv_nulls = {};          // a cell with one of these texts is empty
  std::shared_ptr<const feed::Plugin> plugin = {};  // kPlugin, see line_plugin.h
  // Computes the slots with `expr`; null if there are none. Set by Compile.
  std::shared_ptr<const expr::Program> program = {};

  // Compiles the expressions. InvalidArgument names the slot and the place of the mistake. zones,
  // tables: those that expressions may name.
  Status Compile(const expr::Zones& zones, const expr::Tables& tables = {});

  uint32_t KeySlot(size_t sparse) const {
    return key_slots.empty() ? static_cast<uint32_t>(sparse) : key_slots[sparse];
  }
  // Applies per-slot keys to a feasign that was read from sparse slot `sparse`.
  uint64_t Keyed(uint64_t feasign, size_t sparse) const {
    return per_slot_keys ? FeasignInSlot(feasign, KeySlot(sparse)) : feasign;
  }

  size_t sparse_slots() const;  // S
  size_t dense_width() const;   // sum of dim over the dense slots
  bool weighted() const;        // whether a slot is
  bool exact() const;           // whether a slot is

  // InvalidArgument for an invalid schema: several labels, or none for criteo_tsv; a name that is
  // empty or occurs twice; dim < 1; more than 65535 sparse slots; for criteo_tsv an unknown column,
  // or one that does not fit the kind of its slot; a transform that does not fit its slot or names
  // an unknown slot; key_slots with a size other than S, or naming a slot that is computed or is
  // itself keyed by another; weighted feasigns of a slot that is computed or not sparse, or in
  // kCriteoTsv or kPlugin, or without weight_column in kColumns, or where ':' is a mark of kCsv or,
  // in kFeasignSlot and kSlotValue, in the name of a slot; tags in a format other than kMultiSlot,
  // kCsv or kColumns; kPlugin without a plugin, or with hashed slots.
  Status Check() const;

  // The names of the columns that are read, without repeats: those of tags, then those of slots.
  std::vector<std::string> ColumnNames() const;

  // The tags of kCsv and kColumns. The log key is last, because it replaces ins_id as the id.
  std::vector<TagColumn> TagColumnsRead() const;

  // The schema without computed slots. Dense slots that those need are `exact`.
  FeedSchema WithoutMade() const;
};

// criteo_tsv: the number of the slot's column on the line: 0 is the label, 1..13 are I1..I13,
// 14..39 are C1..C26. -1: no such column.
int CriteoColumn(const SlotSpec& slot);

}  // namespace pbx
