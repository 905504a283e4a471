#include "serve/serve_tables.h"

#include <algorithm>
#include <string>
#include <vector>

#include "check.h"
#include "row/feasign.h"
#include "serve/layer_writer.h"

namespace pbx {
namespace {

// One base of rows without embedx: feasign f has embed_w `weight` * f. Alive with its bytes.
struct Filled {
  ServeTable table;
  std::vector<std::string> blocks;

  Filled(int dim, size_t slots, float weight)
      : table("test", ServeCodec(dim, false, ServePrecision::kFloat32), slots, 0) {
    LayerWriter writer(table.codec(), 1, false);
    std::vector<uint64_t> keys;
    for (uint64_t f = 1; f <= 9; ++f) keys.push_back(KeyOf(f));
    std::sort(keys.begin(), keys.end());
    const RowLayout layout{dim, 1, 1, 0, 0};
    for (const uint64_t key : keys) {
      const uint64_t feasign = FeasignOf(key);
      std::vector<float> row(static_cast<size_t>(layout.words()));
      row[RowLayout::kEmbed] = weight * static_cast<float>(feasign);
      CHECK_OK(writer.Add(&feasign, row.data(), 1, row.size()));
    }
    CHECK_OK(writer.Finish());
    LayerParts parts;
    parts.bits = writer.bits();
    for (auto& [at, bytes] : writer.TakeBlocks()) blocks.push_back(std::move(bytes));
    for (const std::string& bytes : blocks) parts.blocks.emplace_back(bytes.data(), bytes.size());
    CHECK_OK(table.AddLayer(std::move(parts)));
  }
};

// Slots a, b, c, of which b is of the second table, whose rows have three floats.
TEST(each_table_reads_its_own_slots_and_they_stand_one_table_behind_the_other) {
  const Filled first(1, 2, 1.0f), second(2, 1, 100.0f);
  auto made = ServeTables::Of({&first.table, &second.table}, {0, 1, 0}, 1);
  CHECK_OK(made.status());
  const ServeTables& tables = *made.value();
  CHECK_EQ(tables.output_width(), size_t{2 + 2 + 3 + 1});
  // Two instances: a = [1, 2], b = [3], c = []; a = [], b = [4, 5, 77], c = [6].
  const std::vector<uint64_t> feasigns = {1, 2, 3, 4, 5, 77, 6};
  const std::vector<int32_t> offsets = {0, 2, 3, 3, 3, 6, 7};
  const std::vector<float> dense = {0.5f, 0.25f};
  std::vector<float> out(16, -1.0f);
  CHECK_OK(tables.Pull(feasigns.data(), offsets.data(), nullptr, 2, dense.data(), out.data()));
  const std::vector<float> expected = {3, 0, 0, 0, 300, 0, 0, 0.5f,  //
                                       0, 0, 6, 0, 900, 0, 0, 0.25f};
  for (size_t i = 0; i < expected.size(); ++i) CHECK_EQ(out[i], expected[i]);
}

// Slots a, b, c: c is of the second table.
TEST(each_table_gets_the_factors_of_its_own_ids) {
  const Filled first(1, 2, 1.0f), second(1, 1, 100.0f);
  auto made = ServeTables::Of({&first.table, &second.table}, {0, 0, 1}, 0);
  CHECK_OK(made.status());
  // Two instances: a = [1, 2], b = [3], c = [4]; a = [], b = [5], c = [6, 7].
  const std::vector<uint64_t> feasigns = {1, 2, 3, 4, 5, 6, 7};
  const std::vector<int32_t> offsets = {0, 2, 3, 4, 4, 5, 7};
  const std::vector<float> factors = {0.5f, 2, 1, 0.25f, 3, 1, 0};
  std::vector<float> out(12, -1.0f);
  CHECK_OK(
      made.value()->Pull(feasigns.data(), offsets.data(), factors.data(), 2, nullptr, out.data()));
  const std::vector<float> expected = {4.5f, 0, 3, 0, 100, 0, 0, 0, 15, 0, 600, 0};
  for (size_t i = 0; i < expected.size(); ++i) CHECK_EQ(out[i], expected[i]);
}

TEST(lists_of_one_are_copied_to_their_places) {
  const Filled first(1, 1, 1.0f), second(1, 1, 10.0f);
  auto made = ServeTables::Of({&first.table, &second.table}, {1, 0}, 0);
  CHECK_OK(made.status());
  const std::vector<uint64_t> feasigns = {1, 2, 3, 4};
  const std::vector<int32_t> offsets = {0, 1, 2, 3, 4};
  std::vector<float> out(8, -1.0f);
  CHECK_OK(made.value()->Pull(feasigns.data(), offsets.data(), nullptr, 2, nullptr, out.data()));
  const std::vector<float> expected = {2, 0, 10, 0, 4, 0, 30, 0};
  for (size_t i = 0; i < expected.size(); ++i) CHECK_EQ(out[i], expected[i]);
}

TEST(tables_and_slots_that_do_not_fit_each_other_are_refused) {
  const Filled first(1, 2, 1.0f), second(1, 1, 1.0f);
  CHECK(!ServeTables::Of({&first.table, &second.table}, {0, 1}, 0).ok());
  CHECK(!ServeTables::Of({&first.table, &second.table}, {0, 0, 1, 2}, 0).ok());
}

}  // namespace
}  // namespace pbx
