// Expressions over the columns of CSV lines.
#include <memory>
#include <random>

#include "feed/feed_util.h"

using namespace pbx;
using namespace pbx::test;

namespace {

SlotSpec DenseExpr(const std::string& expr) {
  SlotSpec slot = Dense("x", 1);
  slot.expr = expr;
  slot.transform.has_default = true;
  slot.transform.default_value = -99;
  return slot;
}

SlotSpec SparseExpr(const std::string& expr, bool hash = true) {
  SlotSpec slot = Sparse("x");
  slot.expr = expr;
  slot.transform.hash = hash;
  return slot;
}

const expr::Zones kZones = {{"Test/Summer", {{0, 1000000, 2000000}, {3600, 7200, 3600}}}};

FeedSchema SchemaOf(SlotSpec slot) {
  FeedSchema schema = Schema(Format::kCsv, {Label("click"), std::move(slot)});
  schema.csv_columns = {"click", "a", "b", "s", "t", "l", "m"};
  CHECK_OK(schema.Compile(kZones));
  return schema;
}

constexpr char kLine[] = "1,2.5,-4,Ab c,2024-02-29 23:30:00,7|8|9|8,k1:0.5|k2:7|k2:8\n";
constexpr char kEmpty[] = "0,,,,,,\n";

// The value of a dense slot; -99 for null.
float Value(const std::string& expr, const std::string& line = kLine) {
  const ParsedChunk chunk = Parse(SchemaOf(DenseExpr(expr)), line);
  CHECK_EQ(chunk.instances, 1u);
  return chunk.dense.empty() ? -1e9f : chunk.dense[0];
}

std::string Ids(const std::string& expr, bool hash = false, const std::string& line = kLine) {
  return Text(Parse(SchemaOf(SparseExpr(expr, hash)), line).feasigns);
}

std::string Hashed(const std::vector<std::string>& texts) {
  std::vector<uint64_t> ids;
  for (const std::string& text : texts) ids.push_back(FeasignOfString(text.data(), text.size()));
  return Text(ids);
}

std::string ErrorOf(SlotSpec slot) {
  FeedSchema schema = Schema(Format::kCsv, {Label("click"), std::move(slot)});
  const Status status = schema.Compile(kZones);
  CHECK_CODE(status, Code::kInvalidArgument);
  return status.message();
}

void CheckError(const std::string& expr, const std::string& part, bool dense = true) {
  const std::string message = ErrorOf(dense ? DenseExpr(expr) : SparseExpr(expr, false));
  if (message.find(part) == std::string::npos) {
    Fail(__FILE__, __LINE__, expr + ": " + message + "; expected: " + part);
  }
}

constexpr float kNull = -99;

}  // namespace

TEST(arithmetic_is_float64_and_what_is_not_finite_is_null) {
  CHECK_EQ(Value("a + b * 2 - 1"), -6.5f);
  CHECK_EQ(Value("-(a - b) / 2"), -3.25f);
  CHECK_EQ(Value("a - b - 1"), 5.5f);
  CHECK_EQ(Value("8 / 2 / 2"), 2.0f);
  CHECK_EQ(Value("a / (b + 4)"), kNull);
  CHECK_EQ(Value("a * 1e308 * 10"), kNull);
  CHECK_EQ(Value("log1p(b)"), kNull);
  CHECK_EQ(Value("sqrt(b)"), kNull);
  CHECK_EQ(Value("sqrt(abs(b))"), 2.0f);
  CHECK_EQ(Value("a + 1", kEmpty), kNull);
  CHECK_EQ(Value("log1p(0)"), 0.0f);
}

TEST(numbers_are_compared_limited_and_rounded) {
  CHECK_EQ(Value("min(a, b, 1)"), -4.0f);
  CHECK_EQ(Value("max(a, b, 1)"), 2.5f);
  CHECK_EQ(Value("min(a, null)"), kNull);
  CHECK_EQ(Value("clip(a, 0, 2)"), 2.0f);
  CHECK_EQ(Value("clip(b, 0, 2)"), 0.0f);
  CHECK_EQ(Value("clip(a, 3, 2)"), kNull);
  CHECK_EQ(Value("floor(b / 3)"), -2.0f);
  CHECK_EQ(Value("round(a)"), 2.0f);
  CHECK_EQ(Value("floor(a * 1e30)"), kNull);
  CHECK_EQ(Value("a >= 2.5"), 1.0f);
  CHECK_EQ(Value("a != 2.5"), 0.0f);
  CHECK_EQ(Value("int(b) == -4"), 1.0f);
}

TEST(logic_has_three_values) {
  const std::string null = "a > 1";  // on the empty line
  CHECK_EQ(Value(null, kEmpty), kNull);
  CHECK_EQ(Value(null + " and false", kEmpty), 0.0f);
  CHECK_EQ(Value(null + " and true", kEmpty), kNull);
  CHECK_EQ(Value(null + " or true", kEmpty), 1.0f);
  CHECK_EQ(Value(null + " or false", kEmpty), kNull);
  CHECK_EQ(Value("not " + null, kEmpty), kNull);
  CHECK_EQ(Value("if(a > 1, 3, 4)", kEmpty), kNull);
  CHECK_EQ(Value("if(missing(a), 3, 4)", kEmpty), 3.0f);
  CHECK_EQ(Value("if(a > 1 and not b > 0 or false, 3, null)"), 3.0f);
  CHECK_EQ(Value("coalesce(a, b, 7)", kEmpty), 7.0f);
  CHECK_EQ(Value("coalesce(null, b, 7)"), -4.0f);
}

TEST(texts_are_never_empty) {
  CHECK_EQ(Ids("lower(s)", true), Hashed({"ab c"}));
  CHECK_EQ(Ids("upper(s)", true), Hashed({"AB C"}));
  CHECK_EQ(Ids("concat(trim(' x '), '_', s)", true), Hashed({"x_Ab c"}));
  CHECK_EQ(Ids("concat(s, int(b))", true), Hashed({"Ab c-4"}));
  CHECK_EQ(Ids("concat('a', s)", true, kEmpty), "");
  CHECK_EQ(Ids("prefix(s, 2)", true), Hashed({"Ab"}));
  CHECK_EQ(Ids("prefix('\xc3\xa4\xc3\xb6x', 2)", true), Hashed({"\xc3\xa4\xc3\xb6"}));
  CHECK_EQ(Ids("prefix(s, 0)", true), "");
  CHECK_EQ(Ids("split(s, ' ')", true), Hashed({"Ab", "c"}));
  CHECK_EQ(Ids("split('a,,b,', ',')", true), Hashed({"a", "b"}));
  CHECK_EQ(Ids("if(s == 'Ab c', 'it''s', s)", true), Hashed({"it's"}));
  CHECK_EQ(Value("number('12.5') + number('x1')"), kNull);
  CHECK_EQ(Value("number(text(a)) * 2"), 5.0f);
  CHECK_EQ(Value("missing(trim(' '))"), 1.0f);
}

TEST(lists_are_never_null) {
  CHECK_EQ(Ids("list(l)"), "7 8 9 8");
  CHECK_EQ(Ids("first(l, 2)"), "7 8");
  CHECK_EQ(Ids("last(l, 3)", true), Hashed({"8", "9", "8"}));
  CHECK_EQ(Ids("last(l, 9)"), "7 8 9 8");
  CHECK_EQ(Ids("intersection(l, split('8,7', ','))", true), Hashed({"7", "8"}));
  CHECK_EQ(Value("common(l, l)"), 3.0f);
  CHECK_EQ(Value("length(l)"), 4.0f);
  CHECK_EQ(Value("length(l)", kEmpty), 0.0f);
  CHECK_EQ(Value("contains(l, 9)"), 1.0f);
  CHECK_EQ(Value("contains(l, '19')"), 0.0f);
  CHECK_EQ(Value("contains(l, a)", kEmpty), kNull);
  CHECK_EQ(Ids("if(a > 9, list(l), first(l, 1))"), "7");
  CHECK_EQ(Value("number(match(m, 'k2'))"), 7.0f);
  CHECK_EQ(Value("number(match(m, 'k'))"), kNull);
  std::string many = "1,1,1,1,1,";
  for (int i = 1; i < 200; ++i) many += std::to_string(i % 50) + "|";
  CHECK_EQ(Value("common(l, l)", many + "60,\n"), 51.0f);
  CHECK_EQ(Ids("coalesce(list(m), first(l, 1))", true, "1,,,,,7|8,\n"), Hashed({"7"}));
}

TEST(integers_without_hash_are_ids_of_columns) {
  CHECK_EQ(Ids("int(b)", false, "1,,18446744073709551615,,,,\n"), "18446744073709551615");
  CHECK_EQ(Ids("if(a == 2.5, b, a)", false, "1,2,0,,,,\n"), "2");
  CHECK_EQ(Ids("floor(a)", true), Hashed({"2"}));
  CHECK_EQ(Ids("a > 1", true), Hashed({"true"}));
  CheckError("floor(a)", "may be 0", false);
  CheckError("if(a > 1, b, length(l))", "column 14 of expr", false);
  CheckError("lower(s)", "give the slot hash: true", false);
}

TEST(times_have_a_zone) {
  CHECK_EQ(Value("hour(t, 'UTC')"), 23.0f);
  CHECK_EQ(Value("day(t, '+08:00')"), 29.0f);  // without an offset: as it is written
  CHECK_EQ(Value("month(t, 'UTC')"), 2.0f);
  CHECK_EQ(Value("weekday(t, 'UTC')"), 3.0f);  // Thursday
  const auto line = [](const std::string& time) { return "1,2,3,s," + time + ",,\n"; };
  CHECK_EQ(Value("hour(t, '+08:00')", line("2024-02-29T23:30Z")), 7.0f);
  CHECK_EQ(Value("day(t, '+08:00')", line("2024-02-29T23:30Z")), 1.0f);
  CHECK_EQ(Value("hour(t, '-0330')", line("2024-02-29 23:30:59.123456789+01")), 19.0f);
  CHECK_EQ(Value("hour(t, 'Test/Summer')", line("1970-01-12 13:46:39Z")), 14.0f);
  CHECK_EQ(Value("hour(t, 'Test/Summer')", line("1970-01-12 13:46:40Z")), 15.0f);
  CHECK_EQ(Value("hour(t, 'Test/Summer')", line("1950-01-12 13:46:40Z")), 14.0f);
  CHECK_EQ(Value("days_between(t, '2024-03-01', 'UTC')"), 1.0f);
  CHECK_EQ(Value("days_between('2100-02-28', '2100-03-01', 'UTC')"), 1.0f);
  CHECK_EQ(Value("days_between('0001-01-01', '9999-12-31', 'UTC')"), 3652058.0f);
  CHECK_EQ(Value("hour(from_unix(-1), 'UTC')"), 23.0f);
  CHECK_EQ(Value("weekday(from_unix(1e30), 'UTC')"), kNull);
  CHECK_EQ(Value("hour(coalesce(t, from_unix(b)), '+01:00')", "1,2,3600,s,,,\n"), 2.0f);
  for (const char* wrong : {"2023-02-29", "2024-13-01", "2024-01-01 24:00", "2024-01-01 1:00",
                            "2024-01-01T00:00:00.", "2024-01-01 00:00+", "0000-01-01", "x"}) {
    const ParsedChunk chunk = Parse(SchemaOf(DenseExpr("hour(t, 'UTC')")), line(wrong));
    CHECK_EQ(chunk.bad_lines, 1u);
  }
}

TEST(a_mistake_has_a_place) {
  CheckError("a + ", "column 5 of expr: a + : expected a value, found the end");
  CheckError("a +* b", "column 4 of expr: a +* b: expected a value, found '*'");
  CheckError("\xc3\xa4 + )", "column 5 of expr");
  CheckError("(a", "expected ')', found the end");
  CheckError("a = 1", "equality is written ==");
  CheckError("a < b < 1", "expected 'and' or 'or' between two comparisons");
  CheckError("'abc", "a quote that is not closed");
  CheckError("a # b", "no part of the language");
  CheckError("12x", "a malformed number");
  CheckError("1e999", "a number out of range");
  CheckError("lowr(s)", "expected a function, found 'lowr': there are if, coalesce");
  CheckError("1 + lower(s)", "column 5 of expr: 1 + lower(s): expected a number, found a text");
  CheckError("abs(a, b)", "abs: expected 1 arguments, found 2");
  CheckError("min(a)", "min: expected 2 or more arguments, found 1");
  CheckError("a == b", "write number(a)");
  CheckError("s == 'x' and s", "expected a truth value, found the column 's'");
  CheckError("if(a > 1, 1, 'x')", "column 14 of expr");
  CheckError("first(l, a)", "first: expected an integer of 0 or more");
  CheckError("hour(t)", "expected 2 arguments");
  CheckError("hour(t, 'Mars/Base')", "found 'Mars/Base'");
  CheckError("hour('noon', 'UTC')", "expected a time, found the text 'noon'");
  CheckError("from_unix(a)", "use hour, weekday");
  CheckError("s == ''", "use missing(x)");
  CheckError("int(a / 2) > 1", "use floor(x) or round(x)");
  CheckError("length(a + 1)", "expected a list of texts, found a number");
  CheckError("a == 9007199254740993", "beyond 2^53");
  CheckError(std::string(300, '(') + "a", "expected at most 200 levels");
  CheckError(std::string(300, '-') + "a", "expected at most 200 levels");
  std::string chain = "a";
  for (int i = 0; i < 300; ++i) chain += "+a";
  CheckError(chain, "expected at most 200 levels");
  CheckError(std::string(10001, 'a'), "expected at most 10000");
  SlotSpec weighted = SparseExpr("s");
  weighted.weighted = true;
  FeedSchema schema = Schema(Format::kCsv, {Label("click"), weighted});
  CHECK_OK(schema.Compile({}));
  CHECK(!schema.Check().ok());
  schema = Schema(Format::kMultiSlot, {Label("click"), SparseExpr("s")});
  CHECK(schema.Check().message().find("expected the format csv") != std::string::npos);
}

TEST(malformed_cells_make_their_line_malformed) {
  FeedSchema schema = SchemaOf(DenseExpr("a * 2 + length(l)"));
  schema.slots[1].transform.has_default = false;
  CheckHostile(schema,
               {{"no number", "1,x,,,,,\n", 0, 1, "column 'a' of an expr: 'x' is not a finite"},
                {"infinite", "1,inf,,,,,\n", 0, 1, "'inf' is not a finite number"},
                {"null", "1,,,,,,\n", 0, 1, "slot 'x': expr is null and the slot has no default"},
                {"too large", "1,1e200,,,,,\n", 0, 1, "expected a finite float"},
                {"cells", "1,1\n", 0, 1, "2 cells, expected 7"},
                {"quote", "1,\"1,,,,,\n", 0, 1, "is not closed"},
                {"good", "1,\"1\",,\"\"\"\",,1|2,\n", 1, 0, ""}});
}

TEST(blocks_of_lines_do_not_matter) {
  std::string text;
  std::mt19937 random(7);
  std::string one_by_one;
  for (int i = 0; i < 3000; ++i) {
    if (i % 97 == 0) text += "\r\n";
    if (i % 89 == 0) text += "\xef\xbb\xbf";
    if (i % 83 == 0) text += "broken,line\n";
    const std::string a = random() % 5 == 0 ? "" : std::to_string(random() % 100);
    text += "1," + a + ",2,\"q\"\"" + std::to_string(i) + "\",," + std::to_string(i % 7) + "|3,\n";
  }
  FeedSchema schema = SchemaOf(DenseExpr("coalesce(a, b) + common(l, l)"));
  SlotSpec more = SparseExpr("concat(s, '-', coalesce(int(a), int(b)))");
  more.name = "y";
  more.transform.max_length = 3;
  schema.slots.push_back(more);
  CHECK_OK(schema.Compile(kZones));
  const ParsedChunk whole = Parse(schema, text);
  CHECK_EQ(whole.instances, 3000u);
  CHECK_EQ(whole.bad_lines, 37u);
  ParsedChunk joined;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin) + 1;
    const ParsedChunk part = ParseBlock(schema, text.substr(begin, end - begin));
    joined.dense.insert(joined.dense.end(), part.dense.begin(), part.dense.end());
    joined.AddFeasigns(part, 0, part.feasigns.size());
    begin = end;
  }
  CHECK(SameBytes(whole.dense, joined.dense));
  CHECK(SameBytes(whole.feasigns, joined.feasigns));
}

// Rows with few texts, whose values are computed once for each text, and rows with many.
TEST(a_block_of_rows_has_the_values_of_its_rows) {
  FeedSchema schema = SchemaOf(DenseExpr("length(split(s, '-')) + number(prefix(s, 1))"));
  for (const char* expr :
       {"lower(s)", "concat(s, '.', t, '!')", "if(s == 'A-1', t, s)", "split(s, '-')",
        "if(a > 2, upper(s), t)", "concat(upper('x'), prefix(t, 3))", "coalesce(s, t, m)",
        "intersection(l, split(s, '-'))", "missing(s)", "concat(s, t, m)", "'const'"}) {
    schema.slots.push_back(SparseExpr(expr));
    schema.slots.back().name = expr;
  }
  CHECK_OK(schema.Compile(kZones));
  const std::string same = "0123456789-abcdefghij";  // texts that differ in the middle only
  std::mt19937 random(11);
  for (const unsigned texts : {1u, 5u, 20u, 5000u}) {
    std::string text;
    for (int row = 0; row < 2500; ++row) {
      const auto one = random() % texts, other = random() % 3;
      const std::string s = one % 5 == 0   ? ""
                            : one % 5 == 1 ? "A-" + std::to_string(one)
                                           : same + std::to_string(1000 + one) + same;
      text += "1," + std::to_string(row % 5) + ",," + s + "," + (other == 0 ? "" : "t-") +
              std::to_string(other) + ",A|7," + std::to_string(one % 3) + "\n";
    }
    const ParsedChunk whole = Parse(schema, text);
    CHECK_EQ(whole.instances, 2500u);
    ParsedChunk joined;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = text.find('\n', begin) + 1;
      const ParsedChunk part = ParseBlock(schema, text.substr(begin, end - begin));
      joined.dense.insert(joined.dense.end(), part.dense.begin(), part.dense.end());
      joined.lengths.insert(joined.lengths.end(), part.lengths.begin(), part.lengths.end());
      joined.AddFeasigns(part, 0, part.feasigns.size());
      begin = end;
    }
    CHECK(SameBytes(whole.dense, joined.dense));
    CHECK(SameBytes(whole.lengths, joined.lengths));
    CHECK(SameBytes(whole.feasigns, joined.feasigns));
  }
}

TEST(a_lookup_is_the_value_of_a_key_in_a_table) {
  const expr::Tables tables = {{"region", std::make_shared<const expr::Table>(expr::Table{
                                              {"Ab c", "EU"}, {"7", "12"}, {"none", ""}})}};
  const auto value = [&](SlotSpec slot, const std::string& line) {
    FeedSchema schema = Schema(Format::kCsv, {Label("click"), std::move(slot)});
    schema.csv_columns = {"click", "a", "s"};
    CHECK_OK(schema.Compile({}, tables));
    return Parse(schema, line);
  };
  CHECK_EQ(Text(value(SparseExpr("lookup('region', s)"), "1,2,Ab c\n").feasigns), Hashed({"EU"}));
  CHECK_EQ(value(SparseExpr("lookup('region', s)"), "1,2,other\n0,,\n1,2,none\n").feasigns.size(),
           0u);
  CHECK_EQ(value(DenseExpr("number(lookup('region', int(a))) / 2"), "1,7,\n").dense[0], 6.0f);
  CheckError("lookup('city', s)", "expected a table of slots.yaml, found 'city': there are none");
  CheckError("lookup(s, 'region')", "lookup: expected a text in quotes");
}

TEST(a_normalizer_has_its_constants) {
  const auto value = [](const char* expr, std::vector<double> constants, const std::string& line) {
    SlotSpec slot = DenseExpr(expr);
    slot.constants = std::move(constants);
    return Parse(SchemaOf(slot), line).dense[0];
  };
  CHECK_EQ(value("zscore(a * 2)", {3, 4}, kLine), 0.5f);
  CHECK_EQ(value("zscore(a)", {3, 4}, kEmpty), kNull);
  CHECK_EQ(value("minmax(a)", {2, 4}, kLine), 0.25f);
  CHECK_EQ(value("minmax(a)", {3, 4}, kLine), 0.0f);
  CHECK_EQ(value("minmax(a)", {0, 1}, kLine), 1.0f);
  const std::vector<double> pairs = {0, 0.125, 2, 0.5, 4, 0.75, 9, 1};
  CHECK_EQ(value("quantile(a)", pairs, kLine), 0.5625f);
  CHECK_EQ(value("quantile(b)", pairs, kLine), 0.125f);
  CHECK_EQ(value("quantile(a * 2)", pairs, kLine), 0.8f);
  CHECK_EQ(value("quantile(a * 9)", pairs, kLine), 1.0f);
  CHECK_EQ(value("quantile(a + 1.5)", pairs, kLine), 0.75f);
  CHECK_EQ(value("quantile(a)", {7, 0.5}, kLine), 0.5f);
  CHECK_EQ(value("quantile(a)", pairs, kEmpty), kNull);
  const auto error = [](const char* expr, std::vector<double> constants, const char* part) {
    SlotSpec slot = DenseExpr(expr);
    slot.constants = std::move(constants);
    CHECK(ErrorOf(slot).find(part) != std::string::npos);
  };
  error("zscore(a)", {}, "zscore: it has no constants: a run takes them from its first rows");
  error("zscore(a)", {1, 0}, "expected constants [mean, deviation above 0]");
  error("minmax(a)", {1, 1}, "expected constants [low, high above low]");
  error("quantile(a)", {1, 0, 1, 1}, "both ascending");
  error("quantile(a)", {1, 0, 2}, "both ascending");
  error("1 + zscore(a)", {1, 1},
        "column 5 of expr: 1 + zscore(a): zscore: expected it as the whole");
  error("zscore(a, 1)", {1, 1}, "zscore: expected 1 arguments, found 2");
  CheckError("zscore(a)", "expected it as the whole expr of a dense slot", false);
}

TEST(any_text_is_compiled_or_refused) {
  const std::vector<std::string> pieces = {
      "a",       "s",       "l",      "(",         ")",     ",",     "+",     "-",
      "<",       "==",      "and ",   "not ",      "'x'",   "3",     "0.5",   "if(",
      "null",    "true",    "min(",   "`q`",       "hour(", "'UTC'", "list(", "first(",
      "concat(", "common(", "match(", "coalesce(", "int(",  "text(", "\xc3",  "\""};
  std::mt19937 random(5);
  size_t compiled = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (auto n = random() % 9; n > 0; --n) text += pieces[random() % pieces.size()] + " ";
    for (SlotSpec slot : {DenseExpr(text), SparseExpr(text), SparseExpr(text, false)}) {
      FeedSchema schema = Schema(Format::kCsv, {Label("click"), slot});
      if (text.empty() || !schema.Compile(kZones).ok()) continue;
      ++compiled;
      const std::string line = "1,3,x y,7|3,\"q\"\n";
      schema.csv_columns = {"click", "a", "s", "l", "q"};
      if (schema.Check().ok()) ParseBlock(schema, line);
    }
  }
  CHECK(compiled > 100);
}

TEST(equal_parts_are_computed_once) {
  FeedSchema schema = SchemaOf(DenseExpr("log1p(a) + 1"));
  const size_t before = schema.program->instructions.size();
  SlotSpec again = DenseExpr("log1p(a) + 1");
  again.name = "y";
  schema.slots.push_back(again);
  CHECK_OK(schema.Compile(kZones));
  CHECK_EQ(schema.program->instructions.size(), before);
  CHECK_EQ(Text(schema.ColumnNames()), "click a");
}
