// The operators of side tables: rows by id, read-only, without a gradient.
#include <string>
#include <vector>

#include "paddle/operators/kernel_guard.h"
#include "table/side_registry.h"

namespace pbx {
namespace {

// (N, 1) gives (N, size), any other (...) gives (..., size). (1) also gives (1, size); otherwise
// the rank would depend on the number of ids.
Shape RowsShape(Shape ids, int size) {
  if (ids.size() > 1 && ids.back() == 1) ids.pop_back();
  ids.push_back(size);
  return ids;
}

Status GatherRows(const Tensor& ids, bool keyed, const std::string& name, int size,
                  SideTable::Stray stray, Tensor* out) {
  PBX_RETURN_IF_ERROR(Expect(ids, "Id", DataType::INT64));
  Result<std::shared_ptr<SideTable>> found = FindSideTable(keyed, name);
  if (!found.ok()) return found.status();
  const std::shared_ptr<SideTable>& table = found.value();  // kept alive by `found`
  const SideTableConfig& config = table->config();
  if (size < 1 || static_cast<size_t>(size) != config.dim) {
    return Error(Code::kInvalidArgument, "size is %d, side table '%s' has %zu columns", size,
                 config.name.c_str(), config.dim);
  }
  *out = paddle::empty(RowsShape(ids.shape(), size), DataType::FLOAT32, ids.place());
  return table->Gather(ids.data<int64_t>(), Count(ids), stray, out->data<float>());
}

std::vector<Tensor> PullCacheValue(const Tensor& ids, const std::string& table, int size) {
  Tensor out;
  Guard("pull_cache_value",
        [&] { return GatherRows(ids, false, table, size, SideTable::Stray::kIsError, &out); });
  return {out};
}

std::vector<Tensor> LookupInput(const Tensor& ids, const std::string& table, int size) {
  Tensor out;
  Guard("lookup_input",
        [&] { return GatherRows(ids, true, table, size, SideTable::Stray::kIsRow0, &out); });
  return {out};
}

std::vector<Shape> SideInferShape(const Shape& ids, const std::string& /*table*/, int size) {
  return {RowsShape(ids, size)};
}
std::vector<DataType> SideInferDtype(const DataType& /*ids*/) { return {DataType::FLOAT32}; }

}  // namespace
}  // namespace pbx

PD_BUILD_OP(pull_cache_value)
    .Inputs({"Id"})
    .Outputs({"Out"})
    .Attrs({"table: std::string", "size: int"})
    .SetKernelFn(PD_KERNEL(pbx::PullCacheValue))
    .SetInferShapeFn(PD_INFER_SHAPE(pbx::SideInferShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(pbx::SideInferDtype));

PD_BUILD_OP(lookup_input)
    .Inputs({"Id"})
    .Outputs({"Out"})
    .Attrs({"table: std::string", "size: int"})
    .SetKernelFn(PD_KERNEL(pbx::LookupInput))
    .SetInferShapeFn(PD_INFER_SHAPE(pbx::SideInferShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(pbx::SideInferDtype));
