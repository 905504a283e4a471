#include "paddle/bindings/table_pooled.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "row/lists.h"
#include "row/plan.h"
#include "row/shared_ids.h"

namespace pbx {
namespace {

// offsets: (lists + 1), or none.
Status CheckAscending(const int32_t* offsets, size_t lists, size_t nnz) {
  if (lists != SIZE_MAX && offsets[0] == 0 && static_cast<size_t>(offsets[lists]) == nnz) {
    int32_t descents = 0;  // without a branch, the loop vectorises
    for (size_t i = 0; i < lists; ++i) descents |= offsets[i] > offsets[i + 1] ? 1 : 0;
    if (descents == 0) return Status::Ok();
  }
  return Error(Code::kInvalidArgument,
               "offsets: expected ascending values from 0 to %zu, the number of ids", nnz);
}

}  // namespace

void PullPooled(Table& table, const Array<int32_t>& ids, const Array<int32_t>& offsets,
                size_t slots, bool use_cvm, Array<float>& out) {
  const size_t width = std::max<size_t>(1, slots) * PooledWidth(table.layout(), use_cvm);
  const size_t instances = SizeOf(out) / width;
  if (SizeOf(out) != instances * width) {
    ThrowIfError(Error(Code::kInvalidArgument, "out: found %zu values, expected B * %zu",
                       SizeOf(out), width));
  }
  const SharedCells shared =
      ValueOrThrow(FindShared(instances * slots, offsets.data(), SizeOf(offsets)));
  const int32_t* id_data = ids.data();
  const int32_t* offset_data = offsets.data();
  float* out_data = out.mutable_data();
  const size_t nnz = SizeOf(ids);
  const py::gil_scoped_release release;
  ThrowIfError(table.EndStep());
  ThrowIfError(table.PullPooled(id_data, nnz, offset_data, instances, slots, use_cvm, out_data,
                                nullptr, 0, shared));
}

void PushPooled(Table& table, const Array<int32_t>& ids, const Array<int32_t>& offsets,
                size_t slots, bool use_cvm, const Array<float>& show_click,
                const Array<int32_t>& plan, const Array<float>& grad) {
  const auto counts = static_cast<size_t>(table.layout().head_columns());
  const size_t instances = SizeOf(show_click) / counts;
  CheckSize("show_click", SizeOf(show_click), instances * counts);
  const SharedCells shared =
      ValueOrThrow(FindShared(instances * slots, offsets.data(), SizeOf(offsets)));
  CheckSize("grad", SizeOf(grad), instances * slots * PooledWidth(table.layout(), use_cvm));
  const int32_t* id_data = ids.data();
  const int32_t* offset_data = offsets.data();
  const float* show_click_data = show_click.data();
  const int32_t* plan_data = plan.data();
  const float* grad_data = grad.data();
  const size_t nnz = SizeOf(ids);
  const size_t plan_size = SizeOf(plan);
  const py::gil_scoped_release release;
  ThrowIfError(table.EndStep());
  ThrowIfError(table.PushPooled(id_data, nnz, offset_data, instances, slots, use_cvm,
                                show_click_data, plan_data, plan_size, grad_data, 0, shared));
}

py::array_t<int32_t> MakePlan(const Array<int32_t>& ids, const Array<int32_t>& offsets,
                              int32_t stamp, const std::optional<Array<float>>& factors) {
  const size_t nnz = SizeOf(ids);
  const size_t segments = SizeOf(offsets) - 1;
  const int32_t* id_data = ids.data();
  const int32_t* offset_data = offsets.data();
  if (factors.has_value()) CheckSize("factors", SizeOf(*factors), nnz);
  const float* const of_ids = factors.has_value() ? factors->data() : nullptr;
  std::vector<int32_t> plan;
  {
    const py::gil_scoped_release release;
    ThrowIfError(CheckAscending(offset_data, segments, nnz));
    BuildPlan(id_data, offset_data, segments, stamp, &plan, of_ids);
  }
  return ToArray(std::move(plan));
}

py::tuple ExpandedLists(const Array<int32_t>& ids, const Array<int32_t>& offsets, size_t cells) {
  const SharedCells shared = ValueOrThrow(FindShared(cells, offsets.data(), SizeOf(offsets)));
  if (shared.list_of == nullptr) return py::make_tuple(ids, offsets);
  const int32_t *id_data = ids.data(), *offset_data = offsets.data();
  const size_t nnz = SizeOf(ids);
  std::vector<int32_t> all_ids, all_offsets;
  {
    const py::gil_scoped_release release;
    CellChains chains;
    ThrowIfError(CheckAscending(offset_data, shared.lists, nnz));
    ThrowIfError(ChainCells(shared, cells, &chains));
    ThrowIfError(ExpandLists(shared, cells, id_data, offset_data, &all_ids, &all_offsets));
  }
  return py::make_tuple(ToArray(std::move(all_ids)), ToArray(std::move(all_offsets)));
}

py::tuple WithSharedIds(const Array<int32_t>& ids, const Array<int32_t>& offsets, int32_t stamp,
                        const Array<uint8_t>& sequence,
                        const std::optional<Array<uint8_t>>& repeats) {
  const size_t cells = SizeOf(offsets) - 1;
  CheckSize("sequence", SizeOf(sequence), std::max<size_t>(1, SizeOf(sequence)));
  if (repeats.has_value()) CheckSize("repeats", SizeOf(*repeats), cells);
  const uint8_t* repeat_data = repeats.has_value() ? repeats->data() : nullptr;
  const std::vector<uint8_t> of_cell(sequence.data(), sequence.data() + SizeOf(sequence));
  CellIds batch{cells, ids.data(), offsets.data(), {}};
  const size_t nnz = SizeOf(ids);
  std::vector<int32_t> plan, own_ids, words;
  {
    const py::gil_scoped_release release;
    ThrowIfError(CheckAscending(batch.offsets, cells, nnz));
    BuildPlan(batch.ids, batch.offsets, cells, stamp, &plan);
    batch.plan = ValueOrThrow(ViewPlan(plan.data(), plan.size(), INT32_MAX, cells));
    ThrowIfError(ShareIds(batch, of_cell, repeat_data, &own_ids, &words));
  }
  return py::make_tuple(ToArray(std::move(own_ids)), ToArray(std::move(words)),
                        ToArray(std::move(plan)));
}

}  // namespace pbx
