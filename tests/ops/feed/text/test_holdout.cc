#include "feed/text/holdout.h"

#include <cstring>
#include <memory>

#include "base/hash.h"
#include "check.h"

using namespace pbx;

namespace {

Holdout Of(const HoldoutRule& rule) {
  Result<Holdout> made = Holdout::From(rule);
  CHECK_OK(made.status());
  return made.value();
}

HoldoutRule Share(double share, bool of_values = false, uint64_t seed = 1) {
  HoldoutRule rule;
  rule.share = share;
  rule.of_values = of_values;
  rule.seed = seed;
  return rule;
}

HoldoutRule AtLeast(const std::string& value) {
  HoldoutRule rule;
  rule.at_least = value;
  return rule;
}

HoldoutRule Equals(const std::string& value) {
  HoldoutRule rule;
  rule.equals = value;
  return rule;
}

struct Sides {
  std::string held, trained;
  uint64_t not_held = 0, not_trained = 0;
};

// Both sides of a chunk. The text lies in a block of exactly its size, so that the address
// sanitizer sees every byte beyond.
Sides Split(const Holdout& holdout, const FeedSchema& schema, HoldoutLines lines,
            const std::string& text, bool drop) {
  const std::unique_ptr<char[]> block(new char[text.size()]);
  std::memcpy(block.get(), text.data(), text.size());
  Sides sides;
  for (const bool held : {true, false}) {
    const Result<uint64_t> left_out = KeepLines(holdout, schema, lines, held, drop, block.get(),
                                                text.size(), held ? &sides.held : &sides.trained);
    CHECK_OK(left_out.status());
    (held ? sides.not_held : sides.not_trained) = left_out.value();
  }
  return sides;
}

FeedSchema Csv() {
  FeedSchema schema;
  schema.format = Format::kCsv;
  schema.csv_nulls = {"NULL"};
  return schema;
}

// The lines of a CSV in which the rule of column 1 holds a line out.
std::string HeldOf(const HoldoutRule& rule, const std::string& text) {
  HoldoutLines lines;
  lines.column = 1;
  lines.end = text.size();
  return Split(Of(rule), Csv(), lines, text, true).held;
}

std::string Numbered(size_t lines) {
  std::string text;
  for (size_t i = 0; i < lines; ++i) text += "line " + std::to_string(i) + "\n";
  return text;
}

}  // namespace

TEST(each_line_is_on_one_side_and_keeps_its_number) {
  const std::string text = Numbered(2000) + "\n\r\nlast";
  HoldoutLines lines;
  lines.file = "f";
  lines.end = text.size();
  const Sides sides = Split(Of(Share(0.25)), FeedSchema(), lines, text, false);
  CHECK_EQ(sides.not_held + sides.not_trained, 2001u);
  CHECK(sides.not_trained > 420 && sides.not_trained < 580);
  size_t at_held = 0, at_trained = 0, begin = 0;
  while (begin < text.size()) {
    const auto line_of = [](const std::string& from, size_t* at) {
      const size_t end = from.find('\n', *at);
      const std::string line = from.substr(*at, end - *at);
      *at = end == std::string::npos ? from.size() : end + 1;
      return line;
    };
    const std::string line = line_of(text, &begin), held = line_of(sides.held, &at_held),
                      trained = line_of(sides.trained, &at_trained);
    if (line.empty() || line == "\r") {
      CHECK_EQ(held, line);
      CHECK_EQ(trained, line);
    } else {
      CHECK((held == line) != (trained == line));
      CHECK((held + trained) == line);
    }
  }
  CHECK_EQ(at_held, sides.held.size());
  CHECK_EQ(at_trained, sides.trained.size());
}

TEST(the_side_of_a_line_depends_on_its_place_its_file_and_the_seed_alone) {
  const std::string text = Numbered(500);
  const auto held = [&](const char* file, uint64_t seed, size_t cut) {
    std::string all;
    for (const size_t begin : {size_t{0}, cut}) {
      const std::string chunk = begin == 0 ? text.substr(0, cut) : text.substr(cut);
      HoldoutLines lines;
      lines.file = file;
      lines.end = begin + chunk.size();
      all += Split(Of(Share(0.5, false, seed)), FeedSchema(), lines, chunk, true).held;
    }
    return all;
  };
  const std::string found = held("f", 1, text.find("line 250"));
  CHECK_EQ(held("f", 1, text.find("line 7\n")), found);
  CHECK(held("g", 1, text.find("line 250")) != found);
  CHECK(held("f", 2, text.find("line 250")) != found);
}

// The split of stored runs must not change.
TEST(golden_lines) {
  const std::string text = Numbered(20);
  HoldoutLines lines;
  lines.file = "clicks.csv";
  lines.end = text.size();
  CHECK_EQ(Split(Of(Share(0.2)), FeedSchema(), lines, text, true).held,
           "line 0\nline 6\nline 11\nline 14\nline 15\nline 17\n");
  CHECK_EQ(Split(Of(Share(0.2, true)), Csv(), lines, text, true).held, "line 14\nline 17\n");
}

TEST(equal_values_are_on_one_side_in_every_file) {
  std::string text;
  for (size_t i = 0; i < 3000; ++i) {
    text += std::to_string(i) + ",user " + std::to_string(i % 100) + ",x\n";
  }
  const std::string found = HeldOf(Share(0.3, true), text);
  std::vector<size_t> counts(100);
  size_t rows = 0;
  for (size_t at = 0; at < found.size(); at = found.find('\n', at) + 1, ++rows) {
    ++counts[std::stoul(found.substr(at)) % 100];
  }
  size_t users = 0;
  for (const size_t count : counts) {
    CHECK(count == 0 || count == 30);
    users += count == 30 ? 1 : 0;
  }
  CHECK(users > 15 && users < 45);
  HoldoutLines other;
  other.file = "other";
  other.column = 1;
  other.end = 12345678;
  CHECK_EQ(Split(Of(Share(0.3, true)), Csv(), other, text, true).held, found);
}

TEST(values_are_those_of_the_parser) {
  const std::string text =
      "0,b,x\n"
      "1,\"b\",x\r\n"
      "\"2,\"\"b\",b\n"
      "\xef\xbb\xbf"
      "3,b\n"
      "4,NULL\n"
      "5,b ,b\n"
      "6\n"
      "\"7,b\n"
      "8,\"b\"x\n"
      "9,\"a,\"\"b\"\n";
  CHECK_EQ(HeldOf(Equals("b"), text),
           "0,b,x\n1,\"b\",x\r\n\"2,\"\"b\",b\n\xef\xbb\xbf"
           "3,b\n");
  CHECK_EQ(HeldOf(Equals("a,\"b"), text), "9,\"a,\"\"b\"\n");
  CHECK_EQ(HeldOf(Equals("NULL"), text), "");
}

TEST(rows_without_a_value_are_dealt_by_their_places) {
  std::string text;
  for (size_t i = 0; i < 1000; ++i) text += "x,\n";
  const size_t found = HeldOf(Share(0.5, true), text).size() / 3;
  CHECK(found > 400 && found < 600);
  CHECK_EQ(HeldOf(AtLeast("0"), text), "");
  CHECK_EQ(HeldOf(AtLeast(" "), text), "");
}

TEST(numbers_are_compared_as_numbers_and_texts_as_texts) {
  CHECK_EQ(HeldOf(AtLeast("9.5"), "a,10\nb,9.4999\nc,9.50\nd,-10\ne,1e1\n"),
           "a,10\nc,9.50\ne,1e1\n");
  CHECK_EQ(HeldOf(AtLeast("9007199254740993"), "a,9007199254740992\nb,9007199254740993\n"),
           "b,9007199254740993\n");
  CHECK_EQ(HeldOf(AtLeast("2024-01-05"), "a,2024-01-04\nb,2024-01-05\nc,2024-01-05 10:00\n"),
           "b,2024-01-05\nc,2024-01-05 10:00\n");
  const std::string text = "a,10\nb,day\n";
  HoldoutLines lines;
  lines.column = 1;
  std::string out;
  CHECK_CODE(KeepLines(Of(AtLeast("5")), Csv(), lines, true, true, text.data(), text.size(), &out)
                 .status(),
             Code::kInvalidArgument);
}

TEST(a_rule_is_one_of_share_at_least_and_equals) {
  HoldoutRule both = Share(0.1);
  both.equals = "x";
  for (const HoldoutRule& rule : {HoldoutRule(), Share(1), Share(-0.1), Share(1.5), both}) {
    CHECK_CODE(Holdout::From(rule).status(), Code::kInvalidArgument);
  }
}

TEST(rows_of_columns_are_split_like_values_of_lines) {
  std::string bytes, text;
  std::vector<int64_t> offsets = {0};
  for (size_t i = 0; i < 300; ++i) {
    const std::string value = i % 7 == 0 ? "" : std::to_string(i);
    bytes += value;
    offsets.push_back(static_cast<int64_t>(bytes.size()));
    if (!value.empty()) text += std::to_string(i) + "," + value + "\n";
  }
  const Holdout holdout = Of(Share(0.4, true));
  HoldoutRows rows;
  rows.count = 300;
  rows.offsets = offsets.data();
  rows.bytes = bytes.data();
  const Result<std::vector<uint8_t>> held = KeepRows(holdout, rows, true);
  const Result<std::vector<uint8_t>> trained = KeepRows(holdout, rows, false);
  CHECK_OK(held.status());
  std::string found;
  for (size_t i = 0; i < 300; ++i) {
    CHECK_EQ(held.value()[i] + trained.value()[i], 1);
    if (held.value()[i] == 1 && i % 7 != 0) {
      found += std::to_string(i) + "," + std::to_string(i) + "\n";
    }
  }
  CHECK_EQ(HeldOf(Share(0.4, true), text), found);
}

TEST(a_chunk_of_kept_rows_counts_all_rows) {
  ParsedChunk chunk;
  chunk.lines = 3;
  chunk.first_bad = {{1, "why", ""}};
  chunk.large = {{0, 2, 5.0f}};
  chunk.rounded = {{0, 0, 1.0}};
  CountAllRows({4, 6, 9}, 12, &chunk);
  CHECK_EQ(chunk.lines, 12u);
  CHECK_EQ(chunk.left_out, 9u);
  CHECK_EQ(chunk.first_bad[0].line, 6u);
  CHECK_EQ(chunk.large[0].line, 9u);
  CHECK_EQ(chunk.rounded[0].line, 4u);
}
