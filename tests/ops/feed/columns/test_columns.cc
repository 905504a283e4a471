#include "feed/columns/columns.h"

#include <cmath>
#include <deque>

#include "feed/feed_util.h"

using namespace pbx;
using namespace pbx::test;

namespace {

// An Arrow column and its type. Buffers have exactly the bytes they need, so that the address
// sanitizer sees a read beyond them.
struct Made {
  ArrowSchema type = {};
  ArrowArray array = {};
  ArrowSchema* type_child = nullptr;
  ArrowArray* array_child = nullptr;
  std::string name;
  std::vector<std::unique_ptr<char[]>> held;
  const void* buffers[3] = {nullptr, nullptr, nullptr};
};

class Batch {
 public:
  template <typename T>
  Made* Add(const std::string& name, const char* format, const std::vector<T>& values) {
    Made* made = New(name, format, static_cast<int64_t>(values.size()));
    made->array.n_buffers = 2;
    made->buffers[1] = Hold(made, values.data(), values.size() * sizeof(T));
    return made;
  }

  // rows: one less than offsets.
  Made* AddList(const std::string& name, const std::vector<int32_t>& offsets, Made* items) {
    Made* made = Add(name, "+l", offsets);
    made->array.length = static_cast<int64_t>(offsets.size()) - 1;
    made->type.n_children = made->array.n_children = 1;
    made->type_child = &items->type;
    made->array_child = &items->array;
    made->type.children = &made->type_child;
    made->array.children = &made->array_child;
    return made;
  }

  Made* AddStrings(const std::string& name, const std::vector<int32_t>& offsets,
                   const std::string& text) {
    Made* made = Add(name, "u", offsets);
    made->array.length = static_cast<int64_t>(offsets.size()) - 1;
    made->array.n_buffers = 3;
    made->buffers[2] = Hold(made, text.data(), text.size());
    return made;
  }

  void SetNulls(Made* made, uint8_t valid) {
    made->array.null_count = -1;  // not counted
    made->buffers[0] = Hold(made, &valid, 1);
  }

  Status Parse(const FeedSchema& schema, const std::vector<Made*>& columns, int64_t offset,
               int64_t rows, ParsedChunk* out) {
    std::vector<ArrowSchema*> types;
    std::vector<ArrowArray*> arrays;
    for (Made* column : columns) {
      types.push_back(&column->type);
      arrays.push_back(&column->array);
    }
    ArrowSchema type = {};
    type.format = "+s";
    type.n_children = static_cast<int64_t>(types.size());
    type.children = types.data();
    ArrowArray array = {};
    array.offset = offset;
    array.length = rows;
    array.n_children = type.n_children;
    array.children = arrays.data();
    return ParseColumns(schema, {{&type, &array}}, out);
  }

 private:
  Made* New(const std::string& name, const char* format, int64_t length) {
    Made* made = &made_.emplace_back();
    made->name = name;
    made->type.name = made->name.c_str();
    made->type.format = format;
    made->array.length = length;
    made->array.buffers = made->buffers;
    return made;
  }

  static const void* Hold(Made* made, const void* data, size_t size) {
    made->held.emplace_back(new char[size]);
    if (size != 0) std::memcpy(made->held.back().get(), data, size);
    return made->held.back().get();
  }

  std::deque<Made> made_;
};

FeedSchema Small() {
  FeedSchema schema =
      Schema(Format::kColumns, {Label("y"), Dense("d", 1), Sparse("u"), Sparse("w")});
  schema.slots[1].transform.has_default = true;
  schema.slots[1].transform.default_value = 9;
  return schema;
}

// Four rows: y 0 1 0 1, d 1 2 3 4, u 5 6 7 8, w [1 2] [] [3] [4 5 6 7 8].
struct Four : Batch {
  Made* y = Add<int32_t>("y", "i", {0, 1, 0, 1});
  Made* d = Add<double>("d", "g", {1, 2, 3, 4});
  Made* u = Add<int64_t>("u", "l", {5, 6, -1, 8});
  Made* items = Add<uint64_t>("item", "L", {1, 2, 3, 4, 5, 6, 7, 8});
  Made* w = AddList("w", {0, 2, 2, 3, 8}, items);

  Status Parse(int64_t offset, int64_t rows, ParsedChunk* out, const FeedSchema& schema = Small()) {
    return Batch::Parse(schema, {w, u, d, y}, offset, rows, out);
  }
};

}  // namespace

TEST(rows_are_what_the_columns_say) {
  Four four;
  ParsedChunk chunk;
  CHECK_OK(four.Parse(0, 4, &chunk));
  CHECK_EQ(Text(chunk.labels), "0 1 0 1");
  CHECK_EQ(Text(chunk.dense), "1 2 3 4");
  CHECK_EQ(Text(chunk.feasigns), "5 1 2 6 18446744073709551615 3 8 4 5 6 7 8");
  CHECK_EQ(Text(chunk.lengths), "1 2 1 0 1 1 1 5");
  CHECK_EQ(chunk.lines, 4u);
}

TEST(a_row_with_a_dense_value_beyond_the_bound_is_malformed_and_a_large_one_is_noted) {
  Batch batch;
  Made* y = batch.Add<int32_t>("y", "i", {0, 1, 0, 1});
  Made* u = batch.Add<int64_t>("u", "l", {5, 6, 7, 8});
  Made* w = batch.Add<int64_t>("w", "l", {5, 6, 7, 8});
  for (Made* d : {batch.Add<double>("d", "g", {1, 1e30, 20000, -30000}),
                  batch.Add<float>("d", "f", {1, 1e30f, 20000, -30000})}) {
    ParsedChunk chunk;
    CHECK_OK(batch.Parse(Small(), {y, d, u, w}, 0, 4, &chunk));
    CHECK_EQ(Text(chunk.dense), "1 20000 -30000");
    CHECK_EQ(Text(chunk.feasigns), "5 5 7 7 8 8");
    CHECK_EQ(chunk.bad_lines, 1u);
    CHECK_EQ(chunk.first_bad[0].line, 1u);
    CHECK(chunk.first_bad[0].reason.find("slot 'd': 1e+30 is beyond 1e+15") == 0);
    CHECK_EQ(chunk.large.size(), 1u);
    CHECK_EQ(chunk.large[0].line, 3u);
    CHECK_EQ(chunk.large[0].value, -30000.0f);
  }
}

TEST(a_slice_is_its_rows) {
  Four four;
  ParsedChunk chunk;
  CHECK_OK(four.Parse(2, 2, &chunk));
  CHECK_EQ(Text(chunk.dense), "3 4");
  CHECK_EQ(Text(chunk.feasigns), "18446744073709551615 3 8 4 5 6 7 8");
}

TEST(nulls_are_empty_slots_and_defaults_and_a_null_label_is_malformed) {
  Four four;
  four.SetNulls(four.d, 0b0111);
  four.SetNulls(four.u, 0b1110);
  four.SetNulls(four.w, 0b1110);
  four.SetNulls(four.items, 0b11101111);
  four.SetNulls(four.y, 0b1101);
  ParsedChunk chunk;
  CHECK_OK(four.Parse(0, 4, &chunk));
  CHECK_EQ(Text(chunk.labels), "0 0 1");
  CHECK_EQ(Text(chunk.dense), "1 3 9");
  CHECK_EQ(Text(chunk.feasigns), "18446744073709551615 3 8 4 6 7 8");
  CHECK_EQ(Text(chunk.lengths), "0 0 1 1 1 4");
  CHECK_EQ(chunk.bad_lines, 1u);
  CHECK_EQ(chunk.first_bad[0].line, 1u);
}

TEST(offsets_that_leave_their_values_are_corruption) {
  const std::vector<std::vector<int32_t>> wrong = {
      {0, 2, 2, 3, 9},  {-1, 2, 2, 3, 8}, {0, 2, 1, 3, 8},
      {0, 99, 2, 3, 8}, {0, 2, 2, -7, 8}, {INT32_MIN, 2, 2, 3, INT32_MAX}};
  for (const std::vector<int32_t>& offsets : wrong) {
    Four four;
    four.w = four.AddList("w", offsets, four.items);
    ParsedChunk chunk;
    CHECK_EQ(static_cast<int>(four.Parse(0, 4, &chunk).code()),
             static_cast<int>(Code::kCorruption));
  }
}

TEST(strings_hash_and_their_offsets_are_checked) {
  FeedSchema schema = Small();
  schema.slots[2].transform.hash = true;
  Four four;
  four.u = four.AddStrings("u", {0, 2, 2, 3, 4}, "abcd");
  ParsedChunk chunk;
  CHECK_OK(four.Parse(0, 4, &chunk, schema));
  CHECK_EQ(Text(chunk.lengths), "1 2 0 0 1 1 1 5");
  CHECK_EQ(chunk.feasigns[0], 144753322831965956u);
  for (const std::vector<int32_t>& offsets :
       {std::vector<int32_t>{0, 5, 2, 3, 4}, {0, 2, 1, 3, 4}, {-3, 2, 2, 3, 4}}) {
    four.u = four.AddStrings("u", offsets, "abcd");
    CHECK_EQ(static_cast<int>(four.Parse(0, 4, &chunk, schema).code()),
             static_cast<int>(Code::kCorruption));
  }
}

TEST(a_batch_longer_than_its_columns_or_without_buffers_is_corruption) {
  Four four;
  ParsedChunk chunk;
  CHECK(!four.Parse(0, 5, &chunk).ok());
  CHECK(!four.Parse(3, 2, &chunk).ok());
  four.d->buffers[1] = nullptr;
  CHECK(!four.Parse(0, 4, &chunk).ok());
}

TEST(many_rows_with_bad_ones_keep_the_others_in_order) {
  constexpr int kRows = 5000;
  std::vector<int32_t> y(kRows, 1), offsets = {0};
  std::vector<double> d(kRows, 0.5);
  std::vector<int64_t> u;
  std::vector<uint64_t> items;
  for (int i = 0; i < kRows; ++i) {
    u.push_back(i + 1);
    if (i % 700 == 3) y[static_cast<size_t>(i)] = 2;
    for (int j = 0; j < i % 7; ++j) items.push_back(i % 11 == 0 ? 0 : static_cast<uint64_t>(i));
    offsets.push_back(static_cast<int32_t>(items.size()));
  }
  Batch batch;
  ParsedChunk chunk;
  CHECK_OK(batch.Parse(Small(),
                       {batch.Add("y", "i", y), batch.Add("d", "g", d), batch.Add("u", "l", u),
                        batch.AddList("w", offsets, batch.Add("item", "L", items))},
                       0, kRows, &chunk));
  CHECK_EQ(chunk.bad_lines, 8u);
  CHECK_EQ(chunk.first_bad.size(), 8u);
  CHECK_EQ(chunk.first_bad[7].line, 4903u);
  std::vector<uint64_t> expected;
  for (int i = 0; i < kRows; ++i) {
    if (i % 700 == 3) continue;
    expected.push_back(static_cast<uint64_t>(i + 1));
    for (int j = 0; i % 11 != 0 && j < i % 7; ++j) expected.push_back(static_cast<uint64_t>(i));
  }
  CHECK(chunk.feasigns == expected);
  CHECK_EQ(chunk.lengths.size(), 2 * chunk.instances);
}

// Rows of a label, a dense number and one id a slot, over blocks and tiles that end in the middle.
struct OneEach : Batch {
  static constexpr size_t kRows = 2500;
  std::vector<float> labels = std::vector<float>(kRows, 0.25f);
  std::vector<double> numbers = std::vector<double>(kRows);
  std::vector<uint64_t> wide = std::vector<uint64_t>(kRows);
  std::vector<int32_t> narrow = std::vector<int32_t>(kRows);
  bool per_slot_keys = false;

  OneEach() {
    for (size_t i = 0; i < kRows; ++i) {
      numbers[i] = 0.5 * static_cast<double>(i);
      wide[i] = ~uint64_t{0} - i;
      narrow[i] = static_cast<int32_t>(i + 1);
    }
  }

  // As the columns say, row by row.
  ParsedChunk Expected() const {
    ParsedChunk chunk;
    chunk.lines = kRows;
    for (size_t i = 0; i < kRows; ++i) {
      if (labels[i] > 1) {
        ++chunk.bad_lines;
        continue;
      }
      ++chunk.instances;
      chunk.labels.push_back(labels[i]);
      chunk.dense.push_back(static_cast<float>(numbers[i]));
      const uint64_t ids[] = {wide[i], static_cast<uint64_t>(narrow[i])};
      for (const uint32_t slot : {0u, 1u}) {
        const uint64_t id = ids[slot];
        chunk.lengths.push_back(id == 0 ? 0 : 1);
        if (id != 0) chunk.feasigns.push_back(per_slot_keys ? FeasignInSlot(id, slot) : id);
      }
    }
    return chunk;
  }

  void Check() {
    ParsedChunk chunk;
    FeedSchema schema =
        Schema(Format::kColumns, {Label("y"), Dense("d", 1), Sparse("u"), Sparse("w")});
    schema.per_slot_keys = per_slot_keys;
    CHECK_OK(Parse(schema,
                   {Add<float>("y", "f", labels), Add<double>("d", "g", numbers),
                    Add<uint64_t>("u", "L", wide), Add<int32_t>("w", "i", narrow)},
                   0, kRows, &chunk));
    const ParsedChunk expected = Expected();
    CHECK(SameBytes(chunk.labels, expected.labels));
    CHECK(SameBytes(chunk.dense, expected.dense));
    CHECK(SameBytes(chunk.feasigns, expected.feasigns));
    CHECK(SameBytes(chunk.lengths, expected.lengths));
    CHECK_EQ(chunk.instances, expected.instances);
    CHECK_EQ(chunk.lines, expected.lines);
    CHECK_EQ(chunk.bad_lines, expected.bad_lines);
    CHECK(chunk.nonzero);
  }
};

TEST(one_id_a_row_in_every_slot_is_what_the_columns_say) { OneEach().Check(); }

TEST(rows_without_an_id_in_some_slots_are_what_the_columns_say) {
  for (const bool per_slot_keys : {false, true}) {
    OneEach rows;
    rows.per_slot_keys = per_slot_keys;
    for (size_t i = 0; i < OneEach::kRows; i += 3) rows.wide[i] = 0;
    for (size_t i = 1500; i < OneEach::kRows; i += 7) rows.narrow[i] = 0;
    rows.Check();
  }
}

TEST(one_id_a_row_in_every_slot_keeps_its_tags) {
  constexpr size_t kRows = 1027;
  Batch batch;
  std::vector<uint64_t> ids(kRows);
  std::vector<int32_t> offsets(kRows + 1);
  std::string text;
  for (size_t i = 0; i < kRows; ++i) {
    ids[i] = i + 1;
    text += std::to_string(i);
    offsets[i + 1] = static_cast<int32_t>(text.size());
  }
  FeedSchema schema = Schema(Format::kColumns, {Label("y"), Sparse("u"), Sparse("v"), Sparse("w")});
  schema.tags.ins_id = true;
  ParsedChunk chunk;
  CHECK_OK(
      batch.Parse(schema,
                  {batch.Add<float>("y", "f", std::vector<float>(kRows, 1.0f)),
                   batch.Add<uint64_t>("u", "L", ids), batch.Add<uint64_t>("v", "L", ids),
                   batch.Add<uint64_t>("w", "L", ids), batch.AddStrings("ins_id", offsets, text)},
                  0, kRows, &chunk));
  CHECK_EQ(chunk.tags.ins_ids.size(), kRows);
  for (size_t i = 0; i < chunk.tags.ins_ids.size(); ++i) {
    CHECK(chunk.tags.ins_ids[i] == std::to_string(i));
    for (size_t s = 0; s < 3; ++s) CHECK_EQ(chunk.feasigns[3 * i + s], i + 1);
  }
}

TEST(a_row_without_its_id_or_a_bad_one_changes_no_other_row) {
  OneEach rows;
  rows.wide[0] = rows.narrow[1023] = 0;
  rows.wide[1500] = 0;
  rows.labels[1024] = rows.labels[OneEach::kRows - 1] = 2;  // malformed
  rows.Check();
}

namespace {

// Small, with weights of w in a column beside it: [1 2] [] [null] [0 4 5 6 7].
struct WeightedFour : Four {
  Made* weight_items = Add<float>("item", "f", {0.5f, 2, 3, 4, 5, 6, 7, 8});
  Made* weights = AddList("w_weight", {0, 2, 2, 3, 8}, weight_items);

  FeedSchema schema = [] {
    FeedSchema made = Small();
    made.slots[3].weighted = true;
    made.slots[3].weight_column = "w_weight";
    return made;
  }();

  Status Parse(ParsedChunk* out, int64_t offset = 0, int64_t rows = 4) {
    return Batch::Parse(schema, {w, u, d, y, weights}, offset, rows, out);
  }
};

}  // namespace

TEST(weights_come_from_their_own_column) {
  WeightedFour four;
  four.SetNulls(four.weight_items, 0b11111011);
  ParsedChunk chunk;
  CHECK_OK(four.Parse(&chunk));
  CHECK_EQ(Text(chunk.feasigns), "5 1 2 6 18446744073709551615 3 8 4 5 6 7 8");
  CHECK_EQ(Text(chunk.weights), "1 0.5 2 1 1 1 1 4 5 6 7 8");
  CHECK_OK(four.Parse(&chunk, 2, 2));
  CHECK_EQ(Text(chunk.weights), "1 1 1 4 5 6 7 8");
}

TEST(a_null_in_place_of_the_weights_of_a_row_is_1_each) {
  WeightedFour four;
  four.SetNulls(four.weights, 0b0111);
  ParsedChunk chunk;
  CHECK_OK(four.Parse(&chunk));
  CHECK_EQ(Text(chunk.weights), "1 0.5 2 1 1 3 1 1 1 1 1 1");
}

TEST(ids_that_are_null_or_0_take_their_weights_along) {
  WeightedFour four;
  four.SetNulls(four.items, 0b11111110);
  ParsedChunk chunk;
  CHECK_OK(four.Parse(&chunk));
  CHECK_EQ(Text(chunk.lengths), "1 1 1 0 1 1 1 5");
  CHECK_EQ(Text(chunk.weights), "1 2 1 1 3 1 4 5 6 7 8");
}

TEST(a_bad_weight_or_another_number_of_weights_makes_the_row_bad) {
  WeightedFour four;
  Made* const few = four.AddList("w_weight", {0, 1, 1, 2, 7}, four.weight_items);
  ParsedChunk chunk;
  four.weights = few;
  CHECK_OK(four.Parse(&chunk));
  CHECK_EQ(chunk.bad_lines, 1u);
  CHECK_EQ(chunk.first_bad[0].reason,
           "slot 'w': 2 ids and 1 weights, expected as many weights as ids");
  CHECK_EQ(Text(chunk.weights), "1 1 2 1 3 4 5 6 7");
  for (const float bad : {-1.0f, NAN, INFINITY, 5e9f}) {
    WeightedFour other;
    other.weight_items = other.Add<float>("item", "f", {0.5f, bad, 3, 4, 5, 6, 7, 8});
    other.weights = other.AddList("w_weight", {0, 2, 2, 3, 8}, other.weight_items);
    CHECK_OK(other.Parse(&chunk));
    CHECK_EQ(chunk.bad_lines, 1u);
    CHECK(chunk.first_bad[0].reason.find("is not a weight in [0, 2^32]") != std::string::npos);
    CHECK_EQ(Text(chunk.weights), "1 1 3 1 4 5 6 7 8");
  }
}

TEST(weights_beside_a_null_list_of_ids_make_the_row_bad) {
  WeightedFour four;
  four.SetNulls(four.w, 0b1110);
  ParsedChunk chunk;
  CHECK_OK(four.Parse(&chunk));
  CHECK_EQ(chunk.bad_lines, 1u);
  CHECK_EQ(chunk.first_bad[0].reason,
           "slot 'w': 0 ids and 2 weights, expected as many weights as ids");
  four.weights = four.AddList("w_weight", {2, 2, 2, 3, 8}, four.weight_items);
  CHECK_OK(four.Parse(&chunk));
  CHECK_EQ(chunk.bad_lines, 0u);
}

TEST(a_null_id_of_a_column_without_lists_takes_its_weight_along) {
  WeightedFour four;
  four.w = four.Add<int64_t>("w", "l", {5, 6, 7, 8});
  four.SetNulls(four.w, 0b1101);
  four.weights = four.Add<double>("w_weight", "g", {0.5, 2, 3, 4});
  ParsedChunk chunk;
  CHECK_OK(four.Parse(&chunk));
  CHECK_EQ(chunk.bad_lines, 0u);
  CHECK_EQ(Text(chunk.weights), "1 0.5 1 1 3 1 4");
}

TEST(one_id_and_one_weight_a_row_need_no_lists) {
  WeightedFour four;
  four.w = four.Add<int64_t>("w", "l", {5, 0, 7, 8});
  four.weights = four.Add<double>("w_weight", "g", {0.5, 2, 3, 4});
  ParsedChunk chunk;
  CHECK_OK(four.Parse(&chunk));
  CHECK_EQ(Text(chunk.feasigns), "5 5 6 18446744073709551615 7 8 8");
  CHECK_EQ(Text(chunk.weights), "1 0.5 1 1 3 1 4");
}

TEST(weights_of_another_type_or_without_a_column_are_refused) {
  WeightedFour four;
  four.weights = four.AddStrings("w_weight", {0, 1, 1, 1, 1}, "x");
  ParsedChunk chunk;
  CHECK_CODE(four.Parse(&chunk), Code::kInvalidArgument);
  CHECK_CODE(four.Batch::Parse(four.schema, {four.w, four.u, four.d, four.y}, 0, 4, &chunk),
             Code::kInvalidArgument);
}
