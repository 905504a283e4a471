#include "paddle/host_groups.h"

#include <pybind11/pybind11.h>

#include <mutex>
#include <optional>

#include "paddle/kernel_guard.h"

namespace pbx {
namespace {

std::mutex mutex;
SummingGroup summing;

// Values (n) -> Sum (n) over the members of the group, the same bits on each.
std::vector<Tensor> SumOverRanks(const Tensor& values) {
  Tensor sum = paddle::empty(values.shape(), DataType::FLOAT32, values.place());
  Guard("box_sum_over_ranks", [&] {
    PBX_RETURN_IF_ERROR(Expect(values, "Values", DataType::FLOAT32));
    const SummingGroup found = FindSummingGroup();
    const std::shared_ptr<HostGroup> group = found.group.lock();
    if (group == nullptr) {
      return Error(Code::kFailedPrecondition,
                   "no ranks have joined on this host: World.join comes before the program runs");
    }
    // Dygraph holds it, and a thread of this process may have to answer the others meanwhile.
    std::optional<pybind11::gil_scoped_release> release;
    if (PyGILState_Check() != 0) release.emplace();
    std::memcpy(sum.data<float>(), values.data<float>(), Count(values) * sizeof(float));
    return group->Sum(found.lane, sum.data<float>(), Count(values));
  });
  return {sum};
}

std::vector<Shape> InferShape(const Shape& values) { return {values}; }
std::vector<DataType> InferDtype(const DataType& values) { return {values}; }

}  // namespace

void SetSummingGroup(const std::shared_ptr<HostGroup>& group, int lane) {
  const std::lock_guard<std::mutex> lock(mutex);
  summing = {group, lane};
}

SummingGroup FindSummingGroup() {
  const std::lock_guard<std::mutex> lock(mutex);
  return summing;
}

}  // namespace pbx

PD_BUILD_OP(box_sum_over_ranks)
    .Inputs({"Values"})
    .Outputs({"Sum"})
    .SetKernelFn(PD_KERNEL(pbx::SumOverRanks))
    .SetInferShapeFn(PD_INFER_SHAPE(pbx::InferShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(pbx::InferDtype));
