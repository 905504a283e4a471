#include "library/batch.h"

#include <cstring>

namespace pbx {

void Batch::Clear() {
  instances_ = 0;
  texts_.clear();
  set_.clear();
  values_.clear();
}

size_t Batch::Keep(const char* text, size_t bytes) {
  const size_t at = texts_.size();
  if (bytes != 0) texts_.append(text, bytes);
  return at;
}

void Batch::BeginField(const char* name, size_t n, bool list) {
  if (instances_ == 0) instances_ = 1;
  const size_t bytes = std::strlen(name);
  set_.push_back({instances_ - 1, Keep(name, bytes), bytes, values_.size(), n, list});
}

void Batch::AddText(const char* text, size_t bytes) {
  values_.push_back({FieldValue::Kind::kText, Keep(text, bytes), bytes, 0});
}

void Batch::AddDigits(const std::string& digits) {
  const size_t at = Keep(digits.data(), digits.size());
  values_.push_back({FieldValue::Kind::kDigits, at, digits.size(), 0});
}

void Batch::AddReal(double value) { values_.push_back({FieldValue::Kind::kReal, 0, 0, value}); }

Status Batch::SetCell(const Fields& fields, const Field& field, std::atomic<uint64_t>* ignored,
                      Stamps* stamps) {
  const std::string_view name(texts_.data() + field.name, field.name_bytes);
  const int place = fields.Place(name);
  const bool stamp = stamps != nullptr && stamps->Reads(name);
  if (place == Fields::kIgnored && !stamp) return Status::Ok();
  if (place == Fields::kUnknown && !stamp) {
    if (ignored == nullptr) {
      return Error(Code::kNotFound, "no slot reads a field %s; expected one of %s",
                   Quoted(name, 80).c_str(), fields.Known().c_str());
    }
    ignored->fetch_add(1, std::memory_order_relaxed);
    return Status::Ok();
  }
  given_.clear();
  for (size_t i = 0; i < field.n; ++i) {
    const Value& value = values_[field.first + i];
    FieldValue given;
    given.kind = value.kind;
    given.text = {texts_.data() + value.text, value.bytes};
    given.real = value.real;
    given_.push_back(given);
  }
  Status status;
  if (stamp) status = stamps->Take(name, given_.data(), field.n, field.list);
  if (status.ok() && place >= 0) {
    const auto at = static_cast<size_t>(place);
    status = fields.Cell(at, given_.data(), field.n, field.list, &cells_[at]);
  }
  if (status.ok()) return status;
  return Error(status.code(), "field %s: %s", Quoted(name, 80).c_str(), status.message().c_str());
}

Result<std::string_view> Batch::Lines(const Fields& fields, std::atomic<uint64_t>* ignored,
                                      const char* what, Stamps* stamps) {
  lines_.clear();
  cells_.resize(fields.columns());
  size_t at = 0;
  for (size_t instance = 0; instance < instances_; ++instance) {
    for (std::string& cell : cells_) cell.clear();
    Status status;
    for (; status.ok() && at < set_.size() && set_[at].instance == instance; ++at) {
      status = SetCell(fields, set_[at], ignored, stamps);
    }
    if (status.ok() && stamps != nullptr) status = stamps->End();
    if (!status.ok()) {
      return Error(status.code(), "%s %zu: %s", what, instance, status.message().c_str());
    }
    fields.AppendLine(cells_, &lines_);
  }
  return std::string_view(lines_);
}

}  // namespace pbx
