#include "rule/convert.h"

#include <vector>

#include "check.h"

namespace pbx {
namespace {

AccessorConfig Config(int dim, RuleKind embedx, uint64_t seed) {
  AccessorConfig config;
  config.seed = seed;
  config.embedx.kind = embedx;
  config.layout.embedx_dim = dim;
  config.layout.embed_state = rule::StateSize(config.embed.kind, 1);
  config.layout.embedx_state = rule::StateSize(embedx, dim);
  return config;
}

std::vector<float> NewRow(const AccessorConfig& config, uint64_t key, uint16_t slot, bool embedx) {
  std::vector<float> row(static_cast<size_t>(config.layout.words()));
  accessor::Create(config, key, slot, row.data());
  if (embedx) accessor::CreateEmbedx(config, key, row.data());
  return row;
}

TEST(a_feasign_moves_between_slots_and_back) {
  for (uint64_t token : {uint64_t{1}, uint64_t{77}, UINT64_MAX, uint64_t{0}}) {
    const uint64_t in_two = FeasignInSlot(token, 2), in_nine = FeasignInSlot(token, 9);
    CHECK_EQ(FeasignMoved(in_two, 2, 9), in_nine);
    CHECK_EQ(FeasignMoved(in_nine, 9, 2), in_two);
  }
}

TEST(keys_move_only_where_slots_are_in_them_and_move) {
  CHECK(!(SlotMap{{0, 1, 2}, true}.MovesKeys()));
  CHECK(!(SlotMap{{0, -1, 2}, true}.MovesKeys()));
  CHECK(!(SlotMap{{1, 0}, false}.MovesKeys()));
  CHECK((SlotMap{{1, 0}, true}.MovesKeys()));
  // Slot 1 has the ids of slot 0: its rows move where slot 0 does, and nowhere else.
  CHECK(!(SlotMap{{0, 2}, true, {{0, 0}, {0, 0}}}.MovesKeys()));
  CHECK((SlotMap{{1, 2}, true, {{0, 1}, {0, 1}}}.MovesKeys()));
}

// 7 words up to embed_w, one of AdaGrad's G, D of embedx and one of its G.
TEST(weights_and_counts_are_kept_and_a_wider_embedx_is_a_new_one) {
  const AccessorConfig from = Config(2, RuleKind::kAdaGrad, 1), to = Config(3, RuleKind::kNaive, 2);
  std::vector<float> row = NewRow(from, KeyOf(5), 1, true);
  row[RowLayout::kShow] = 9;
  row[RowLayout::kEmbed] = 0.25f;
  row[7] = 4;           // G
  row[8] = row[9] = 8;  // embedx
  std::vector<float> out(static_cast<size_t>(to.layout.words()));
  uint64_t key = KeyOf(5);
  CHECK(RowConverter(from, to, {{0, 3}, false}).Convert(row.data(), &key, out.data()));
  std::vector<float> expected = NewRow(to, KeyOf(5), 3, true);
  expected[RowLayout::kShow] = 9;
  expected[RowLayout::kEmbed] = 0.25f;
  expected[7] = 4;
  CHECK(out == expected);
  CHECK_EQ(key, KeyOf(5));
}

TEST(a_row_of_a_slot_that_shares_ids_moves_with_the_other_slot) {
  const AccessorConfig config = Config(2, RuleKind::kAdaGrad, 1);
  uint64_t key = KeyOf(FeasignInSlot(77, 0));
  const std::vector<float> row = NewRow(config, key, 1, false);
  std::vector<float> out(row.size());
  const SlotMap map = {{3, 2}, true, {{0, 3}, {0, 3}}};
  CHECK(RowConverter(config, config, map).Convert(row.data(), &key, out.data()));
  CHECK_EQ(key, KeyOf(FeasignInSlot(77, 3)));
  CHECK_EQ(SlotOf(out.data()), 2);
}

TEST(a_row_without_embedx_gets_none_and_a_dropped_slot_no_row) {
  const AccessorConfig from = Config(2, RuleKind::kAdaGrad, 1), to = Config(4, RuleKind::kAdam, 1);
  const std::vector<float> row = NewRow(from, KeyOf(6), 1, false);
  std::vector<float> out(static_cast<size_t>(to.layout.words()), 7.0f);
  uint64_t key = KeyOf(6);
  CHECK(RowConverter(from, to, {}).Convert(row.data(), &key, out.data()));
  CHECK(out == NewRow(to, KeyOf(6), 1, false));
  CHECK(!RowConverter(from, to, {{0, -1}, false}).Convert(row.data(), &key, out.data()));
}

TEST(further_counts_go_to_the_counts_of_their_names) {
  AccessorConfig from = Config(2, RuleKind::kAdaGrad, 1), to = from;
  from.layout.counts = 2;
  to.layout.counts = 3;
  std::vector<float> row = NewRow(from, KeyOf(5), 0, true);
  row[row.size() - 2] = 7;
  row[row.size() - 1] = 9;
  std::vector<float> out(static_cast<size_t>(to.layout.words()));
  uint64_t key = KeyOf(5);
  SlotMap map{{0}, false};
  map.counts = {1, SlotMap::kDropped, 0};
  CHECK(RowConverter(from, to, map).Convert(row.data(), &key, out.data()));
  CHECK((std::vector<float>(out.end() - 3, out.end()) == std::vector<float>{9, 0, 7}));
  CHECK(std::equal(row.begin(), row.end() - 2, out.begin()));
}

}  // namespace
}  // namespace pbx
