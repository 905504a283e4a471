#include "feed/text/schema_json.h"

#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "row/feasign.h"

namespace pbx {
namespace {

constexpr int64_t kMostInt = std::numeric_limits<int32_t>::max();

bool IsTrue(const Json& fields, const char* name) {
  const Json* const value = fields.Find(name);
  return value != nullptr && value->kind == Json::Kind::kTrue;
}

void SetDefault(const Json& fields, bool sparse, JsonReader* reader, SlotTransform* t) {
  const Json* const value = fields.Find("default");
  t->has_default = value != nullptr;
  if (value == nullptr) return;
  if (value->kind == Json::Kind::kText) {
    t->default_feasign = FeasignOfString(value->text.data(), value->text.size());
  } else if (sparse) {
    t->default_feasign = reader->Unsigned(fields, "default");
  } else {
    t->default_value = reader->AsNumber(*value, "default");
  }
}

SlotTransform TransformOf(const Json& fields, bool sparse, JsonReader* reader) {
  SlotTransform t;
  t.hash = IsTrue(fields, "hash");
  t.log1p = IsTrue(fields, "log1p");
  if (fields.Find("max_length") != nullptr) {
    const int64_t most = std::numeric_limits<uint32_t>::max();
    t.max_length = static_cast<uint32_t>(reader->Integer(fields, "max_length", 0, most));
  }
  SetDefault(fields, sparse, reader, &t);
  t.clip = fields.Find("clip") != nullptr;
  if (t.clip) {
    const std::vector<Json>& limits = reader->List(fields, "clip");
    if (limits.size() != 2) {
      reader->Fail("clip", "two numbers");
    } else {
      t.clip_low = static_cast<float>(reader->AsNumber(limits[0], "clip"));
      t.clip_high = static_cast<float>(reader->AsNumber(limits[1], "clip"));
    }
  }
  if (fields.Find("bucket_of") != nullptr) t.bucket_of = reader->Text(fields, "bucket_of");
  if (fields.Find("exact_of") != nullptr) t.exact_of = reader->Text(fields, "exact_of");
  if (fields.Find("boundaries") != nullptr) {
    for (const Json& one : reader->List(fields, "boundaries")) {
      t.boundaries.push_back(reader->AsExact(one, "boundaries"));
    }
  }
  if (fields.Find("cross") != nullptr) t.cross = reader->Texts(fields, "cross");
  return t;
}

void AddZones(const Json& zones, JsonReader* reader, expr::Zones* to) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (size_t i = 0; i < zones.items.size(); ++i) {
    const std::vector<Json>& parts = zones.items[i].items;
    if (parts.size() != 2) return reader->Fail("zones", "starts and offsets");
    expr::Zone zone;
    for (const Json& one : parts[0].items) {
      zone.starts.push_back(reader->AsInteger(one, "zones", -kMost, kMost));
    }
    for (const Json& one : parts[1].items) {
      const int64_t offset = reader->AsInteger(one, "zones", -kMostInt, kMostInt);
      zone.offsets.push_back(static_cast<int32_t>(offset));
    }
    if (zone.starts.empty() || zone.starts.size() != zone.offsets.size()) {
      return reader->Fail("zones", "as many offsets as starts, and one or more");
    }
    (*to)[zones.names[i]] = std::move(zone);
  }
}

void AddTables(const Json& tables, JsonReader* reader, expr::Tables* to) {
  for (size_t i = 0; i < tables.items.size(); ++i) {
    const Json& rows = tables.items[i];
    expr::Table table;
    for (size_t row = 0; row < rows.items.size(); ++row) {
      if (rows.items[row].kind != Json::Kind::kText) {
        return reader->Fail("tables", "texts by key, by name");
      }
      table[rows.names[row]] = rows.items[row].text;
    }
    (*to)[tables.names[i]] = std::make_shared<const expr::Table>(std::move(table));
  }
}

SlotSpec SlotOf(const Json& fields, JsonReader* reader, expr::Zones* zones, expr::Tables* tables) {
  SlotSpec slot;
  slot.name = reader->Text(fields, "name");
  const std::string& type = reader->Text(fields, "type");
  if (type == "label") {
    slot.kind = SlotKind::kLabel;
  } else if (type == "dense") {
    slot.kind = SlotKind::kDense;
  } else if (type != "sparse") {
    reader->Fail("type", "label, dense or sparse");
  }
  slot.dim = static_cast<int>(reader->Integer(fields, "dim", -kMostInt, kMostInt));
  slot.column = reader->Text(fields, "column");
  slot.weight = IsTrue(fields, "weight");
  slot.weighted = IsTrue(fields, "weighted");
  if (slot.weighted && fields.Find("weight_column") != nullptr) {
    slot.weight_column = reader->Text(fields, "weight_column");
  }
  slot.transform = TransformOf(fields, slot.kind == SlotKind::kSparse, reader);
  if (fields.Find("expr") != nullptr) {
    slot.expr = reader->Text(fields, "expr");
    AddZones(reader->Object(fields, "zones"), reader, zones);
    if (fields.Find("tables") != nullptr) {
      AddTables(reader->Object(fields, "tables"), reader, tables);
    }
    if (fields.Find("constants") != nullptr) {
      for (const Json& one : reader->List(fields, "constants")) {
        slot.constants.push_back(reader->AsNumber(one, "constants"));
      }
    }
  }
  return slot;
}

// For each sparse slot, the number of the slot whose number is mixed into its feasigns; empty: its
// own.
Status SetKeySlots(const std::vector<std::optional<std::string>>& shares,
                   const std::map<std::string, uint32_t>& places, FeedSchema* schema) {
  std::vector<uint32_t> key_slots(shares.size());
  bool any = false;
  for (size_t i = 0; i < shares.size(); ++i) {
    key_slots[i] = static_cast<uint32_t>(i);
    const std::optional<std::string>& name = shares[i];
    if (!name.has_value()) continue;
    const auto found = places.find(*name);
    if (found == places.end()) {
      return Error(Code::kInvalidArgument, "shares '%s', expected a sparse slot", name->c_str());
    }
    key_slots[i] = found->second;
    any = true;
  }
  if (any) schema->key_slots = std::move(key_slots);
  return Status::Ok();
}

}  // namespace

Result<Format> FormatOf(const std::string& name) {
  if (name == "multislot") return Format::kMultiSlot;
  if (name == "feasign_slot") return Format::kFeasignSlot;
  if (name == "slot_value") return Format::kSlotValue;
  if (name == "criteo_tsv") return Format::kCriteoTsv;
  if (name == "csv") return Format::kCsv;
  if (name == "parquet" || name == "arrow" || name == "orc") return Format::kColumns;
  if (name == "plugin") return Format::kPlugin;
  return Error(Code::kInvalidArgument,
               "format '%s': expected multislot, feasign_slot, slot_value, criteo_tsv, csv, "
               "parquet or arrow",
               name.c_str());
}

Status SetSlots(const Json& slots, FeedSchema* schema) {
  expr::Zones zones;
  expr::Tables tables;
  std::map<std::string, uint32_t> places;
  std::vector<std::optional<std::string>> shares;
  for (const Json& fields : slots.items) {
    const Json* const name = fields.Find("name");
    JsonReader reader("slot '" + (name != nullptr ? name->text : "") + "'");
    SlotSpec slot = SlotOf(fields, &reader, &zones, &tables);
    if (slot.kind == SlotKind::kSparse) {
      places[slot.name] = static_cast<uint32_t>(shares.size());
      const bool has = fields.Find("shares") != nullptr;
      shares.push_back(has ? std::optional(reader.Text(fields, "shares")) : std::nullopt);
    }
    PBX_RETURN_IF_ERROR(reader.status());
    schema->slots.push_back(std::move(slot));
  }
  if (schema->per_slot_keys) PBX_RETURN_IF_ERROR(SetKeySlots(shares, places, schema));
  PBX_RETURN_IF_ERROR(schema->Compile(zones, tables));
  return schema->Check();
}

}  // namespace pbx
