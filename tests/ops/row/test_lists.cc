// Lists that instances of a batch share.
#include "row/lists.h"

#include <vector>

#include "check.h"

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
