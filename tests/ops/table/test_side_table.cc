#include "table/side_table.h"

#include <algorithm>
#include <map>
#include <random>

#include "check.h"

using namespace pbx;

namespace {

using Floats = std::vector<float>;

SideRows Part(Floats values, const std::vector<std::string>& keys = {}) {
  SideRows part;
  part.values = std::move(values);
  for (const std::string& key : keys) {
    part.key_bytes += key;
    part.key_ends.push_back(part.key_bytes.size());
  }
  return part;
}

Result<std::shared_ptr<SideTable>> Make(SideTableConfig config, SideRows a, SideRows b = {}) {
  config.name = "side";
  std::vector<SideRows> parts;
  parts.push_back(std::move(a));
  parts.push_back(std::move(b));
  return SideTable::Make(config, std::move(parts));
}

bool Says(const Status& status, const std::string& text) {
  if (status.message().find(text) != std::string::npos) return true;
  std::cerr << "message: " << status.message() << std::endl;
  return false;
}

Floats Gather(const SideTable& table, const std::vector<int64_t>& ids, SideTable::Stray stray) {
  Floats out(ids.size() * table.config().dim, -1);
  CHECK_OK(table.Gather(ids.data(), ids.size(), stray, out.data()));
  return out;
}

}  // namespace

TEST(rows_are_numbered_over_all_parts) {
  const auto made = Make({"", 2, false, 1}, Part({1, 2, 3, 4}), Part({5, 6}));
  CHECK_OK(made.status());
  CHECK_EQ(made.value()->rows(), 3u);
  CHECK((Gather(*made.value(), {2, 0, 2}, SideTable::Stray::kIsError) == Floats{5, 6, 1, 2, 5, 6}));
}

TEST(a_stray_id_is_named_with_its_position_and_the_rows_there_are) {
  const auto made = Make({"", 1, false, 1}, Part({7, 8}));
  Floats out(4);
  for (const int64_t stray : {int64_t{2}, int64_t{-1}, INT64_MIN, INT64_MAX}) {
    const int64_t ids[] = {0, 1, stray, -9};
    const Status status = made.value()->Gather(ids, 4, SideTable::Stray::kIsError, out.data());
    CHECK_CODE(status, Code::kInvalidArgument);
    CHECK(Says(status, "id " + std::to_string(stray) + " at position 2, expected a row in [0, 2)"));
  }
}

TEST(the_first_stray_id_is_named_whatever_the_thread_count) {
  const size_t n = 1 << 20;
  std::vector<int64_t> ids(n, 0);
  ids[n / 2 + 1] = 77;
  ids[n - 1] = 99;
  Floats out(n);
  for (const int threads : {1, 4}) {
    const auto made = Make({"", 1, false, threads}, Part({7}));
    const Status status =
        made.value()->Gather(ids.data(), n, SideTable::Stray::kIsError, out.data());
    CHECK(Says(status, "id 77 at position 524289"));
  }
}

TEST(a_stray_id_reads_row_0_where_that_is_asked_for_and_is_counted) {
  const auto made = Make({"", 1, true, 1}, Part({7, 8}, {"a", "b"}));
  const Floats out = Gather(*made.value(), {2, 3, -1, 1}, SideTable::Stray::kIsRow0);
  CHECK((out == Floats{8, 0, 0, 7}));
  CHECK_EQ(made.value()->strays(), 2u);
}

TEST(a_table_without_rows_has_no_row_to_read) {
  const auto made = Make({"", 3, false, 1}, {});
  CHECK_EQ(Gather(*made.value(), {}, SideTable::Stray::kIsError).size(), 0u);
  const int64_t id = 0;
  Floats out(3);
  CHECK_CODE(made.value()->Gather(&id, 1, SideTable::Stray::kIsError, out.data()),
             Code::kInvalidArgument);
  CHECK_CODE(made.value()->Gather(&id, 1, SideTable::Stray::kIsRow0, out.data()),
             Code::kInvalidArgument);
}

TEST(keys_find_their_rows_and_the_others_find_the_row_of_zeros) {
  const auto made = Make({"", 1, true, 1}, Part({7, 8}, {"a", "ab"}), Part({9}, {""}));
  CHECK_OK(made.status());
  CHECK_EQ(made.value()->rows(), 4u);
  std::vector<int64_t> rows(6, -1);
  CHECK_EQ(made.value()->RowsOf({"ab", "-", "a", "", "b", "aba"}, rows.data()), 2u);
  CHECK((rows == std::vector<int64_t>{2, 0, 1, 3, 0, 0}));
  CHECK((Gather(*made.value(), rows, SideTable::Stray::kIsError) == Floats{8, 0, 7, 9, 0, 0}));
}

TEST(a_key_that_occurs_twice_is_an_error_that_names_both_places) {
  SideRows a = Part({1, 2}, {"x", "y"}), b = Part({3, 4}, {"z", "y"});
  a.origin = "a.txt", a.lines = {1, 4};
  b.origin = "b.txt", b.lines = {2, 3};
  Status status = Make({"", 1, true, 1}, a, b).status();
  CHECK_CODE(status, Code::kInvalidArgument);
  CHECK(Says(status, "b.txt:3: key 'y' occurs twice, expected once: a.txt:4 has it"));
  status = Make({"", 1, true, 1}, Part({1, 2}, {"x", "x"})).status();
  CHECK(
      Says(status, "row 1 of the array: key 'x' occurs twice, expected once: row 0 of the array"));
  status = Make({"", 1, true, 1}, Part({1}, {"-"})).status();
  CHECK(Says(status, "key '-' occurs twice, expected once: row 0 of every input table"));
}

TEST(parts_of_another_shape_are_refused) {
  CHECK_CODE(Make({"", 2, false, 1}, Part({1, 2, 3})).status(), Code::kInvalidArgument);
  CHECK_CODE(Make({"", 1, false, 1}, Part({1}, {"a"})).status(), Code::kInvalidArgument);
  CHECK_CODE(Make({"", 1, true, 1}, Part({1, 2}, {"a"})).status(), Code::kInvalidArgument);
  CHECK_CODE(Make({"", 0, false, 1}, {}).status(), Code::kInvalidArgument);
  CHECK_CODE(Make({"", 1, false, 0}, {}).status(), Code::kInvalidArgument);
}

TEST(random_keys_agree_with_a_map_for_any_thread_count) {
  std::mt19937_64 random(1);
  std::map<std::string, int64_t> model;
  Floats values;
  std::vector<std::string> keys;
  while (keys.size() < 20000) {
    const std::string key = std::to_string(random() % 100000);
    if (!model.emplace(key, static_cast<int64_t>(keys.size()) + 1).second) continue;
    keys.push_back(key);
    values.push_back(static_cast<float>(keys.size()));
  }
  std::vector<std::string> asked;
  for (int i = 0; i < 50000; ++i) asked.push_back(std::to_string(random() % 100000));
  const std::vector<std::string_view> views(asked.begin(), asked.end());
  for (const int threads : {1, 3}) {
    const auto made = Make({"", 1, true, threads}, Part(values, keys));
    std::vector<int64_t> rows(asked.size(), -1);
    size_t wrong = 0;
    CHECK_EQ(made.value()->RowsOf(views, rows.data()),
             static_cast<size_t>(std::count_if(asked.begin(), asked.end(), [&](const auto& key) {
               return model.count(key) == 0;
             })));
    const Floats out = Gather(*made.value(), rows, SideTable::Stray::kIsError);
    for (size_t i = 0; i < asked.size(); ++i) {
      const auto entry = model.find(asked[i]);
      const int64_t expected = entry == model.end() ? 0 : entry->second;
      wrong += rows[i] != expected || out[i] != static_cast<float>(expected);
    }
    CHECK_EQ(wrong, 0u);
  }
}
