#include "library/model_inputs.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "feed/text/dense_limits.h"
#include "feed/text/schema_json.h"
#include "table/kernels.h"

namespace pbx {
Result<ListPooling> ListPoolingOf(const std::string& name) {
  if (name == "plain") return ListPooling::kPlain;
  if (name == "sum") return ListPooling::kSum;
  if (name == "mean") return ListPooling::kMean;
  if (name == "sqrtn") return ListPooling::kSqrtN;
  return Error(Code::kInvalidArgument, "pooling '%s': expected plain, sum, mean or sqrtn",
               name.c_str());
}

Result<std::unique_ptr<ModelInputs>> ModelInputs::Of(const Json& feed) {
  std::unique_ptr<ModelInputs> made(new ModelInputs());
  JsonReader reader("the feed of the model");
  FeedSchema& schema = made->schema_;
  const Result<Format> format = FormatOf(reader.Text(feed, "format"));
  const std::string& marks = reader.Text(feed, "csv");
  if (marks.size() != 2) reader.Fail("csv", "two characters");
  schema.per_slot_keys = reader.Bool(feed, "per_slot_keys");
  schema.max_line_bytes = reader.Unsigned(feed, "max_line_bytes");
  const Json& plan = reader.Object(feed, "fields");
  schema.csv_nulls = reader.Texts(plan, "nulls");
  made->cvm_ = reader.Bool(feed, "cvm");
  PBX_RETURN_IF_ERROR(reader.status());
  PBX_RETURN_IF_ERROR(format.status());
  schema.format = format.value();
  schema.csv_delimiter = marks[0];
  schema.csv_list_separator = marks[1];
  Json slots;
  slots.items = reader.List(feed, "slots");
  PBX_RETURN_IF_ERROR(SetSlots(slots, &schema));
  Result<Fields> fields = Fields::Of(plan);
  PBX_RETURN_IF_ERROR(fields.status());
  made->fields_ = std::move(fields.value());
  PBX_RETURN_IF_ERROR(made->SetPoolings(feed, &reader));
  PBX_RETURN_IF_ERROR(made->SetSequences(feed, &reader));
  made->SetUsers(feed, &reader);
  if (schema.format != Format::kCriteoTsv &&
      reader.Texts(plan, "columns") != schema.ColumnNames()) {
    reader.Fail("columns", "those of the slots");
  }
  PBX_RETURN_IF_ERROR(reader.status());
  return made;
}

Status ModelInputs::SetPoolings(const Json& feed, JsonReader* reader) {
  for (const std::string& name : reader->Texts(feed, "poolings")) {
    const Result<ListPooling> pooling = ListPoolingOf(name);
    PBX_RETURN_IF_ERROR(pooling.status());
    poolings_.push_back(pooling.value());
  }
  if (!poolings_.empty() && poolings_.size() != slots()) {
    reader->Fail("poolings", "one for each sparse slot, or none");
  }
  for (const Json& table : reader->List(feed, "tables")) {
    table_of_slot_.push_back(static_cast<uint8_t>(reader->AsInteger(table, "tables", 0, 255)));
  }
  if (table_of_slot_.size() != slots()) reader->Fail("tables", "one for each sparse slot");
  return Status::Ok();
}

Status ModelInputs::SetSequences(const Json& feed, JsonReader* reader) {
  size_t cells = 0;
  for (const Json& places : reader->List(feed, "sequences")) {
    cells_.push_back(
        static_cast<uint32_t>(reader->AsInteger(places, "sequences", 0, int64_t{1} << 30)));
    cells += std::max(1u, cells_.back());
    sequences_ += cells_.back() != 0 ? 1 : 0;
  }
  if (cells_.size() != slots()) reader->Fail("sequences", "one for each sparse slot");
  for (const Json& cell : reader->List(feed, "clicks")) {
    const int64_t most = static_cast<int64_t>(cells) - 1;
    clicks_.push_back(static_cast<size_t>(reader->AsInteger(cell, "clicks", 0, most)));
  }
  return Status::Ok();
}

void ModelInputs::SetUsers(const Json& feed, JsonReader* reader) {
  const Json* const users = feed.Find("users");
  if (users == nullptr) return;
  UserForm& form = users_.emplace();
  form.known_width = static_cast<size_t>(reader->Integer(*users, "known_width", 1, 1 << 30));
  const auto length = static_cast<uint64_t>(reader->Integer(*users, "max_length", 0, 1 << 30));
  form.most = length - 1;  // the candidate is one of max_length, too; 0: no limit
  form.time = reader->Text(*users, "time");
  form.labels = reader->Texts(*users, "labels");
  if (form.labels.empty()) reader->Fail("labels", "the label's column");
}

Status ModelInputs::SetTables(const std::vector<const ServeTable*>& tables) {
  if (tables.empty() || (tables.size() > 1 && sequences_ != 0)) {
    return Error(Code::kInvalidArgument, "%zu tables and %zu sequences: expected one table",
                 tables.size(), sequences_);
  }
  const size_t dense = dense_width() + sequences_;
  size_t cells = 0, found = 0;
  for (const uint32_t places : cells_) cells += std::max(1u, places);
  for (const ServeTable* table : tables) found += table->slots();
  if (found != cells || tables[0]->dense_width() != dense) {
    return Error(Code::kInvalidArgument,
                 "the rows are of %zu cells and %zu dense floats, expected %zu and %zu", found,
                 tables[0]->dense_width(), cells, dense);
  }
  first_ = tables[0];
  width_ = first_->output_width();
  several_.reset();
  if (tables.size() == 1) return Status::Ok();
  Result<std::unique_ptr<ServeTables>> several = ServeTables::Of(tables, table_of_slot_, dense);
  PBX_RETURN_IF_ERROR(several.status());
  several_ = std::move(several.value());
  width_ = several_->output_width();
  return Status::Ok();
}

Status ModelInputs::Part(const Lists& lists, size_t instances, std::vector<int32_t>* offsets,
                         std::vector<float>* dense) const {
  offsets->assign(1, 0);
  dense->clear();
  const int32_t* list = lists.offsets;
  for (size_t b = 0; b < instances; ++b) {
    if (dense_width() != 0) {
      dense->insert(dense->end(), lists.dense + b * dense_width(),
                    lists.dense + (b + 1) * dense_width());
    }
    for (size_t s = 0; s < slots(); ++s, ++list) {
      const int32_t length = list[1] - list[0];
      const auto most = static_cast<int32_t>(cells_[s]);
      if (most == 0) {
        offsets->push_back(list[1]);
        continue;
      }
      if (length > most) {
        return Error(Code::kInvalidArgument,
                     "instance %zu: a sequence has %d ids, expected at most %d, its max_length", b,
                     length, most);
      }
      for (int32_t place = 0; place < most; ++place) {
        offsets->push_back(list[0] + std::min(place + 1, length));
      }
      dense->push_back(static_cast<float>(length));
    }
  }
  return Status::Ok();
}

Status ModelInputs::CheckWeights(const Lists& lists, size_t instances, size_t nnz) const {
  if (lists.weights == nullptr) {
    if (!weighted()) return Status::Ok();
    std::string names;
    for (const SlotSpec& slot : schema_.slots) {
      if (slot.weighted) names += (names.empty() ? "" : ", ") + slot.name;
    }
    return Error(Code::kInvalidArgument,
                 "expected weights of the feasigns, because slots %s are weighted: pass ones for "
                 "weights of 1",
                 names.c_str());
  }
  if (!weighted()) {
    return Error(Code::kInvalidArgument,
                 "weights of ids are given, but no slot is weighted: leave them out");
  }
  for (size_t i = 0; i < nnz; ++i) {
    if (lists.weights[i] >= 0 && lists.weights[i] <= kMostWeight) continue;  // NaN is neither
    return Error(Code::kInvalidArgument, "weights of feasigns: expected numbers in [0, 2^32]");
  }
  size_t s = 0, at = 0;
  for (size_t b = 0; b < instances; ++b) {
    s = b * slots();
    for (const SlotSpec& slot : schema_.slots) {
      if (slot.kind != SlotKind::kSparse) continue;
      const auto end = static_cast<size_t>(lists.offsets[++s]);
      for (; at < end; ++at) {
        if (slot.weighted || lists.feasigns[at] == 0 || lists.weights[at] == 1) continue;
        return Error(Code::kInvalidArgument,
                     "weights of feasigns: expected 1 in slot '%s', which is not weighted, found "
                     "%g at index %zu",
                     slot.name.c_str(), static_cast<double>(lists.weights[at]), at);
      }
    }
  }
  return Status::Ok();
}

Status ModelInputs::Check(const Lists& lists, size_t instances, size_t nnz) const {
  const int32_t* const offsets = lists.offsets;
  const size_t n = instances * slots();
  if (offsets[0] != 0 || offsets[n] < 0 || static_cast<size_t>(offsets[n]) != nnz ||
      !ActiveKernels().check_offsets(offsets, n)) {
    return Error(Code::kInvalidArgument,
                 "offsets: expected ascending values from 0 to %zu, the number of feasigns", nnz);
  }
  if (lists.dense == nullptr && dense_width() != 0 && instances != 0) {
    return Error(Code::kInvalidArgument, "dense: expected %zu floats of each instance, found none",
                 dense_width());
  }
  return CheckWeights(lists, instances, nnz);
}

Status ModelInputs::Fill(const Lists& given, size_t instances, float* out) const {
  if (instances == 0) return Status::Ok();
  Lists lists = given;
  const auto nnz = static_cast<size_t>(lists.offsets[instances * slots()]);
  thread_local std::vector<float> factors, dense, counted;
  thread_local std::vector<int32_t> offsets;
  const float* of_rows = nullptr;
  const uint64_t* const end = lists.feasigns + nnz;
  if (!poolings_.empty() && std::find(lists.feasigns, end, uint64_t{0}) != end) {
    counted.resize(nnz);  // 0 is padding, which has no part in a mean
    for (size_t i = 0; i < nnz; ++i) {
      const float weight = lists.weights == nullptr ? 1 : lists.weights[i];
      counted[i] = lists.feasigns[i] == 0 ? 0 : weight;
    }
    lists.weights = counted.data();
  }
  if (!poolings_.empty()) {
    factors.clear();
    for (size_t list = 0; list < instances * slots(); ++list) {
      const auto at = static_cast<size_t>(lists.offsets[list]);
      AppendFactors(poolings_[list % slots()],
                    lists.weights == nullptr ? nullptr : lists.weights + at,
                    static_cast<size_t>(lists.offsets[list + 1]) - at, &factors);
    }
    of_rows = factors.data();
  }
  Lists parted = lists;
  if (sequences_ != 0) {
    PBX_RETURN_IF_ERROR(Part(lists, instances, &offsets, &dense));
    parted.offsets = offsets.data();
    parted.dense = dense.data();
  }
  if (nnz == 0) of_rows = nullptr;
  return several_ != nullptr
             ? several_->Pull(parted.feasigns, parted.offsets, of_rows, instances, parted.dense,
                              out)
             : first_->Pull(parted.feasigns, parted.offsets, of_rows, instances, parted.dense, out);
}

Status ModelInputs::Fill(const ParsedChunk& chunk, float* out) const {
  if (chunk.lengths.size() != chunk.instances * slots() ||
      chunk.dense.size() != chunk.instances * dense_width()) {
    return Error(Code::kInvalidArgument,
                 "%zu instances of %zu lists and %zu dense floats: expected %zu and %zu",
                 chunk.instances, chunk.lengths.size(), chunk.dense.size(),
                 chunk.instances * slots(), chunk.instances * dense_width());
  }
  constexpr size_t kMost = std::numeric_limits<int32_t>::max();
  if (chunk.feasigns.size() > kMost) {
    return Error(Code::kInvalidArgument, "%zu feasigns: expected at most %zu in one batch",
                 chunk.feasigns.size(), kMost);
  }
  thread_local std::vector<int32_t> offsets;
  offsets.assign(1, 0);
  offsets.reserve(chunk.lengths.size() + 1);
  for (const uint32_t length : chunk.lengths) {
    offsets.push_back(offsets.back() + static_cast<int32_t>(length));
  }
  return Fill({chunk.feasigns.data(), offsets.data(),
               chunk.weights.empty() ? nullptr : chunk.weights.data(), chunk.dense.data()},
              chunk.instances, out);
}

}  // namespace pbx
