#include <pybind11/stl.h>

#include <memory>
#include <tuple>
#include <utility>

#include "paddle/bindings/arrays.h"
#include "paddle/bindings/bind_batch.h"
#include "paddle/bindings/bindings.h"
#include "paddle/bindings/table_config.h"
#include "row/compact.h"
#include "table/batch_table.h"
#include "table/registry.h"
#include "table/table.h"

namespace pbx {
namespace {

std::shared_ptr<BatchTable> OpenBatchTable(const std::string& name, int embedx_dim, int expand_dim,
                                           int counts, bool late, int threads,
                                           const std::string& on_bad_grad) {
  BatchTableConfig config;
  config.name = name;
  config.embedx_dim = embedx_dim;
  config.expand_dim = expand_dim;
  config.counts = counts;
  config.late = late;
  config.threads = threads;
  config.on_bad_grad = OnBadGradFrom(on_bad_grad);
  auto table = std::make_shared<BatchTable>(config);
  ThrowIfError(RegisterTable(table));
  return table;
}

size_t ColumnsOf(const RowAccess& table) {
  const auto plain = static_cast<size_t>(table.layout().pull_columns());
  return plain + static_cast<size_t>(table.layout().expand_dim);
}

// Copies rows of the open pass, to be sent to other ranks. ids: (n). out: (n, P + E).
void PullInto(Table& table, const Array<int32_t>& ids, Array<float>& out) {
  ExpectRows("out", SizeOf(out), SizeOf(ids), ColumnsOf(table));
  const int32_t* id_data = ids.data();
  float* to = out.mutable_data();
  const size_t n = SizeOf(ids);
  const py::gil_scoped_release release;
  DevicePass* const device = table.device();
  if (device != nullptr) {
    ThrowIfError(device->PullToHost(id_data, n, to));
    return;
  }
  const bool extended = table.layout().expand_dim != 0;
  ThrowIfError(extended ? table.PullExtended(id_data, n, to) : table.Pull(id_data, n, to));
}

// ids: (n). Returns (n) uint8.
py::array_t<uint8_t> HaveEmbedx(Table& table, const Array<int32_t>& ids) {
  std::vector<uint8_t> found(SizeOf(ids));
  const int32_t* id_data = ids.data();
  {
    const py::gil_scoped_release release;
    DevicePass* const device = table.device();
    ThrowIfError(device != nullptr ? device->HaveEmbedx(id_data, found.size(), found.data())
                                   : table.HaveEmbedx(id_data, found.size(), found.data()));
  }
  return ToArray(std::move(found));
}

// Applies the merged gradients of ranks. plan: made of n ids, with each id as its own segment.
// grad: (n, P + E), in the order of these ids; with `late` (n, P + 1 + E) (RowAccess::PushPlanned).
void PushPlanned(Table& table, const Array<int32_t>& plan, const Array<float>& grad, bool late) {
  const size_t columns = ColumnsOf(table) + (late ? 1 : 0), n = SizeOf(grad) / columns;
  ExpectRows("grad", SizeOf(grad), n, columns);
  const int32_t* plan_data = plan.data();
  const size_t plan_size = SizeOf(plan);
  const float* from = grad.data();
  const py::gil_scoped_release release;
  DevicePass* const device = table.device();
  if (device != nullptr) {
    ThrowIfError(device->PushFromHost(plan_data, plan_size, n, from));
    return;
  }
  ThrowIfError(table.layout().expand_dim != 0
                   ? table.PushExtendedPlanned(plan_data, plan_size, n, from, 1.0f, late)
                   : table.PushPlanned(plan_data, plan_size, n, from, 1.0f, late));
}

// lists: tuples (keys, slots, counts); slots and counts may be empty. Returns keys, slots, counts
// and a list of places.
py::tuple Merge(
    const std::vector<std::tuple<Array<uint64_t>, Array<uint16_t>, Array<uint32_t>>>& arrays) {
  std::vector<KeyList> lists;
  for (const auto& [keys, slots, counts] : arrays) {
    const size_t n = SizeOf(keys);
    if ((SizeOf(slots) != 0 && SizeOf(slots) != n) ||
        (SizeOf(counts) != 0 && SizeOf(counts) != n)) {
      ThrowIfError(Error(Code::kInvalidArgument, "%zu keys, %zu slots, %zu counts", n,
                         SizeOf(slots), SizeOf(counts)));
    }
    lists.push_back({keys.data(), SizeOf(slots) == n ? slots.data() : nullptr,
                     SizeOf(counts) == n ? counts.data() : nullptr, n});
  }
  MergedKeys merged;
  {
    const py::gil_scoped_release release;
    ThrowIfError(MergeKeys(lists, &merged));
  }
  py::list places;
  for (std::vector<int32_t>& of_list : merged.places) places.append(ToArray(std::move(of_list)));
  return py::make_tuple(ToArray(std::move(merged.keys)), ToArray(std::move(merged.slots)),
                        ToArray(std::move(merged.counts)), places);
}

// Changes ids and plan in place. Returns the rows of their new numbers (CompactBatch).
py::array_t<int32_t> Compact(Array<int32_t>& ids, Array<int32_t>& plan, size_t table_rows) {
  int32_t* id_data = ids.mutable_data();
  int32_t* plan_data = plan.mutable_data();
  const size_t nnz = SizeOf(ids), plan_size = SizeOf(plan);
  std::vector<int32_t> rows;
  {
    const py::gil_scoped_release release;
    ThrowIfError(CompactBatch(id_data, nnz, plan_data, plan_size, table_rows, &rows));
  }
  return ToArray(std::move(rows));
}

}  // namespace

void BindRanks(py::module_& module) {
  py::class_<BatchTable, std::shared_ptr<BatchTable>> batch(module, "BatchTable");
  batch
      .def(py::init(&OpenBatchTable), py::arg("name"), py::arg("embedx_dim"), py::arg("expand_dim"),
           py::arg("counts"), py::arg("late"), py::arg("threads"), py::arg("on_bad_grad"))
      .def("merged", [](BatchTable& t) {
        {
          const py::gil_scoped_release release;
          ThrowIfError(t.EndStep());
        }
        const float* const merged = t.merged();
        const std::vector<py::ssize_t> shape = {static_cast<py::ssize_t>(t.rows()),
                                                static_cast<py::ssize_t>(t.gradient_columns())};
        // The memory of the table, valid until the next batch. The array keeps the table alive.
        return py::array_t<float>(shape, merged, py::cast(&t));
      });
  DefBatch(&batch);
  module.def("pull_into", &PullInto, py::arg("table"), py::arg("ids").noconvert(),
             py::arg("out").noconvert());
  module.def("have_embedx", &HaveEmbedx, py::arg("table"), py::arg("ids").noconvert());
  module.def("push_planned", &PushPlanned, py::arg("table"), py::arg("plan").noconvert(),
             py::arg("grad").noconvert(), py::arg("late"));
  module.def("merge_keys", &Merge, py::arg("lists"));
  module.def("compact_batch", &Compact, py::arg("ids").noconvert(), py::arg("plan").noconvert(),
             py::arg("table_rows"));
}

}  // namespace pbx
