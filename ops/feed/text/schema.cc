#include "feed/text/schema.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace pbx {
namespace {

constexpr size_t kMaxSparseSlots = 65535;

// Checks that the column of a Criteo slot exists and fits the kind of the slot.
Status CheckCriteo(const SlotSpec& slot) {
  const int column = CriteoColumn(slot);
  const std::string& name = slot.column_name();
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

// The index of the slot with this name before slots[end]; end if there is none.
size_t FindBefore(const std::vector<SlotSpec>& slots, size_t end, const std::string& name) {
  size_t i = 0;
  while (i < end && slots[i].name != name) ++i;
  return i;
}

Status CheckMade(const std::vector<SlotSpec>& slots, size_t index) {
  const SlotSpec& slot = slots[index];
  const SlotTransform& t = slot.transform;
  if (!t.exact_of.empty()) {
    const size_t from = FindBefore(slots, index, t.exact_of);
    if (from != index && slots[from].kind == SlotKind::kDense && slot.dim == kExactFloats) {
      return Status::Ok();
    }
    return Error(Code::kInvalidArgument,
                 "slot '%s': exact values of '%s', expected dim %d and a dense slot before it",
                 slot.name.c_str(), t.exact_of.c_str(), kExactFloats);
  }
  if (!t.bucket_of.empty()) {
    const size_t from = FindBefore(slots, index, t.bucket_of);
    if (from == index || slots[from].kind != SlotKind::kDense ||
        (slots[from].dim != 1 && !t.boundaries.empty())) {
      return Error(Code::kInvalidArgument,
                   "slot '%s': bucket of '%s', expected a dense slot of dim 1 before it",
                   slot.name.c_str(), t.bucket_of.c_str());
    }
    bool ascending = true;
    for (size_t i = 1; i < t.boundaries.size(); ++i) {
      ascending = ascending && t.boundaries[i - 1] < t.boundaries[i];
    }
    if (ascending && t.cross.empty()) return Status::Ok();
    return Error(Code::kInvalidArgument,
                 "slot '%s': a bucket needs ascending boundaries, and excludes cross",
                 slot.name.c_str());
  }
  if (t.cross.size() != 2) {
    return Error(Code::kInvalidArgument, "slot '%s': cross of %zu slots, expected 2",
                 slot.name.c_str(), t.cross.size());
  }
  for (const std::string& name : t.cross) {
    const size_t from = FindBefore(slots, index, name);
    if (from == index || slots[from].kind != SlotKind::kSparse) {
      return Error(Code::kInvalidArgument,
                   "slot '%s': cross of '%s', expected a sparse slot before it", slot.name.c_str(),
                   name.c_str());
    }
  }
  return Status::Ok();
}

Status CheckExpr(const FeedSchema& schema, const SlotSpec& slot) {
  if (schema.format != Format::kCsv && schema.format != Format::kColumns) {
    return Error(Code::kInvalidArgument,
                 "slot '%s' has expr, which needs columns with names: expected the format csv, "
                 "parquet, arrow or orc",
                 slot.name.c_str());
  }
  const bool fits = slot.kind == SlotKind::kSparse ||
                    (slot.kind == SlotKind::kDense && slot.dim == 1 && !slot.weight);
  if (fits && !slot.transform.made() && slot.column.empty() && !slot.weighted) return Status::Ok();
  return Error(Code::kInvalidArgument,
               "slot '%s' has expr, expected a sparse slot, or a dense one of dim 1, without "
               "column, bucket, cross and weighted",
               slot.name.c_str());
}

Status CheckTransform(const FeedSchema& schema, size_t index) {
  const SlotSpec& slot = schema.slots[index];
  const SlotTransform& t = slot.transform;
  const bool sparse = slot.kind == SlotKind::kSparse, dense = slot.kind == SlotKind::kDense;
  const bool computed = !t.bucket_of.empty() || !t.cross.empty();
  if (((t.hash || t.max_length != 0 || computed) && !sparse) ||
      ((t.clip || t.log1p || !t.exact_of.empty()) && !dense) ||
      (t.has_default && !sparse && !dense) ||
      (t.hash && (t.made() || schema.format == Format::kCriteoTsv)) ||
      (t.clip && !(t.clip_low <= t.clip_high))) {
    return Error(Code::kInvalidArgument,
                 "slot '%s': a transform that does not fit: hash, max_length, bucket and cross are "
                 "for sparse slots, clip (low first) and log1p for dense slots, hash is not for "
                 "criteo_tsv",
                 slot.name.c_str());
  }
  if (!slot.expr.empty()) PBX_RETURN_IF_ERROR(CheckExpr(schema, slot));
  if (t.made()) return CheckMade(schema.slots, index);
  if (index > 0 && schema.slots[index - 1].transform.made()) {
    return Error(Code::kInvalidArgument,
                 "slot '%s' is read from the data but follows '%s', which is computed; put "
                 "computed slots last",
                 slot.name.c_str(), schema.slots[index - 1].name.c_str());
  }
  return Status::Ok();
}

Status CheckWeighted(const FeedSchema& schema) {
  if (!schema.weighted()) return Status::Ok();
  const bool named = schema.format == Format::kFeasignSlot || schema.format == Format::kSlotValue;
  for (const SlotSpec& slot : schema.slots) {
    if (named && slot.name.find(':') != std::string::npos) {
      return Error(Code::kInvalidArgument,
                   "slot '%s' has a ':' in its name, which here divides an id from its weight",
                   slot.name.c_str());
    }
    if (!slot.weighted) continue;
    if (slot.kind != SlotKind::kSparse || slot.transform.made() ||
        schema.format == Format::kCriteoTsv || schema.format == Format::kPlugin ||
        (schema.format == Format::kColumns && slot.weight_column.empty())) {
      return Error(Code::kInvalidArgument,
                   "slot '%s' is weighted, which only a sparse slot that is read from multislot, "
                   "feasign_slot, slot_value, csv or columns can be, from columns with a "
                   "weight_column",
                   slot.name.c_str());
    }
  }
  if (schema.format == Format::kCsv &&
      (schema.csv_delimiter == ':' || schema.csv_list_separator == ':')) {
    return Error(Code::kInvalidArgument,
                 "csv: ':' is the delimiter or the list separator, but it divides ids from their "
                 "weights");
  }
  return Status::Ok();
}

Status CheckKeySlots(const FeedSchema& schema) {
  if (schema.key_slots.empty()) return Status::Ok();
  std::vector<const SlotSpec*> sparse;
  for (const SlotSpec& slot : schema.slots) {
    if (slot.kind == SlotKind::kSparse) sparse.push_back(&slot);
  }
  if (schema.key_slots.size() != sparse.size()) {
    return Error(Code::kInvalidArgument, "key slots of %zu sparse slots, expected %zu",
                 schema.key_slots.size(), sparse.size());
  }
  for (size_t i = 0; i < sparse.size(); ++i) {
    const size_t other = schema.key_slots[i];
    if (other == i) continue;
    if (other < sparse.size() && !sparse[i]->transform.made() && !sparse[other]->transform.made() &&
        schema.key_slots[other] == other) {
      continue;
    }
    return Error(Code::kInvalidArgument,
                 "slot '%s' shares the ids of sparse slot %zu: expected two slots that are read "
                 "from the data, of which the latter does not share ids of a third",
                 sparse[i]->name.c_str(), other);
  }
  return Status::Ok();
}

Status CheckCsv(const FeedSchema& schema) {
  const std::string marks = {schema.csv_delimiter, schema.csv_list_separator};
  if (marks[0] == marks[1] || marks.find_first_of(std::string("\n\r\"\0", 4)) != marks.npos) {
    return Error(Code::kInvalidArgument,
                 "csv: the delimiter and the list separator are '%c' and '%c', expected two "
                 "different characters other than a quote or a line break",
                 marks[0], marks[1]);
  }
  if (schema.csv_columns.empty()) return Status::Ok();
  for (const std::string& name : schema.ColumnNames()) {
    const auto& columns = schema.csv_columns;
    if (std::count(columns.begin(), columns.end(), name) == 1) continue;
    std::string there;
    for (const std::string& column : columns) there += (there.empty() ? "" : ", ") + column;
    return Error(Code::kInvalidArgument, "expected one column '%.200s', found the columns %.1000s",
                 name.c_str(), there.c_str());
  }
  return Status::Ok();
}

}  // namespace

std::vector<std::string> FeedSchema::ColumnNames() const {
  std::vector<std::string> names;
  const auto add = [&names](const std::string& name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  };
  for (const TagColumn& tag : TagColumnsRead()) add(tag.column);
  for (const SlotSpec& slot : slots) {
    if (slot.transform.made() || !slot.expr.empty()) continue;
    add(slot.column_name());
    if (slot.weighted && format == Format::kColumns) add(slot.weight_column);
  }
  if (program != nullptr) {
    for (const expr::Load& load : program->loads) add(load.column);
  }
  return names;
}

Status FeedSchema::Compile(const expr::Zones& zones, const expr::Tables& tables) {
  std::vector<expr::Source> sources;
  for (SlotSpec& slot : slots) {
    if (slot.expr.empty()) continue;
    slot.output = static_cast<int>(sources.size());
    const bool dense = slot.kind == SlotKind::kDense;
    sources.push_back({slot.name, slot.expr, dense, slot.transform.hash, slot.constants});
  }
  if (sources.empty()) return Status::Ok();
  Result<expr::Program> compiled = expr::Compile(sources, zones, tables);
  PBX_RETURN_IF_ERROR(compiled.status());
  program = std::make_shared<const expr::Program>(std::move(compiled.value()));
  return Status::Ok();
}

std::vector<TagColumn> FeedSchema::TagColumnsRead() const {
  std::vector<TagColumn> read;
  if (format != Format::kCsv && format != Format::kColumns) return read;
  if (tags.ins_id) read.push_back({Tag::kInsId, "ins_id", ins_id_column});
  if (tags.content) read.push_back({Tag::kContent, "content", content_column});
  if (tags.log_key) read.push_back({Tag::kLogKey, "logkey", log_key_column});
  if (tags.time) read.push_back({Tag::kTime, "time", time_column});
  return read;
}

FeedSchema FeedSchema::WithoutMade() const {
  FeedSchema read = *this;
  while (!read.slots.empty() && read.slots.back().transform.made()) {
    const SlotTransform& t = read.slots.back().transform;
    for (SlotSpec& slot : read.slots) {
      slot.exact = slot.exact || slot.name == t.exact_of ||
                   (slot.name == t.bucket_of && !t.boundaries.empty());
    }
    read.slots.pop_back();
  }
  if (!read.key_slots.empty()) read.key_slots.resize(read.sparse_slots());
  return read;
}

size_t FeedSchema::sparse_slots() const {
  size_t count = 0;
  for (const SlotSpec& slot : slots) count += slot.kind == SlotKind::kSparse;
  return count;
}

bool FeedSchema::exact() const {
  return std::any_of(slots.begin(), slots.end(), [](const SlotSpec& slot) { return slot.exact; });
}

bool FeedSchema::weighted() const {
  return std::any_of(slots.begin(), slots.end(),
                     [](const SlotSpec& slot) { return slot.weighted; });
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
  for (size_t i = 0; i < slots.size(); ++i) {
    const SlotSpec& slot = slots[i];
    labels += slot.kind == SlotKind::kLabel;
    if (slot.name.empty()) return Error(Code::kInvalidArgument, "a slot has an empty name");
    if (!names.insert(slot.name).second) {
      return Error(Code::kInvalidArgument, "slot '%s' is named twice", slot.name.c_str());
    }
    if (slot.kind == SlotKind::kDense && slot.dim < 1) {
      return Error(Code::kInvalidArgument, "slot '%s': dim is %d, expected at least 1",
                   slot.name.c_str(), slot.dim);
    }
    PBX_RETURN_IF_ERROR(CheckTransform(*this, i));
    if (format == Format::kCriteoTsv && !slot.transform.made()) {
      PBX_RETURN_IF_ERROR(CheckCriteo(slot));
    }
  }
  PBX_RETURN_IF_ERROR(CheckKeySlots(*this));
  PBX_RETURN_IF_ERROR(CheckWeighted(*this));
  if (format == Format::kCsv) PBX_RETURN_IF_ERROR(CheckCsv(*this));
  if (tags.any() && format != Format::kMultiSlot && format != Format::kCsv &&
      format != Format::kColumns) {
    return Error(
        Code::kInvalidArgument,
        "ins_id, content, logkey and time are parsed from multislot, csv, parquet and arrow only");
  }
  const bool hashed = std::any_of(slots.begin(), slots.end(),
                                  [](const SlotSpec& slot) { return slot.transform.hash; });
  if (format == Format::kPlugin && (plugin == nullptr || hashed)) {
    return Error(Code::kInvalidArgument, "%s",
                 hashed ? "a slot has hash, but a parser plugin returns feasigns"
                        : "no parser plugin was loaded");
  }
  if (labels > 1 || (labels == 0 && format == Format::kCriteoTsv)) {
    return Error(Code::kInvalidArgument, "the schema has %zu label slots, expected %s", labels,
                 format == Format::kCriteoTsv ? "one" : "at most one");
  }
  if (sparse_slots() > kMaxSparseSlots) {
    return Error(Code::kInvalidArgument, "the schema has %zu sparse slots, expected at most %zu",
                 sparse_slots(), kMaxSparseSlots);
  }
  return Status::Ok();
}

int CriteoColumn(const SlotSpec& slot) {
  const std::string& name = slot.column_name();
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
