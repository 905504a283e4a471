// Places of sequences that share their ids.
#include "row/shared_ids.h"

#include <vector>

#include "check.h"
#include "row/lists.h"

namespace pbx {
namespace {

using Words = std::vector<int32_t>;

// Shares the ids of the second and third cell of each instance: ids, then offsets.
Status Share(const Words& ids, const Words& offsets, const uint8_t* repeats, Words* ids_out,
             Words* words) {
  const size_t cells = offsets.size() - 1;
  Words plan;
  BuildPlan(ids.data(), offsets.data(), cells, 1, &plan);
  const PlanView view = ViewPlan(plan.data(), plan.size(), 100, cells).value();
  return ShareIds({cells, ids.data(), offsets.data(), view}, {0, 1, 1}, repeats, ids_out, words);
}

TEST(an_id_of_sequences_becomes_one_list_and_so_do_places_without_an_id) {
  // A pooled cell of two ids, then two places of a history; the second instance has one event.
  const Words ids = {5, 7, 7, 9, 5, 7, 9}, offsets = {0, 2, 3, 4, 6, 7, 7};
  Words own, words;
  CHECK_OK(Share(ids, offsets, nullptr, &own, &words));
  CHECK(own == Words({5, 7, 7, 9, 5, 7}));
  CHECK(words == Words({0, 2, 3, 4, 6, 6, 0, 1, 2, 3, 2, 4}));
  const std::vector<uint8_t> repeats = {0, 0, 0, 1, 0, 0};
  CHECK_OK(Share(ids, offsets, repeats.data(), &own, &words));
  CHECK(own == Words({5, 7, 7, 9}));
  CHECK(words == Words({0, 2, 3, 4, 4, 0, 1, 2, 0, 2, 3}));
  CellChains chains;
  const SharedCells shared = FindShared(6, words.data(), words.size()).value();
  CHECK_OK(ChainCells(shared, 6, &chains));
  Words all, all_offsets;
  CHECK_OK(ExpandLists(shared, 6, own.data(), words.data(), &all, &all_offsets));
  CHECK(all == ids && all_offsets == offsets);
}

TEST(ids_without_a_row_share_a_list_and_a_batch_without_repeats_has_none) {
  Words own, words;
  CHECK_OK(Share({4, -1, 3, -1, -1, 8}, {0, 1, 2, 3, 4, 5, 6}, nullptr, &own, &words));
  CHECK(own == Words({4, -1, 3, -1, 8}));
  CHECK(words == Words({0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 1, 4}));
  CHECK_OK(Share({4, 1, 3, 4, 2, 8}, {0, 1, 2, 3, 4, 5, 6}, nullptr, &own, &words));
  CHECK(own == Words({4, 1, 3, 4, 2, 8}));
  CHECK(words == Words({0, 1, 2, 3, 4, 5, 6}));
  CHECK_OK(Share({}, {0}, nullptr, &own, &words));
  CHECK(own.empty() && words == Words({0}));
}

TEST(several_ids_in_a_cell_of_a_sequence_are_refused) {
  Words own, words;
  CHECK_CODE(Share({1, 2, 3}, {0, 1, 3, 3}, nullptr, &own, &words), Code::kInvalidArgument);
}

}  // namespace
}  // namespace pbx
