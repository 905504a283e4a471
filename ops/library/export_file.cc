#include "library/export_file.h"

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

#include "base/crc32c.h"
#include "base/json.h"

namespace pbx {
namespace {

constexpr int64_t kFormat = 6;
constexpr int kTries = 200;
constexpr int64_t kMost = int64_t{1} << 53;

std::string KeyOfRecord(const char* kind, uint64_t number, const char* part) {
  char key[64];
  (void)std::snprintf(key, sizeof(key), "%s/%012" PRIu64 "%s", kind, number, part);
  return key;
}

Status Missing(const std::string& path, const std::string& key, const char* what) {
  return Error(Code::kCorruption, "%s: %s %s; export it again", path.c_str(), key.c_str(), what);
}

// The payload behind a CRC32C.
Result<std::string_view> Unsealed(const std::string& path, const std::string& key,
                                  std::string_view sealed) {
  uint32_t crc = 0;
  if (sealed.size() >= sizeof(crc)) {
    std::memcpy(&crc, sealed.data(), sizeof(crc));
    sealed.remove_prefix(sizeof(crc));
    if (Crc32c(sealed.data(), sealed.size()) == crc) return sealed;
  }
  return Missing(path, key, "is damaged: its CRC32C is wrong");
}

Result<Json> JsonIn(const std::string& path, const std::string& key, std::string_view sealed) {
  const Result<std::string_view> payload = Unsealed(path, key, sealed);
  PBX_RETURN_IF_ERROR(payload.status());
  Result<Json> parsed = Json::Parse(payload.value());
  if (parsed.ok()) return parsed;
  return Missing(path, key, parsed.status().message().c_str());
}

// A record whose checksum is right, and whose content is not.
Status Contradiction(const std::string& path, const Status& status) {
  if (status.ok() || status.code() != Code::kInvalidArgument) return status;
  return Error(Code::kCorruption, "%s: its records contradict each other: %s; export it again",
               path.c_str(), status.message().c_str());
}

// The value under one key, copied.
Result<std::optional<std::string>> Get(const LmdbReader& reader, const LmdbReader::Map& map,
                                       const LmdbReader::State& state, const std::string& key) {
  std::optional<std::string> found;
  PBX_RETURN_IF_ERROR(
      reader.ForEach(map, state, key, [&](std::string_view name, const LmdbReader::Value& value) {
        if (name == key) found = std::string(value.bytes);
        return Status::Ok();
      }));
  return found;
}

Result<ServeCodec> CodecOf(const Json& part, const Json& record, JsonReader* reader) {
  const std::string& precision = reader->Text(record, "precision");
  const bool counts = reader->Bool(record, "counts");
  const int64_t dim = reader->Integer(part, "embedx_dim", 1, 253);
  const int64_t more = reader->Integer(record, "more_counts", 0, counts ? 16 : 0);
  ServePrecision of = ServePrecision::kFloat32;
  if (precision == "float16") {
    of = ServePrecision::kFloat16;
  } else if (precision == "int8") {
    of = ServePrecision::kInt8;
  } else if (precision != "float32") {
    reader->Fail("precision", "float32, float16 or int8");
  }
  PBX_RETURN_IF_ERROR(reader->status());
  return ServeCodec(static_cast<int>(dim), counts, of, static_cast<int>(more));
}

}  // namespace

ServedVersion::~ServedVersion() {
  if (reader_ != nullptr) reader_->EndLease(generation_);
}

Status ServedVersion::TestAll() const {
  for (const std::unique_ptr<ServeTable>& table : tables_) PBX_RETURN_IF_ERROR(table->TestAll());
  return Status::Ok();
}

Status ServedVersion::CheckMap() const {
  if (!map_->shrunk()) return Status::Ok();
  return Error(Code::kCorruption,
               "%s: is cut short: expected it as it was opened: another process wrote over it. "
               "Replace a file only by renaming a whole one",
               reader_->path().c_str());
}

std::string_view ServedVersion::Keep(const LmdbReader::Value& value) {
  if (value.own_pages) return value.bytes;
  copies_.push_back(std::make_unique<std::string>(value.bytes));
  return *copies_.back();
}

// Adds a layer of the file to a table.
Status ServedVersion::AddLayer(const LmdbReader::State& state, uint64_t number, ServeTable* table) {
  const std::string& path = reader_->path();
  const std::string prefix = KeyOfRecord("layer", number, "/");
  LayerParts parts;
  parts.number = number;
  std::string_view about, filter;
  PBX_RETURN_IF_ERROR(reader_->ForEach(*map_, state, prefix,
                                       [&](std::string_view key, const LmdbReader::Value& value) {
                                         const std::string_view name = key.substr(prefix.size());
                                         const std::string_view kept = Keep(value);
                                         if (name == "about") about = kept;
                                         if (name == "filter") filter = kept;
                                         if (name.substr(0, 6) == "block/")
                                           parts.blocks.push_back({kept.data(), kept.size()});
                                         return Status::Ok();
                                       }));
  const Result<Json> record = JsonIn(path, prefix + "about", about);
  PBX_RETURN_IF_ERROR(record.status());
  const Result<std::string_view> table_of_filter = Unsealed(path, prefix + "filter", filter);
  PBX_RETURN_IF_ERROR(table_of_filter.status());
  JsonReader reader(path + ": " + prefix + "about");
  parts.bits = static_cast<int>(reader.Integer(record.value(), "bits", 0, 30));
  const Json& shape = reader.Object(record.value(), "filter");
  const auto word = [&](const char* name) {
    return static_cast<uint32_t>(reader.Integer(shape, name, 0, UINT32_MAX));
  };
  parts.filter.bits = word("bits");
  parts.filter.window_log2 = word("window_log2");
  parts.filter.windows = word("windows");
  parts.filter.seed = word("seed");
  parts.filter.by_hash = word("by_hash");
  parts.min_key = reader.Unsigned(shape, "min_key");
  parts.max_key = reader.Unsigned(shape, "max_key");
  parts.filter_table = {table_of_filter.value().data(), table_of_filter.value().size()};
  PBX_RETURN_IF_ERROR(Contradiction(path, reader.status()));
  return Contradiction(path, table->AddLayer(std::move(parts)));
}

// part: the record of the table in the generation, which for the first table is `record` itself.
// slots: of the table.
Status ServedVersion::AddTable(const LmdbReader::State& state, const Json& part, const Json& record,
                               size_t slots, size_t resident_bytes, const ServedVersion* before) {
  const std::string& path = reader_->path();
  JsonReader reader("a generation");
  const Result<ServeCodec> codec = CodecOf(part, record, &reader);
  PBX_RETURN_IF_ERROR(codec.status());
  const auto dense = static_cast<size_t>(reader.Integer(record, "dense_width", 0, 1 << 30));
  for (const size_t cell : inputs_->clicks()) {
    if (cell >= slots) reader.Fail("clicks", "cells of the table");
  }
  if ((inputs_->cvm() || !inputs_->clicks().empty()) && !codec.value().counts()) {
    reader.Fail("counts", "true, because the model reads them");
  }
  PBX_RETURN_IF_ERROR(reader.status());
  auto table = std::make_unique<ServeTable>(path, codec.value(), slots, dense, resident_bytes,
                                            ServedCounts{inputs_->cvm(), inputs_->clicks()});
  for (const Json& layer : reader.List(part, "layers")) {
    const auto number = static_cast<uint64_t>(reader.AsInteger(layer, "layers", 0, kMost));
    PBX_RETURN_IF_ERROR(reader.status());
    PBX_RETURN_IF_ERROR(AddLayer(state, number, table.get()));
  }
  PBX_RETURN_IF_ERROR(reader.status());
  const size_t at = tables_.size();
  if (before != nullptr && at < before->tables_.size()) table->AdoptTests(*before->tables_[at]);
  tables_.push_back(std::move(table));
  return Status::Ok();
}

Status ServedVersion::ReadModel(const LmdbReader::State& state, uint64_t model) {
  const std::string& path = reader_->path();
  const std::string prefix = KeyOfRecord("model", model, "/");
  std::string_view feed, onnx;
  PBX_RETURN_IF_ERROR(reader_->ForEach(*map_, state, prefix,
                                       [&](std::string_view key, const LmdbReader::Value& value) {
                                         const std::string_view name = key.substr(prefix.size());
                                         if (name == "feed") feed = Keep(value);
                                         if (name == "onnx") onnx = Keep(value);
                                         return Status::Ok();
                                       }));
  const Result<Json> record = JsonIn(path, prefix + "feed", feed);
  PBX_RETURN_IF_ERROR(record.status());
  JsonReader reader(path + ": " + prefix + "feed");
  model_ = reader.Text(record.value(), "model");
  tasks_ = reader.Texts(record.value(), "tasks");
  PBX_RETURN_IF_ERROR(Contradiction(path, reader.status()));
  if (!onnx.empty()) {
    const Result<std::string_view> payload = Unsealed(path, prefix + "onnx", onnx);
    PBX_RETURN_IF_ERROR(payload.status());
    onnx_ = payload.value();
  }
  Result<std::unique_ptr<ModelInputs>> inputs = ModelInputs::Of(record.value());
  PBX_RETURN_IF_ERROR(Contradiction(path, inputs.status()));
  inputs_ = std::move(inputs.value());
  return Status::Ok();
}

Status ServedVersion::Read(const LmdbReader::State& state, size_t resident_bytes,
                           const ServedVersion* before) {
  const std::string& path = reader_->path();
  const std::string key = KeyOfRecord("generation", generation_, "");
  const Result<Json> parsed = JsonIn(path, key, record_);
  PBX_RETURN_IF_ERROR(parsed.status());
  const Json& record = parsed.value();
  JsonReader reader(path + ": " + key);
  const auto number = [&](const char* name) {
    return static_cast<uint64_t>(reader.Integer(record, name, 0, kMost));
  };
  version_ = number("version");
  day_ = number("day");
  pass_number_ = number("pass_number");
  created_at_ = reader.Text(record, "created_at");
  const uint64_t model = number("model");
  const std::vector<Json>& others = reader.List(record, "tables");
  const size_t members = reader.List(record, "members").size();
  size_t first_slots = number("slots");
  for (const Json& other : others) {
    first_slots -= std::min(first_slots, static_cast<size_t>(reader.Unsigned(other, "slots")));
  }
  PBX_RETURN_IF_ERROR(Contradiction(path, reader.status()));
  if (members != 0) {
    return Error(Code::kFailedPrecondition,
                 "%s: is an ensemble of %zu models, expected one: serve it with paddlebox serve",
                 path.c_str(), members + 1);
  }
  PBX_RETURN_IF_ERROR(ReadModel(state, model));
  const size_t share = resident_bytes / (1 + others.size());
  PBX_RETURN_IF_ERROR(AddTable(state, record, record, first_slots, share, before));
  for (const Json& other : others) {
    const auto slots = static_cast<size_t>(reader.Unsigned(other, "slots"));
    PBX_RETURN_IF_ERROR(AddTable(state, other, record, slots, share, before));
  }
  std::vector<const ServeTable*> tables;
  tables.reserve(tables_.size());
  for (const std::unique_ptr<ServeTable>& table : tables_) tables.push_back(table.get());
  return Contradiction(path, inputs_->SetTables(tables));
}

namespace {

// The generation of a version, the newest if there are several; 0: there is none.
Result<uint64_t> GenerationOf(const LmdbReader& reader, const LmdbReader::Map& map,
                              const LmdbReader::State& state, uint64_t version) {
  const std::string prefix = "generation/";
  uint64_t found = 0;
  std::string kept;
  const auto look = [&](std::string_view key, const LmdbReader::Value& value) {
    const std::string name(key);
    const Result<Json> record = JsonIn(reader.path(), name, value.bytes);
    if (!record.ok()) return record.status();
    JsonReader fields(reader.path() + ": " + name);
    const uint64_t own = fields.Unsigned(record.value(), "version");
    if (own == version) found = fields.Unsigned(record.value(), "generation");
    kept += (kept.empty() ? "" : ", ") + std::to_string(own);
    return Contradiction(reader.path(), fields.status());
  };
  PBX_RETURN_IF_ERROR(reader.ForEach(map, state, prefix, look));
  if (found != 0) return found;
  return Error(Code::kFailedPrecondition,
               "%s: version %" PRIu64 " is not kept; the kept versions are %s",
               reader.path().c_str(), version, kept.empty() ? "none" : kept.c_str());
}

// The generation that the file shows.
Result<uint64_t> Current(const LmdbReader& reader, const LmdbReader::Map& map,
                         const LmdbReader::State& state) {
  const Result<std::optional<std::string>> head = Get(reader, map, state, "head");
  PBX_RETURN_IF_ERROR(head.status());
  if (!head.value().has_value()) {
    return Error(Code::kFailedPrecondition, "%s: no version has been exported yet",
                 reader.path().c_str());
  }
  const Result<Json> record = JsonIn(reader.path(), "head", *head.value());
  PBX_RETURN_IF_ERROR(record.status());
  JsonReader fields(reader.path() + ": head");
  const int64_t format = fields.Integer(record.value(), "format", 0, kMost);
  if (fields.status().ok() && format != kFormat) {
    return Error(Code::kFailedPrecondition,
                 "%s: has format %" PRId64 ", expected %" PRId64
                 ": serve it with the version of paddlebox that wrote it, or export into another "
                 "file",
                 reader.path().c_str(), format, kFormat);
  }
  const uint64_t current = fields.Unsigned(record.value(), "current");
  PBX_RETURN_IF_ERROR(Contradiction(reader.path(), fields.status()));
  if (current != 0) return current;
  return Error(Code::kFailedPrecondition, "%s: no version has been exported yet",
               reader.path().c_str());
}

}  // namespace

Result<ServedFile::Step> ServedFile::Try(std::optional<uint64_t> pin, const ServedVersion* before,
                                         std::shared_ptr<const ServedVersion>* out) {
  if (reader_ == nullptr || !reader_->IsAt(path_)) {  // a whole file may have been renamed onto it
    Result<std::shared_ptr<LmdbReader>> opened = LmdbReader::Open(path_);
    PBX_RETURN_IF_ERROR(opened.status());
    reader_ = std::move(opened.value());
  }
  LmdbReader& reader = *reader_;
  const Result<LmdbReader::State> state = reader.Newest();
  PBX_RETURN_IF_ERROR(state.status());
  const Result<std::shared_ptr<const LmdbReader::Map>> map = reader.MapOf(state.value());
  PBX_RETURN_IF_ERROR(map.status());
  const Result<uint64_t> wanted = pin.has_value()
                                      ? GenerationOf(reader, *map.value(), state.value(), *pin)
                                      : Current(reader, *map.value(), state.value());
  if (!reader.Holds(state.value())) return Step::kAgain;  // what was found may be of two states
  PBX_RETURN_IF_ERROR(wanted.status());
  const Result<bool> leased = reader.Lease(wanted.value());
  PBX_RETURN_IF_ERROR(leased.status());
  if (!leased.value()) return Step::kAgain;
  std::shared_ptr<ServedVersion> version(new ServedVersion());
  version->reader_ = reader_;  // from now on it ends the lease
  version->generation_ = wanted.value();
  // A writer may have removed the generation before it was leased.
  const Result<LmdbReader::State> now = reader.Newest();
  PBX_RETURN_IF_ERROR(now.status());
  const Result<std::shared_ptr<const LmdbReader::Map>> now_map = reader.MapOf(now.value());
  PBX_RETURN_IF_ERROR(now_map.status());
  version->map_ = now_map.value();
  const std::string key = KeyOfRecord("generation", wanted.value(), "");
  Result<std::optional<std::string>> record = Get(reader, *version->map_, now.value(), key);
  if (!reader.Holds(now.value())) return Step::kAgain;
  PBX_RETURN_IF_ERROR(record.status());
  std::optional<std::string>& content = record.value();
  if (!content.has_value()) {
    if (now.value() == state.value()) return Missing(path_, key, "is missing");
    return Step::kAgain;
  }
  version->record_ = std::move(*content);
  const bool same_file = before != nullptr && before->reader_ == reader_;
  if (same_file && before->record_ == version->record_) return Step::kDone;
  // A file that continues the one before has its generation, or has removed it since.
  const Status read = version->Read(now.value(), resident_bytes_, same_file ? before : nullptr);
  if (!reader.Holds(now.value())) return Step::kAgain;
  PBX_RETURN_IF_ERROR(read);
  PBX_RETURN_IF_ERROR(version->CheckMap());
  *out = std::move(version);
  return Step::kDone;
}

Result<std::shared_ptr<const ServedVersion>> ServedFile::OpenNewest(
    std::optional<uint64_t> pin, const std::shared_ptr<const ServedVersion>& before) {
  for (int tries = 0; tries < kTries; ++tries) {
    std::shared_ptr<const ServedVersion> opened;
    const Result<Step> step = Try(pin, before.get(), &opened);
    PBX_RETURN_IF_ERROR(step.status());
    if (step.value() == Step::kDone) return opened;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return Error(Code::kIOError, "%s: a writer changed it during each of %d reads: try again",
               path_.c_str(), kTries);
}

}  // namespace pbx
