// Lists that instances of a batch share.
#include "row/lists.h"

#include <vector>

#include "check.h"
#include "row/plan.h"

namespace pbx {
namespace {

using Words = std::vector<int32_t>;

TEST(the_size_tells_whether_lists_are_shared) {
  const Words words(20);
  CHECK(FindShared(6, words.data(), 7).value().list_of == nullptr);
  const SharedCells one = FindShared(6, words.data(), 8).value();
  CHECK(one.lists == 1 && one.list_of == words.data() + 2);
  const SharedCells five = FindShared(6, words.data(), 12).value();
  CHECK(five.lists == 5 && five.list_of == words.data() + 6);
  for (const size_t size : {0u, 6u, 13u, 20u}) {
    CHECK_CODE(FindShared(6, words.data(), size).status(), Code::kInvalidArgument);
  }
  CHECK_CODE(FindShared(1, words.data(), 3).status(), Code::kInvalidArgument);
}

TEST(chains_go_through_the_cells_of_each_list_in_order) {
  const Words list_of = {0, 1, 0, 2, 0, 1};
  CellChains chains;
  CHECK_OK(ChainCells({list_of.data(), 3}, 6, &chains));
  CHECK(chains.first == Words({0, 1, 3}));
  CHECK(chains.next == Words({2, 5, 4, -1, -1, -1}));
}

TEST(lists_that_are_not_numbered_by_their_first_cells_are_refused) {
  CellChains chains;
  for (const Words& bad : {Words{1, 0, 0}, Words{0, 2, 1}, Words{0, -1, 1}, Words{0, 0, 0},
                           Words{0, 1, 2}, Words{0, 1, INT32_MIN}}) {
    CHECK_CODE(ChainCells({bad.data(), 2}, 3, &chains), Code::kInvalidArgument);
  }
}

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

TEST(expanding_gives_each_cell_its_list) {
  const Words list_of = {0, 1, 0, 2}, ids = {7, 9, 4}, offsets = {0, 2, 2, 3};
  Words all_ids, all_offsets;
  CHECK_OK(ExpandLists({list_of.data(), 3}, 4, ids.data(), offsets.data(), &all_ids, &all_offsets));
  CHECK(all_ids == Words({7, 9, 7, 9, 4}));
  CHECK(all_offsets == Words({0, 2, 2, 4, 5}));
}

TEST(more_occurrences_than_fit_an_int32_are_refused) {
  const Words list_of = {0, 0, 0}, offsets = {0, INT32_MAX / 2};
  Words all_ids, all_offsets;
  CHECK_CODE(ExpandLists({list_of.data(), 1}, 3, nullptr, offsets.data(), &all_ids, &all_offsets),
             Code::kInvalidArgument);
}

}  // namespace
}  // namespace pbx
