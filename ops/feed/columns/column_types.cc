#include "feed/columns/column_types.h"

#include <cstdlib>
#include <cstring>
#include <string>

#include "feed/columns/columns.h"
#include "feed/columns/expression_columns.h"

namespace pbx {
namespace feed {

std::string TypeName(const ArrowSchema& type) {
  static constexpr struct {
    const char* format;
    const char* name;
  } kNames[] = {
      {"n", "null"},         {"b", "bool"},         {"c", "int8"},         {"C", "uint8"},
      {"s", "int16"},        {"S", "uint16"},       {"i", "int32"},        {"I", "uint32"},
      {"l", "int64"},        {"L", "uint64"},       {"e", "halffloat"},    {"f", "float"},
      {"g", "double"},       {"z", "binary"},       {"Z", "large_binary"}, {"u", "string"},
      {"U", "large_string"}, {"vz", "binary_view"}, {"vu", "string_view"}, {"tdD", "date32"},
      {"tdm", "date64"},     {"+s", "struct"},      {"+m", "map"}};
  static constexpr struct {
    const char* prefix;
    const char* name;
  } kKinds[] = {{"ts", "timestamp"}, {"tt", "time"}, {"tD", "duration"}, {"d:", "decimal"}};
  if (type.dictionary != nullptr) return "dictionary of " + TypeName(*type.dictionary);
  const std::string format = type.format;
  for (const auto& known : kNames) {
    if (format == known.format) return known.name;
  }
  for (const auto& known : kKinds) {
    if (format.rfind(known.prefix, 0) == 0) return known.name;
  }
  const std::string item = type.n_children == 1 ? TypeName(*type.children[0]) : "...";
  if (format == "+l") return "list<" + item + ">";
  if (format == "+L") return "large_list<" + item + ">";
  if (format.rfind("+w:", 0) == 0) return "fixed_size_list<" + item + ">[" + format.substr(3) + "]";
  return "the type '" + format + "' of the Arrow C data interface";
}

namespace {

bool IsOne(const ArrowSchema& type, const char* formats) {
  return type.dictionary == nullptr && std::strlen(type.format) == 1 &&
         std::strchr(formats, type.format[0]) != nullptr;
}

}  // namespace

bool IsInteger(const ArrowSchema& type) { return IsOne(type, "cCsSiIlL"); }
bool IsNumber(const ArrowSchema& type) { return IsInteger(type) || IsOne(type, "fgb"); }
bool IsString(const ArrowSchema& type) { return IsOne(type, "uUzZ"); }
bool IsNull(const ArrowSchema& type) { return IsOne(type, "n"); }

int64_t FixedSize(const ArrowSchema& type) {
  if (std::strncmp(type.format, "+w:", 3) != 0) return -1;
  return std::strtoll(type.format + 3, nullptr, 10);
}

bool IsList(const ArrowSchema& type) {
  return type.n_children == 1 && type.dictionary == nullptr &&
         (std::strcmp(type.format, "+l") == 0 || std::strcmp(type.format, "+L") == 0 ||
          FixedSize(type) >= 0);
}

SlotSpec SpecOf(const TagColumn& tag) {
  SlotSpec spec;
  spec.name = tag.name;
  spec.column = tag.column;
  return spec;
}

SlotSpec SpecOfWeights(const SlotSpec& slot) {
  SlotSpec spec;
  spec.name = slot.name;
  spec.column = slot.weight_column;
  return spec;
}

Result<int64_t> FindColumn(const SlotSpec& slot, const ArrowSchema& type) {
  int64_t found = -1, times = 0;
  std::string there;
  for (int64_t i = 0; i < type.n_children; ++i) {
    const char* const name = type.children[i]->name;
    there += (i == 0 ? "" : ", ") + std::string(name);
    if (slot.column_name() != name) continue;
    found = i;
    ++times;
  }
  if (times == 1) return found;
  return Error(Code::kInvalidArgument,
               "slot '%.200s': expected one column '%.200s', found %lld among: %.1000s",
               slot.name.c_str(), slot.column_name().c_str(), static_cast<long long>(times),
               there.c_str());
}

namespace {

Status CheckType(const SlotSpec& slot, const ArrowSchema& type) {
  const ArrowSchema& item = IsList(type) ? *type.children[0] : type;
  if (IsNull(type)) return Status::Ok();
  // Whether hash: true of a sparse slot would accept it: see paddlebox/data/columnar.py.
  const bool has_text =
      item.dictionary == nullptr && item.n_children == 0 && std::strncmp(item.format, "ti", 2) != 0;
  bool fits = false;
  const char* expected = "";
  const char* step = "write the column with one of these types";
  switch (slot.kind) {
    case SlotKind::kLabel:
      fits = IsNumber(type);
      expected = "a number or bool";
      break;
    case SlotKind::kDense:
      fits = (IsNumber(item) || IsNull(item)) && (&item != &type || slot.dim == 1) &&
             (FixedSize(type) < 0 || FixedSize(type) == slot.dim);
      expected = slot.dim == 1 ? "a number, bool, or list of one of them" : "a list of dim numbers";
      if (has_text && !IsNumber(item)) {
        step = "write it as numbers, or make the slot sparse, with hash: true";
      } else if (IsNumber(item)) {
        step = "set dim to the number of values of a row";
      }
      break;
    case SlotKind::kSparse:
      fits = IsInteger(item) || IsNull(item) || (slot.transform.hash && IsString(item));
      expected = slot.transform.hash ? "values with a text (strings, numbers, dates), or a list of "
                                       "them, as hash: true says"
                                     : "an integer type, or a list of one";
      if (has_text && !slot.transform.hash) step = "give the slot hash: true in slots.yaml";
      break;
  }
  if (fits) return Status::Ok();
  return Error(
      Code::kInvalidArgument, "column '%.200s' of slot '%.200s': expected %s, found %s: %s",
      slot.column_name().c_str(), slot.name.c_str(), expected, TypeName(type).c_str(), step);
}

Status CheckWeightType(const SlotSpec& slot, const ArrowSchema& type) {
  const ArrowSchema& item = IsList(type) ? *type.children[0] : type;
  if (IsNumber(item) || IsNull(item)) return Status::Ok();
  return Error(Code::kInvalidArgument,
               "column '%.200s' of the weights of slot '%.200s': expected a number, or a list of "
               "numbers, found %s: write the column with one of these types",
               slot.weight_column.c_str(), slot.name.c_str(), TypeName(type).c_str());
}

Status CheckTagType(const TagColumn& tag, const ArrowSchema& type) {
  const bool id = tag.tag == Tag::kInsId, time = tag.tag == Tag::kTime;
  if (IsNull(type) || (IsString(type) && !time) || (IsInteger(type) && (id || time)))
    return Status::Ok();
  return Error(Code::kInvalidArgument, "column '%.200s' of %s: expected %s, found %s",
               tag.column.c_str(), tag.name,
               time ? "an integer type"
               : id ? "string, binary or an integer type"
                    : "string or binary",
               TypeName(type).c_str());
}

}  // namespace
}  // namespace feed

Status CheckColumns(const FeedSchema& schema, const ArrowSchema& type) {
  PBX_RETURN_IF_ERROR(schema.Check());
  for (const SlotSpec& slot : schema.slots) {
    if (slot.transform.made() || slot.output >= 0) continue;
    const Result<int64_t> place = feed::FindColumn(slot, type);
    PBX_RETURN_IF_ERROR(place.status());
    PBX_RETURN_IF_ERROR(feed::CheckType(slot, *type.children[place.value()]));
    if (!slot.weighted) continue;
    const Result<int64_t> weights = feed::FindColumn(feed::SpecOfWeights(slot), type);
    PBX_RETURN_IF_ERROR(weights.status());
    PBX_RETURN_IF_ERROR(feed::CheckWeightType(slot, *type.children[weights.value()]));
  }
  PBX_RETURN_IF_ERROR(feed::CheckExpressions(schema, type));
  for (const TagColumn& tag : schema.TagColumnsRead()) {
    const Result<int64_t> place = feed::FindColumn(feed::SpecOf(tag), type);
    PBX_RETURN_IF_ERROR(place.status());
    PBX_RETURN_IF_ERROR(feed::CheckTagType(tag, *type.children[place.value()]));
  }
  return Status::Ok();
}

}  // namespace pbx
