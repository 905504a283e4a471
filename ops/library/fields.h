// Fields: writes the raw fields of an instance as the line of text that the parsers of training
// read. Python's Predictor and the serving library write their requests with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace pbx {

// A value of a field. kDigits: an integer as text.
struct FieldValue {
  enum class Kind : uint8_t { kMissing, kText, kDigits, kReal, kBool };
  Kind kind = Kind::kMissing;
  std::string_view text = {};  // kText, kDigits
  double real = 0;             // kReal
  bool truth = false;          // kBool
};

class Fields {
 public:
  static constexpr char kCell = '\x1f', kValue = '\x1e';  // separators of cells and of values
  static constexpr int kUnknown = -1, kIgnored = -2;

  // plan: an object with
  //   columns   the names of the cells of a line, in order
  //   uses      what slots read in each: "number", "id" or "text"
  //   lists     those whose texts are split at list_separator, by place
  //   places    name of a column or slot -> place
  //   ignored   names of fields that are left out
  //   label     the place of the label, which is 0
  //   columnar  whether the data are columns of Arrow: there a negative integer i is the id
  //             2^64 + i, and a bool has the text true or false
  //   nulls     texts of empty cells
  //   tabs      whether cells are separated by tabs and never quoted: criteo_tsv
  static Result<Fields> Of(const Json& plan);

  // What slots read in a field.
  enum class Use : uint8_t {
    kNumber,  // floats
    kId,      // a feasign
    kText,    // a text that is hashed
  };
  // "number" or "id"; kText for another name.
  static Use UseOf(std::string_view name);

  // Appends the text from which the parsers read the same feasign or number as from a value of the
  // training data. InvalidArgument for a float or a bool that is no id.
  static Status AppendText(const FieldValue& value, Use use, bool columnar, std::string* to);

  // The cell that a field fills; kUnknown, or kIgnored.
  int Place(std::string_view name) const;
  // A name for an error about an unknown field: "age, user, city".
  std::string Known() const;

  // Sets *cell to the text of the values of a field: one value, or a list. InvalidArgument says
  // what is wrong with a value.
  Status Cell(size_t place, const FieldValue* values, size_t n, bool list, std::string* cell) const;

  // Adds a line to *text, with a line break before it unless it is the first. cells: one text for
  // each column; that of the label is not used.
  void AppendLine(const std::vector<std::string>& cells, std::string* text) const;

  // A parser's reason without the separators of the line, which the sender of a request did not
  // write.
  static std::string Reworded(std::string reason);

  size_t columns() const { return uses_.size(); }
  size_t label() const { return label_; }  // its place

 private:
  Status AppendValue(const FieldValue& value, Use use, std::string* cell) const;
  bool IsNull(std::string_view text) const;

  std::vector<Use> uses_;
  std::vector<uint8_t> lists_;  // by place
  std::vector<std::string> known_;
  std::unordered_map<std::string, int> places_;
  std::vector<std::string> nulls_;
  std::string separator_;
  size_t label_ = 0;
  bool columnar_ = false, tabs_ = false;
};

// What a feed says about a model that reads the histories of users (library/users.h).
struct UserForm {
  size_t known_width = 0;           // K: floats of the keys and values of an event
  uint64_t most = 0;                // events that a candidate sees
  std::string time;                 // the field of the time
  std::vector<std::string> labels;  // the fields of the label, which are its column and its slot
};

// The times of events and candidates, and the labels of events. A request has them as fields beside
// those that slots read.
class Stamps {
 public:
  // labels: whether the instances are events. form must outlive this object.
  Stamps(const UserForm& form, bool labels) : form_(&form), has_labels_(labels) {}

  bool Reads(std::string_view name) const;
  // Sets a field of the instance. REQUIRES: Reads(name). InvalidArgument if it is no time or label.
  Status Take(std::string_view name, const FieldValue* values, size_t n, bool list);
  // Ends an instance. InvalidArgument names the field that it lacks.
  Status End();

  const std::vector<int64_t>& times() const { return times_; }
  const std::vector<float>& labels() const { return labels_; }  // of events only

 private:
  Status Expected(std::string_view name, const std::string& found) const;

  const UserForm* form_;
  bool has_labels_;
  std::vector<int64_t> times_;
  std::vector<float> labels_;
  std::optional<int64_t> time_;  // of the instance
  std::optional<float> label_;
};

// The shortest text that reads as the same double, as Python's repr writes it.
std::string TextOfDouble(double value);

// A text for messages, as Python's repr writes it, of at most `most` characters.
std::string Quoted(std::string_view text, size_t most);

}  // namespace pbx
