// Packs repeated lists of a batch once (row/lists.h): lists that a chunk stores once
// (shared_lists.h), if their instances are neighbours in the batch too.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "feed/instances/instances_impl.h"

namespace pbx {

namespace {
using Span = std::pair<size_t, size_t>;  // where a list begins and ends
}

void Instances::Impl::JoinRepeats(size_t table, size_t begin, size_t end, SparseBatch* out) const {
  // Replaced slots have lists of other instances. They are rare, so such batches are packed without
  // sharing.
  if (shared_counts.lists == 0 || !replaced.empty()) return;
  const size_t own =
      tables == 1 ? slots
                  : static_cast<size_t>(std::count(table_of_slot.begin(), table_of_slot.end(),
                                                   static_cast<uint8_t>(table)));
  const size_t cells = (end - begin) * own;
  std::vector<int32_t> list_of(cells);
  std::vector<Span> before(slots);  // where the lists of the instance before lie
  uint32_t chunk = 0;
  size_t cell = 0, lists = 0;
  int32_t to = 0;  // ids and offsets are moved over the removed ids and offsets
  for (size_t i = begin; i < end; ++i) {
    const bool follows = i > begin && places[i].chunk == chunk;
    chunk = places[i].chunk;
    EachList(places[i], [&](size_t s, size_t first, size_t last) {
      if (tables > 1 && table_of_slot[s] != table) return;
      const size_t length = last - first;
      if (follows && length > 0 && Span(first, last) == before[s]) {
        list_of[cell] = list_of[cell - own];
      } else {
        const int32_t from = out->offsets[cell];
        if (from != to && length > 0) {
          std::memmove(out->ids.data() + to, out->ids.data() + from, length * sizeof(int32_t));
        }
        list_of[cell] = static_cast<int32_t>(lists);
        out->offsets[lists++] = to;
        to += static_cast<int32_t>(length);
      }
      before[s] = {first, last};
      ++cell;
    });
  }
  out->offsets[lists] = to;
  if (lists == cells) return;
  out->ids.resize(static_cast<size_t>(to));
  out->offsets.resize(lists + 1);
  out->offsets.insert(out->offsets.end(), list_of.begin(), list_of.end());
}

}  // namespace pbx
