#include "row/compact.h"

#include <algorithm>
#include <iterator>

#include "base/sorted_merge.h"
#include "row/plan.h"

namespace pbx {

Status MergeKeys(const std::vector<KeyList>& lists, MergedKeys* merged) {
  *merged = {};
  for (size_t l = 0; l < lists.size(); ++l) {
    const KeyList& list = lists[l];
    for (size_t i = 1; i < list.size; ++i) {
      if (list.keys[i - 1] < list.keys[i]) continue;
      return Error(Code::kInvalidArgument, "list %zu: keys do not ascend at index %zu", l, i);
    }
    std::vector<uint64_t> both;
    both.reserve(merged->keys.size() + list.size);
    std::set_union(merged->keys.begin(), merged->keys.end(), list.keys, list.keys + list.size,
                   std::back_inserter(both));
    merged->keys = std::move(both);
  }
  const size_t size = merged->keys.size();
  if (size > INT32_MAX) {
    return Error(Code::kInvalidArgument, "%zu unique keys, expected at most %d", size, INT32_MAX);
  }
  bool slots = true, counts = true;
  for (const KeyList& list : lists) {
    slots &= list.size == 0 || list.slots != nullptr;
    counts &= list.size == 0 || list.counts != nullptr;
  }
  if (slots) merged->slots.assign(size, UINT16_MAX);
  if (counts) merged->counts.assign(size, 0);
  for (const KeyList& list : lists) {
    std::vector<int32_t> places(list.size);
    ForEachCommon(list.keys, list.size, merged->keys.data(), size, [&](size_t i, size_t place) {
      places[i] = static_cast<int32_t>(place);
      if (slots) merged->slots[place] = std::min(merged->slots[place], list.slots[i]);
      if (!counts) return;
      uint32_t& sum = merged->counts[place];
      sum = list.counts[i] > UINT32_MAX - sum ? UINT32_MAX : sum + list.counts[i];
    });
    merged->places.push_back(std::move(places));
  }
  return Status::Ok();
}

Status CompactBatch(int32_t* ids, size_t nnz, int32_t* plan, size_t plan_size, size_t table_rows,
                    std::vector<int32_t>* rows) {
  // The operators check segments: they know how many there are.
  Result<PlanView> viewed = ViewPlan(plan, plan_size, table_rows, INT32_MAX, nnz);
  if (!viewed.ok()) return viewed.status();
  const PlanView& view = viewed.value();
  rows->assign(view.rows, view.rows + view.unique);
  // Kept per thread. All entries are -1 between calls, because clearing the array for each batch
  // would cost a write per row of the pass.
  thread_local std::vector<int32_t> place_of;
  if (place_of.size() < table_rows) place_of.resize(table_rows, -1);
  for (size_t u = 0; u < view.unique; ++u) {
    place_of[static_cast<size_t>(view.rows[u])] = static_cast<int32_t>(u);
  }
  size_t missing = nnz;
  for (size_t i = 0; i < nnz; ++i) {
    if (ids[i] < 0) continue;
    const int32_t place =
        static_cast<size_t>(ids[i]) < table_rows ? place_of[static_cast<size_t>(ids[i])] : -1;
    if (place < 0 && missing == nnz) missing = i;
    if (place >= 0) ids[i] = place;
  }
  for (const int32_t row : *rows) place_of[static_cast<size_t>(row)] = -1;
  if (missing != nnz) {
    return Error(Code::kInvalidArgument, "id %d at index %zu is not among the %zu rows of the plan",
                 ids[missing], missing, rows->size());
  }
  int32_t* const own = plan + 3;
  for (size_t u = 0; u < rows->size(); ++u) own[u] = static_cast<int32_t>(u);
  return Status::Ok();
}

}  // namespace pbx
