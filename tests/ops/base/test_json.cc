// JSON as Python writes it.
#include <cmath>
#include <string>

#include "base/json.h"
#include "check.h"

namespace pbx {
namespace {

Json Parsed(const std::string& text) {
  Result<Json> parsed = Json::Parse(text);
  CHECK_OK(parsed.status());
  return parsed.value();
}

TEST(values_of_each_kind_are_read) {
  const Json object = Parsed(
      R"( {"text": "a\u00e9\ud83d\ude00\n\"", "list": [1, -2.5e3, null, true], "empty": {},
      "large": 18446744073709551615, "inf": -Infinity, "text": "last"} )");
  JsonReader reader("object");
  CHECK_EQ(reader.Text(object, "text"), "last");
  CHECK_EQ(object.items[0].text, "a\u00e9\U0001F600\n\"");
  const std::vector<Json>& list = reader.List(object, "list");
  CHECK_EQ(list.size(), 4u);
  CHECK_EQ(reader.AsInteger(list[0], "list", 0, 9), 1);
  CHECK_EQ(reader.AsNumber(list[1], "list"), -2500.0);
  CHECK(list[2].kind == Json::Kind::kNull);
  CHECK(list[3].kind == Json::Kind::kTrue);
  CHECK_EQ(reader.Unsigned(object, "large"), UINT64_MAX);
  CHECK(reader.AsExact(*object.Find("large"), "large") == 18446744073709551615.0L);
  CHECK(std::isinf(reader.Number(object, "inf")));
  CHECK(reader.Object(object, "empty").items.empty());
  CHECK(object.Find("none") == nullptr);
  CHECK_OK(reader.status());
}

TEST(what_is_not_json_is_an_error) {
  for (const char* text :
       {"", "{", "[1,]", "[1 2]", "{\"a\" 1}", "{a: 1}", "\"\\x\"", "\"\\ud800\"", "\"a", "nul",
        "1 2", "+1", "\"\n\"", "{\"a\": 1,}", "[", "-", "\"\\u12\""}) {
    CHECK_CODE(Json::Parse(text).status(), Code::kInvalidArgument);
  }
  CHECK_CODE(Json::Parse(std::string(100000, '[')).status(), Code::kInvalidArgument);
}

TEST(the_first_member_of_another_kind_is_named) {
  const Json object = Parsed(R"({"a": 1.5, "b": "x", "c": 300, "d": ["x", 1]})");
  JsonReader reader("it");
  CHECK_EQ(reader.Integer(object, "c", 0, 255), 0);
  CHECK_EQ(reader.Integer(object, "a", 0, 255), 0);
  CHECK_EQ(reader.status().message(), "it: c: expected an integer in the range of the field");
  JsonReader texts("it");
  (void)texts.Texts(object, "d");
  CHECK_EQ(texts.status().message(), "it: d: expected a list of texts");
  JsonReader missing("it");
  CHECK_EQ(missing.Text(object, "e"), "");
  CHECK_EQ(missing.status().message(), "it: e: expected a text");
}

}  // namespace
}  // namespace pbx
