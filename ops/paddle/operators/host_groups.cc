#include "paddle/operators/host_groups.h"

#include <pybind11/pybind11.h>

#include <mutex>
#include <optional>
#include <utility>

#include "paddle/operators/kernel_guard.h"

namespace pbx {
namespace {

std::mutex mutex;
SummingGroup summing;

// The sums over all ranks of parts, (n) values in total, times share.
Status SumParts(const std::vector<HostSum::Part>& parts, float share, bool pushed, float* sum,
                size_t n) {
  const SummingGroup found = FindSummingGroup();
  if (found.of_hosts != nullptr) {
    float* out = sum;
    for (const auto& [values, size] : parts) {
      for (size_t i = 0; i < size; ++i) out[i] = values[i] * share;
      out += size;
    }
    return found.of_hosts(sum, n, pushed);
  }
  if (const std::shared_ptr<HostGroup> group = found.group.lock()) {
    return found.sum->Add(parts, share, sum);
  }
  return Error(Code::kFailedPrecondition,
               "no ranks have joined: call World.join before the program runs");
}

// Sum (n) = sum over ranks of Gradients (n values in total) * Share (1). Every rank gets the same
// bits (docs/formats/exchange.md).
//
// pushed: `gradients` contain those of all anchors, so all pushes of the step have been done. Then
// ranks of several hosts exchange row gradients at the same time.
std::vector<Tensor> SumOverRanks(const std::vector<Tensor>& gradients, const Tensor& share,
                                 bool pushed) {
  size_t n = 0;
  for (const Tensor& gradient : gradients) n += Count(gradient);
  Tensor sum = paddle::empty({static_cast<int64_t>(n)}, DataType::FLOAT32, share.place());
  Guard("box_sum_over_ranks", [&] {
    PBX_RETURN_IF_ERROR(Expect(share, "Share", DataType::FLOAT32));
    if (Count(share) != 1) {
      return Error(Code::kInvalidArgument, "Share has %zu values, expected 1", Count(share));
    }
    std::vector<HostSum::Part> parts;
    for (const Tensor& gradient : gradients) {
      PBX_RETURN_IF_ERROR(Expect(gradient, "Gradients", DataType::FLOAT32));
      parts.emplace_back(gradient.data<float>(), Count(gradient));
    }
    // Dygraph holds the GIL, and another thread of this process may have to answer other ranks.
    std::optional<pybind11::gil_scoped_release> release;
    if (PyGILState_Check() != 0) release.emplace();
    return SumParts(parts, *share.data<float>(), pushed, sum.data<float>(), n);
  });
  return {sum};
}

std::vector<Shape> InferShape(const std::vector<Shape>& gradients, const Shape&, bool) {
  int64_t n = 0;
  for (const Shape& shape : gradients) {
    int64_t size = 1;
    for (const int64_t side : shape) size *= side;
    n += size;
  }
  return {{n}};
}
std::vector<DataType> InferDtype(const std::vector<DataType>&, const DataType& share) {
  return {share};
}

}  // namespace

void SetSummingGroup(const std::shared_ptr<HostGroup>& group, int channel,
                     SummingGroup::OfHosts of_hosts) {
  const std::lock_guard<std::mutex> lock(mutex);
  summing = {group, group != nullptr ? std::make_shared<HostSum>(group.get(), channel) : nullptr,
             std::move(of_hosts)};
}

SummingGroup FindSummingGroup() {
  const std::lock_guard<std::mutex> lock(mutex);
  return summing;
}

}  // namespace pbx

PD_BUILD_OP(box_sum_over_ranks)
    .Inputs({paddle::Vec("Gradients"), "Share"})
    .Outputs({"Sum"})
    .Attrs({"pushed: bool"})
    .SetKernelFn(PD_KERNEL(pbx::SumOverRanks))
    .SetInferShapeFn(PD_INFER_SHAPE(pbx::InferShape))
    .SetInferDtypeFn(PD_INFER_DTYPE(pbx::InferDtype));
