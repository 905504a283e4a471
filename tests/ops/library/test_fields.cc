// Raw fields as text for the parsers.
#include <limits>
#include <string>
#include <vector>

#include "check.h"
#include "library/fields.h"

namespace pbx {
namespace {

using Kind = FieldValue::Kind;

Fields Made(bool columnar, bool tabs) {
  const std::string plan =
      R"({"columns": ["click", "age", "user", "city"], "uses": ["number", "number", "id", "text"],
      "lists": [2, 3], "places": {"click": 0, "age": 1, "user": 2, "town": 3}, "ignored": ["late"],
      "label": 0, "nulls": ["NULL", "nan"], "list_separator": "|", "columnar": )" +
      std::string(columnar ? "true" : "false") + R"(, "tabs": )" + (tabs ? "true" : "false") + "}";
  Result<Fields> fields = Fields::Of(Json::Parse(plan).value());
  CHECK_OK(fields.status());
  return std::move(fields.value());
}

FieldValue Text(const char* text) { return {Kind::kText, text}; }
FieldValue Digits(const char* text) { return {Kind::kDigits, text}; }
FieldValue Real(double value) { return {Kind::kReal, {}, value}; }
FieldValue Bool(bool value) { return {Kind::kBool, {}, 0, value}; }

// The cell of a value or list, or the message.
std::string Cell(const Fields& fields, size_t place, std::vector<FieldValue> values,
                 bool list = false) {
  std::string cell;
  const Status status = fields.Cell(place, values.data(), values.size(), list, &cell);
  return status.ok() ? cell : "error: " + status.message();
}

TEST(a_double_has_the_text_of_python) {
  CHECK_EQ(TextOfDouble(0.1), "0.1");
  CHECK_EQ(TextOfDouble(1), "1.0");
  CHECK_EQ(TextOfDouble(-0.0), "-0.0");
  CHECK_EQ(TextOfDouble(123456.75), "123456.75");
  CHECK_EQ(TextOfDouble(0.0001), "0.0001");
  CHECK_EQ(TextOfDouble(0.00001), "1e-05");
  CHECK_EQ(TextOfDouble(1e15), "1000000000000000.0");
  CHECK_EQ(TextOfDouble(1e16), "1e+16");
  CHECK_EQ(TextOfDouble(1.5e-300), "1.5e-300");
  CHECK_EQ(TextOfDouble(std::numeric_limits<double>::infinity()), "inf");
  CHECK_EQ(TextOfDouble(std::numeric_limits<double>::quiet_NaN()), "nan");
}

TEST(a_text_is_split_and_quoted_as_in_the_data) {
  const Fields fields = Made(false, false);
  CHECK_EQ(Cell(fields, 3, {Text("a|b")}),
           "a\x1e"
           "b");
  CHECK_EQ(Cell(fields, 3, {Text("a|b"), Text("c")}, true),
           "a|b\x1e"
           "c");
  CHECK_EQ(Cell(fields, 3, {Text("\"a\" b")}), "\"\"\"a\"\" b\"");
  CHECK_EQ(Cell(fields, 3, {Text("NULL")}), "NULL");
  CHECK_EQ(Cell(fields, 2, {Digits("7"), FieldValue(), Digits("8")}, true),
           "7\x1e"
           "8");
  CHECK_EQ(Cell(fields, 1, {Real(1), FieldValue()}, true), "1.0\x1e");
  CHECK_EQ(Cell(fields, 1, {Real(std::numeric_limits<double>::quiet_NaN())}), "nan");
  CHECK_EQ(Cell(fields, 1, {Bool(true)}), "1");
  CHECK_EQ(Cell(fields, 3, {Text("a\x1f")}),
           "error: 'a\\x1f' holds a line break or a control character");
  CHECK_EQ(Cell(Made(false, true), 3, {Text("a\tb")}),
           "error: 'a\\tb' holds a line break or a control character");
}

TEST(ids_and_texts_are_no_floats) {
  const Fields fields = Made(false, false);
  CHECK_EQ(Cell(fields, 2, {Real(18)}),
           "error: expected an integer, found the float 18.0: send 18");
  CHECK_EQ(Cell(fields, 3, {Real(2.5)}), "2.5");
  CHECK_EQ(Cell(fields, 3, {Real(18)}),
           "error: a hashed slot takes the text of the data, and 18.0 is a float: send 18, or "
           "'18.0' if the data has this text");
  CHECK_EQ(Cell(fields, 2, {Bool(true)}), "error: expected an id, found True: send the integer 1");
  CHECK_EQ(Cell(fields, 2, {Digits("-1")}), "-1");  // an error of the parser
}

TEST(columns_of_arrow_have_negative_ids_and_bools) {
  const Fields fields = Made(true, false);
  CHECK_EQ(Cell(fields, 2, {Digits("-1")}), "18446744073709551615");
  CHECK_EQ(Cell(fields, 2, {Text("-2:0.5")}), "18446744073709551614:0.5");
  CHECK_EQ(Cell(fields, 2, {Text("-9223372036854775809")}), "-9223372036854775809");
  CHECK_EQ(Cell(fields, 3, {Digits("-1")}), "-1");
  CHECK_EQ(Cell(fields, 3, {Bool(false)}), "false");
}

TEST(a_line_has_a_cell_for_each_column) {
  const Fields fields = Made(false, false);
  CHECK_EQ(fields.Place("town"), 3);
  CHECK_EQ(fields.Place("late"), Fields::kIgnored);
  CHECK_EQ(fields.Place("city"), Fields::kUnknown);
  CHECK_EQ(fields.Known(), "age, user, town");
  std::string text;
  fields.AppendLine({"", "a", "", "b"}, &text);
  fields.AppendLine({"x", "", "", ""}, &text);
  CHECK_EQ(text,
           "0\x1f"
           "a\x1f\x1f"
           "b\n0\x1f\x1f\x1f");
  CHECK_EQ(Fields::Reworded("'a\\x1fb\\x1ec\\x1d'"), "'a b, c\\x1d'");
}

TEST(a_plan_that_contradicts_itself_is_an_error) {
  for (const char* plan : {"{}", R"({"columns": ["a"], "uses": [], "lists": [], "places": {"a": 0},
      "ignored": [], "label": 0, "nulls": [], "list_separator": "|", "columnar": false,
      "tabs": false})",
                           R"({"columns": ["a"], "uses": ["id"], "lists": [1], "places": {"a": 0},
      "ignored": [], "label": 0, "nulls": [], "list_separator": "|", "columnar": false,
      "tabs": false})"}) {
    CHECK_CODE(Fields::Of(Json::Parse(plan).value()).status(), Code::kInvalidArgument);
  }
}

// The error of a field, or "".
std::string Taken(Stamps* stamps, const char* name, const FieldValue& value, bool list = false) {
  return stamps->Take(name, &value, 1, list).message();
}

TEST(an_event_has_a_time_and_a_label_and_a_candidate_a_time) {
  const UserForm form = {4, 9, "ts", {"click", "clicked"}};
  Stamps events(form, true), candidates(form, false);
  CHECK(events.Reads("ts") && events.Reads("click") && events.Reads("clicked"));
  CHECK(candidates.Reads("ts") && !candidates.Reads("click"));
  CHECK_EQ(Taken(&events, "ts", Digits("9223372036854775807")), "");
  CHECK_EQ(Taken(&events, "clicked", Text("0.5")), "");
  CHECK_OK(events.End());
  CHECK_EQ(Taken(&events, "ts", Text("3")), "");
  CHECK_EQ(Taken(&events, "click", Bool(true)), "");
  CHECK_OK(events.End());
  CHECK((events.times() == std::vector<int64_t>{INT64_MAX, 3}));
  CHECK((events.labels() == std::vector<float>{0.5f, 1}));
  CHECK_EQ(Taken(&candidates, "ts", Digits("7")), "");
  CHECK_OK(candidates.End());
  CHECK_EQ(candidates.End().message(),
           "field 'ts': expected a time, an integer from 0 to 2^63 - 1, found nothing");
  CHECK_EQ(Taken(&events, "ts", Digits("7")), "");
  CHECK_EQ(events.End().message(),
           "field 'click': expected the label of the event, a number, found nothing");
}

TEST(what_is_no_time_or_label_is_shown) {
  const UserForm form = {4, 9, "ts", {"click"}};
  Stamps events(form, true);
  const std::string time = "expected a time, an integer from 0 to 2^63 - 1, found ";
  CHECK_EQ(Taken(&events, "ts", Digits("-1")), time + "-1");
  CHECK_EQ(Taken(&events, "ts", Digits("9223372036854775808")), time + "9223372036854775808");
  CHECK_EQ(Taken(&events, "ts", Text("1 ")), time + "'1 '");
  CHECK_EQ(Taken(&events, "ts", Real(3)), time + "3.0");
  CHECK_EQ(Taken(&events, "ts", Bool(true)), time + "True");
  CHECK_EQ(Taken(&events, "ts", Digits("1"), true), time + "a list");
  CHECK_EQ(Taken(&events, "ts", FieldValue()), time + "nothing");
  const std::string label = "expected the label of the event, a number, found ";
  CHECK_EQ(Taken(&events, "click", Text("yes")), label + "'yes'");
  CHECK_EQ(Taken(&events, "click", Text("nan")), label + "'nan'");
  CHECK_EQ(Taken(&events, "click", Real(1e39)), label + "1e+39");
  const std::string huge = "1" + std::string(400, '0');
  CHECK_EQ(Taken(&events, "click", Digits(huge.c_str())), label + huge.substr(0, 40));
  CHECK_EQ(Taken(&events, "click", FieldValue()), label + "nothing");
}

}  // namespace
}  // namespace pbx
