#include "library/fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <utility>

namespace pbx {
namespace {

// Whether text is "-" and 1 to 19 digits, of a number of at least -2^63, and perhaps ":weight".
bool IsNegative(std::string_view text, int64_t* value, std::string_view* weight) {
  if (text.empty() || text[0] != '-') return false;
  const size_t colon = std::min(text.find(':'), text.size());
  const std::string_view digits = text.substr(1, colon - 1);
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  if (digits.empty() || digits.size() > 19 || !std::all_of(digits.begin(), digits.end(), digit)) {
    return false;
  }
  *weight = text.substr(colon);
  const char *const begin = &text[0], *const stop = begin + colon;
  const auto [end, error] = std::from_chars(begin, stop, *value);
  return error == std::errc() && end == stop;
}

void AppendId(std::string_view text, bool negative, std::string* to) {
  int64_t value = 0;
  std::string_view weight;
  if (!negative || !IsNegative(text, &value, &weight)) {
    to->append(text);
    return;
  }
  *to += std::to_string(static_cast<uint64_t>(value));
  to->append(weight);
}

Status AppendReal(double value, Fields::Use use, std::string* to) {
  const std::string text = TextOfDouble(value);
  const bool whole = std::isfinite(value) && value == std::trunc(value);
  const bool plain = std::isfinite(value) && !whole && text.find('e') == text.npos;
  if (use == Fields::Use::kNumber || (use == Fields::Use::kText && plain)) {
    to->append(text);  // a plain one has one text
    return Status::Ok();
  }
  std::string step = "send the text that the data has";
  if (whole) {
    char digits[400];
    (void)std::snprintf(digits, sizeof(digits), "send %.0f", value);
    step = digits;
  }
  if (std::isnan(value)) step = "leave the field out, or send None";
  if (use == Fields::Use::kId) {
    return Error(Code::kInvalidArgument, "expected an integer, found the float %s: %s",
                 text.c_str(), step.c_str());
  }
  if (whole) step += ", or '" + text + "' if the data has this text";
  return Error(Code::kInvalidArgument,
               "a hashed slot takes the text of the data, and %s is a float: %s", text.c_str(),
               step.c_str());
}

Status AppendBool(bool value, Fields::Use use, bool columnar, std::string* to) {
  if (use == Fields::Use::kNumber) {
    to->push_back(value ? '1' : '0');
    return Status::Ok();
  }
  if (use == Fields::Use::kText && columnar) {
    to->append(value ? "true" : "false");
    return Status::Ok();
  }
  const char* const found = value ? "True" : "False";
  if (use == Fields::Use::kText) {
    return Error(Code::kInvalidArgument,
                 "expected an id, found %s: send the text that the data has, such as '1'", found);
  }
  return Error(Code::kInvalidArgument, "expected an id, found %s: send the integer %d", found,
               value ? 1 : 0);
}

// A value for an error about a time or a label.
std::string Shown(const FieldValue* values, size_t n, bool list) {
  if (list) return "a list";
  if (n == 0 || values->kind == FieldValue::Kind::kMissing) return "nothing";
  if (values->kind == FieldValue::Kind::kText) return Quoted(values->text, 40);
  if (values->kind == FieldValue::Kind::kDigits) return std::string(values->text.substr(0, 40));
  if (values->kind == FieldValue::Kind::kReal) return TextOfDouble(values->real);
  return values->truth ? "True" : "False";
}

template <typename Number>
bool ReadWhole(std::string_view text, Number* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

bool Stamps::Reads(std::string_view name) const {
  const std::vector<std::string>& labels = form_->labels;
  return name == form_->time ||
         (has_labels_ && std::find(labels.begin(), labels.end(), name) != labels.end());
}

Status Stamps::Expected(std::string_view name, const std::string& found) const {
  return Error(Code::kInvalidArgument, "expected %s, found %s",
               name == form_->time ? "a time, an integer from 0 to 2^63 - 1"
                                   : "the label of the event, a number",
               found.c_str());
}

Status Stamps::Take(std::string_view name, const FieldValue* values, size_t n, bool list) {
  const FieldValue value = list || n == 0 ? FieldValue() : values[0];
  if (name == form_->time) {
    int64_t time = -1;  // that of a value without a text
    if (!ReadWhole(value.text, &time) || time < 0) return Expected(name, Shown(values, n, list));
    time_ = time;
    return Status::Ok();
  }
  double label = value.truth ? 1 : 0;
  if (value.kind == FieldValue::Kind::kReal) label = value.real;
  const bool is_text =
      value.kind != FieldValue::Kind::kReal && value.kind != FieldValue::Kind::kBool;
  if ((is_text && !ReadWhole(value.text, &label)) || !(std::fabs(label) <= 3.4e38)) {
    return Expected(name, Shown(values, n, list));
  }
  label_ = static_cast<float>(label);
  return Status::Ok();
}

Status Stamps::End() {
  const std::string& missing = time_.has_value() ? form_->labels[0] : form_->time;
  if (!time_.has_value() || (has_labels_ && !label_.has_value())) {
    return Error(Code::kInvalidArgument, "field %s: %s", Quoted(missing, 80).c_str(),
                 Expected(missing, "nothing").message().c_str());
  }
  times_.push_back(*time_);
  if (has_labels_) labels_.push_back(*label_);
  time_.reset();
  label_.reset();
  return Status::Ok();
}

Fields::Use Fields::UseOf(std::string_view name) {
  return name == "number" ? Use::kNumber : name == "id" ? Use::kId : Use::kText;
}

std::string TextOfDouble(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[32];
  const auto made =
      std::to_chars(buffer, buffer + sizeof(buffer) - 1, value, std::chars_format::scientific);
  *made.ptr = '\0';
  std::string_view text(buffer, static_cast<size_t>(made.ptr - buffer));
  const size_t e = text.find('e');
  int exponent = 0;
  const bool negative = text[e + 1] == '-';  // from_chars takes no plus
  std::from_chars(buffer + e + 2, made.ptr, exponent);
  if (negative) exponent = -exponent;
  std::string digits, out = value < 0 || std::signbit(value) ? "-" : "";
  for (const char c : text.substr(0, e)) {
    if (c >= '0' && c <= '9') digits.push_back(c);
  }
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (count > 1) out.append(1, '.').append(digits, 1, digits.npos);
    return out.append(text.substr(e));  // two digits of the exponent at least, as in Python
  }
  if (exponent < 0)
    return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  if (exponent >= count - 1) {
    return out + digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
  }
  const auto whole = static_cast<size_t>(exponent) + 1;
  return out + digits.substr(0, whole) + "." + digits.substr(whole);
}

std::string Quoted(std::string_view text, size_t most) {
  size_t end = 0;
  for (size_t points = 0; end < text.size() && points < most; ++points) {
    ++end;
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) ++end;
  }
  text = text.substr(0, end);
  const bool single = text.find('\'') != text.npos && text.find('"') == text.npos;
  const char quote = single ? '"' : '\'';
  std::string out(1, quote);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    char escaped[8];
    if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      (void)std::snprintf(escaped, sizeof(escaped), "\\x%02x", static_cast<unsigned>(byte));
      out += escaped;
    } else {
      if (c == quote || c == '\\') out.push_back('\\');
      out.push_back(c);
    }
  }
  return out + quote;
}

Result<Fields> Fields::Of(const Json& plan) {
  Fields fields;
  JsonReader reader("the plan of fields");
  const size_t columns = reader.Texts(plan, "columns").size();
  const auto most = static_cast<int64_t>(columns) - 1;
  for (const std::string& use : reader.Texts(plan, "uses")) { fields.uses_.push_back(UseOf(use)); }
  fields.lists_.assign(columns, 0);
  for (const Json& place : reader.List(plan, "lists")) {
    const int64_t at = reader.AsInteger(place, "lists", 0, most);
    if (at <= most && at >= 0) fields.lists_[static_cast<size_t>(at)] = 1;
  }
  const Json& places = reader.Object(plan, "places");
  fields.label_ = static_cast<size_t>(reader.Integer(plan, "label", 0, most));
  for (size_t i = 0; i < places.items.size(); ++i) {
    const int64_t place = reader.AsInteger(places.items[i], "places", 0, most);
    fields.places_[places.names[i]] = static_cast<int>(place);
    if (static_cast<size_t>(place) != fields.label_) fields.known_.push_back(places.names[i]);
  }
  for (const std::string& name : reader.Texts(plan, "ignored")) { fields.places_[name] = kIgnored; }
  fields.nulls_ = reader.Texts(plan, "nulls");
  fields.separator_ = reader.Text(plan, "list_separator");
  fields.columnar_ = reader.Bool(plan, "columnar");
  fields.tabs_ = reader.Bool(plan, "tabs");
  if (fields.uses_.size() != columns || columns == 0) reader.Fail("uses", "one for each column");
  if (fields.separator_.size() != 1) reader.Fail("list_separator", "one character");
  PBX_RETURN_IF_ERROR(reader.status());
  return fields;
}

int Fields::Place(std::string_view name) const {
  const auto found = places_.find(std::string(name));
  return found == places_.end() ? kUnknown : found->second;
}

std::string Fields::Known() const {
  std::string text;
  for (const std::string& name : known_) text += (text.empty() ? "" : ", ") + name;
  return text;
}

bool Fields::IsNull(std::string_view text) const {
  return std::find(nulls_.begin(), nulls_.end(), text) != nulls_.end();
}

Status Fields::Cell(size_t place, const FieldValue* values, size_t n, bool list,
                    std::string* cell) const {
  const Use use = uses_[place];
  cell->clear();
  bool first = true;
  for (size_t i = 0; i < n; ++i) {
    // A missing id of a list is no feasign; a dense slot has no missing values in a list.
    if (list && use != Use::kNumber && values[i].kind == FieldValue::Kind::kMissing) continue;
    if (!first) cell->push_back(kValue);
    first = false;
    PBX_RETURN_IF_ERROR(AppendValue(values[i], use, cell));
  }
  if (!list && lists_[place] != 0 && n == 1 && values[0].kind == FieldValue::Kind::kText &&
      !IsNull(*cell)) {
    std::replace(cell->begin(), cell->end(), separator_[0], kValue);
  }
  if (tabs_ || cell->empty() || cell->front() != '"') return Status::Ok();
  std::string quoted(1, '"');
  for (const char c : *cell) quoted.append(c == '"' ? 2 : 1, c);
  *cell = quoted + '"';
  return Status::Ok();
}

Status Fields::AppendValue(const FieldValue& value, Use use, std::string* cell) const {
  if (value.kind == FieldValue::Kind::kReal && std::isnan(value.real) && IsNull("nan")) {
    cell->append("nan");
    return Status::Ok();
  }
  const size_t begin = cell->size();
  PBX_RETURN_IF_ERROR(AppendText(value, use, columnar_, cell));
  for (size_t i = begin; i < cell->size(); ++i) {
    const char c = (*cell)[i];
    if (static_cast<unsigned char>(c) > kCell) continue;
    if (c == kCell || c == kValue || c == '\n' || c == '\r' || c == '\0' || (tabs_ && c == '\t')) {
      const std::string text = Quoted(std::string_view(*cell).substr(begin), 40);
      return Error(Code::kInvalidArgument, "%s holds a line break or a control character",
                   text.c_str());
    }
  }
  return Status::Ok();
}

Status Fields::AppendText(const FieldValue& value, Use use, bool columnar, std::string* to) {
  switch (value.kind) {
    case FieldValue::Kind::kMissing: return Status::Ok();
    case FieldValue::Kind::kText:
    case FieldValue::Kind::kDigits:
      AppendId(value.text, use == Use::kId && columnar, to);
      return Status::Ok();
    case FieldValue::Kind::kReal: return AppendReal(value.real, use, to);
    case FieldValue::Kind::kBool: return AppendBool(value.truth, use, columnar, to);
  }
  return Status::Ok();
}

void Fields::AppendLine(const std::vector<std::string>& cells, std::string* text) const {
  if (!text->empty()) text->push_back('\n');
  for (size_t i = 0; i < cells.size(); ++i) {
    if (i != 0) text->push_back(tabs_ ? '\t' : kCell);
    if (i == label_) {
      text->push_back('0');
    } else {
      text->append(cells[i]);
    }
  }
}

std::string Fields::Reworded(std::string reason) {
  // The parser prints the separators as \\x1f and \\x1e.
  for (size_t at = 0; (at = reason.find("\\x1", at)) != reason.npos;) {
    const char which = at + 3 < reason.size() ? reason[at + 3] : '\0';
    const char* const instead = which == 'f' ? " " : ", ";
    if (which == 'f' || which == 'e') reason.replace(at, 4, instead);
    ++at;
  }
  return reason;
}

}  // namespace pbx
