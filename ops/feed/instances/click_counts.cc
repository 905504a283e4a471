// The shows and clicks behind click priors (docs/models.md, "Click priors").
#include <cinttypes>

#include "feed/instances/instances_impl.h"

namespace pbx {
namespace {

// (S) the place of each slot among `slots`, -1 for a slot that is not there.
Status PlacesOf(const std::vector<uint16_t>& slots, size_t count, std::vector<int32_t>* places) {
  places->assign(count, -1);
  for (size_t k = 0; k < slots.size(); ++k) {
    if (slots[k] >= count) {
      return Error(Code::kInvalidArgument, "click counts of sparse slot %d, but there are %zu",
                   int{slots[k]}, count);
    }
    (*places)[slots[k]] = static_cast<int32_t>(k);
  }
  return Status::Ok();
}

Status CheckRow(int32_t row, size_t rows) {
  if (row < 0 || static_cast<size_t>(row) < rows) return Status::Ok();
  return Error(Code::kInvalidArgument, "click counts: found row %" PRId32 ", expected below %zu",
               row, rows);
}

}  // namespace

Status Instances::AddClickCounts(const NumberedRange& range, const int32_t* row_of_position,
                                 const Folds& folds, const std::vector<uint16_t>& slots,
                                 size_t rows, float* counts) const {
  const Impl& self = *impl_;
  PBX_RETURN_IF_ERROR(self.CheckIndexed("AddClickCounts"));
  PBX_RETURN_IF_ERROR(self.CheckRange(range.begin, range.end));
  std::vector<int32_t> place;
  PBX_RETURN_IF_ERROR(PlacesOf(slots, self.slots, &place));
  int32_t last = -1;  // the largest row
  for (size_t i = range.begin; i < range.end; ++i) {
    const size_t fold = folds.Of(range.NumberOf(i));
    self.EachFedList(i, [&](size_t slot, const int32_t* positions, size_t n) {
      if (place[slot] < 0) return;
      for (size_t k = 0; k < n; ++k) {
        const int32_t row = row_of_position[positions[k]];
        last = row > last ? row : last;
        if (row < 0 || static_cast<size_t>(row) >= rows) continue;
        float* const pair = counts + (static_cast<size_t>(row) * folds.count + fold) * 2;
        pair[0] += 1.0f;
        pair[1] += self.labels[i];
      }
    });
  }
  return CheckRow(last, rows);
}

Status Instances::PackClickCounts(const NumberedRange& range, const int32_t* row_of_position,
                                  const Folds& folds, const std::vector<uint16_t>& slots,
                                  const float* counts, size_t rows, float* out) const {
  const Impl& self = *impl_;
  PBX_RETURN_IF_ERROR(self.CheckIndexed("PackClickCounts"));
  PBX_RETURN_IF_ERROR(self.CheckRange(range.begin, range.end));
  std::vector<int32_t> place;  // of a slot in the output
  PBX_RETURN_IF_ERROR(PlacesOf(slots, self.slots, &place));
  int32_t last = -1;
  for (size_t i = range.begin; i < range.end; ++i, out += 2 * slots.size()) {
    const size_t fold = folds.Of(range.NumberOf(i));
    self.EachFedList(i, [&](size_t slot, const int32_t* positions, size_t n) {
      if (place[slot] < 0) return;
      float show = 0.0f, click = 0.0f;
      for (size_t k = 0; k < n; ++k) {
        const int32_t row = row_of_position[positions[k]];
        last = row > last ? row : last;
        if (row < 0 || static_cast<size_t>(row) >= rows) continue;
        const float* const pair = counts + (static_cast<size_t>(row) * folds.count + fold) * 2;
        show += pair[0];
        click += pair[1];
      }
      out[place[slot]] = show;
      out[slots.size() + static_cast<size_t>(place[slot])] = click;
    });
  }
  return CheckRow(last, rows);
}

}  // namespace pbx
