#include "row/shared_ids.h"

namespace pbx {

Status ShareIds(const CellIds& batch, const std::vector<uint8_t>& sequence, const uint8_t* repeats,
                std::vector<int32_t>* ids_out, std::vector<int32_t>* words_out) {
  const size_t of_instance = sequence.size(), cells = batch.cells;
  const size_t no_row = batch.plan.unique, no_id = no_row + 1;
  std::vector<int32_t> row_of(cells);  // among the rows of the plan, if the cell is of a sequence
  for (size_t row = 0; row < batch.plan.unique; ++row) {
    const int32_t end = batch.plan.starts[row + 1];
    for (int32_t i = batch.plan.starts[row]; i < end; ++i) {
      row_of[static_cast<size_t>(batch.plan.segments[i] & ~kFirst)] = static_cast<int32_t>(row);
    }
  }
  std::vector<int32_t> list_of_row(no_id + 1, -1), list_of(cells);
  ids_out->clear();
  words_out->clear();
  for (size_t cell = 0, c = 0; cell < cells; ++cell, c = c + 1 == of_instance ? 0 : c + 1) {
    const int32_t begin = batch.offsets[cell], end = batch.offsets[cell + 1];
    int32_t* list = nullptr;  // of earlier cells with the same id
    if (sequence[c] != 0) {
      if (end - begin > 1) {
        return Error(Code::kInvalidArgument, "cell %zu of a sequence has %d ids, expected one",
                     cell, end - begin);
      }
      const bool has_row = begin != end && batch.ids[begin] >= 0;
      const size_t row = has_row ? static_cast<size_t>(row_of[cell]) : no_row;
      list = &list_of_row[begin == end ? no_id : row];
    } else if (repeats != nullptr && repeats[cell] != 0 && cell >= of_instance) {
      list = &list_of[cell - of_instance];
    }
    if (list != nullptr && *list >= 0) {
      list_of[cell] = *list;
      continue;
    }
    list_of[cell] = static_cast<int32_t>(words_out->size());
    if (list != nullptr) *list = list_of[cell];
    words_out->push_back(static_cast<int32_t>(ids_out->size()));
    ids_out->insert(ids_out->end(), batch.ids + begin, batch.ids + end);
  }
  const bool shared = words_out->size() < cells;
  words_out->push_back(static_cast<int32_t>(ids_out->size()));
  if (shared) words_out->insert(words_out->end(), list_of.begin(), list_of.end());
  return Status::Ok();
}

}  // namespace pbx
