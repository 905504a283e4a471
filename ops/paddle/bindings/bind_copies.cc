#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/stl.h>
#include "device/device_arguments.h"
#include "paddle/bindings/arrays.h"
#include "paddle/bindings/bindings.h"
#include "paddle/phi/core/allocator.h"
#include "paddle/phi/core/dense_tensor.h"

#include "paddle/extension.h"

namespace pbx {
namespace {

using Parcel = std::unique_ptr<pbx_hbm_parcel, Close>;
constexpr size_t kAlignment = 256;

// Copies the arrays of feeds to a GPU, into memory outside of Paddle's pool, which reuses its
// blocks in the order of its own stream. A parcel is used again when no tensor in it is left. The
// program that read them must have ended on the device by then, as at the end of Executor.run.
class FeedCopies : public std::enable_shared_from_this<FeedCopies> {
 public:
  FeedCopies(const std::string& device, int gpu)
      : place_(phi::CustomPlace(device, gpu)), gpu_(gpu) {}

  // arrays: name -> array of numpy, contiguous. Any thread may call it.
  std::vector<std::pair<std::string, paddle::Tensor>> Send(
      const std::vector<std::pair<std::string, py::array>>& arrays);

 private:
  struct Lease;
  class Slice;

  std::shared_ptr<Lease> Take();

  const phi::Place place_;
  const int gpu_;
  std::mutex mutex_;
  std::vector<Parcel> free_;
};

struct FeedCopies::Lease {
  std::shared_ptr<FeedCopies> of;
  Parcel parcel;

  Lease(std::shared_ptr<FeedCopies> copies, Parcel taken)
      : of(std::move(copies)), parcel(std::move(taken)) {}
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() {
    const std::lock_guard<std::mutex> lock(of->mutex_);
    of->free_.push_back(std::move(parcel));
  }
};

// The memory of a tensor: a part of a parcel.
class FeedCopies::Slice : public phi::Allocation {
 public:
  Slice(void* data, size_t bytes, const phi::Place& place, std::shared_ptr<Lease> lease)
      : phi::Allocation(data, bytes, place), lease_(std::move(lease)) {}

 private:
  const std::shared_ptr<Lease> lease_;
};

std::shared_ptr<FeedCopies::Lease> FeedCopies::Take() {
  Parcel parcel;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!free_.empty()) {
      parcel = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (parcel == nullptr) {
    pbx_hbm_parcel* opened = nullptr;
    ThrowIfError(StatusOf(Hbm().open_parcel(gpu_, &opened), "feeds to the GPU"));
    parcel.reset(opened);
  }
  return std::make_shared<Lease>(shared_from_this(), std::move(parcel));
}

phi::DataType TypeOf(const py::array& array) {
  if (array.dtype().is(py::dtype::of<float>())) return phi::DataType::FLOAT32;
  if (array.dtype().is(py::dtype::of<int32_t>())) return phi::DataType::INT32;
  if (array.dtype().is(py::dtype::of<int64_t>())) return phi::DataType::INT64;
  ThrowIfError(Error(Code::kInvalidArgument, "a feed of dtype %s: expected float32, int32 or int64",
                     std::string(py::str(array.dtype())).c_str()));
  return phi::DataType::UNDEFINED;
}

std::vector<std::pair<std::string, paddle::Tensor>> FeedCopies::Send(
    const std::vector<std::pair<std::string, py::array>>& arrays) {
  struct Part {
    const void* from;
    size_t at, bytes;
    phi::DenseTensorMeta meta;
  };
  std::vector<Part> parts;
  size_t total = kAlignment;  // never null
  for (const auto& [name, array] : arrays) {
    const std::vector<int64_t> shape(array.shape(), array.shape() + array.ndim());
    const auto bytes = static_cast<size_t>(array.nbytes());
    parts.push_back({array.data(), total - kAlignment, bytes,
                     phi::DenseTensorMeta(TypeOf(array), common::make_ddim(shape))});
    total += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  std::shared_ptr<Lease> lease;
  char* on_device = nullptr;
  {
    const py::gil_scoped_release release;
    lease = Take();
    void *pinned = nullptr, *there = nullptr;
    ThrowIfError(StatusOf(Hbm().fit_parcel(lease->parcel.get(), total, &pinned, &there),
                          "feeds to the GPU"));
    for (const Part& part : parts) {
      std::memcpy(static_cast<char*>(pinned) + part.at, part.from, part.bytes);
    }
    ThrowIfError(StatusOf(Hbm().send_parcel(lease->parcel.get(), total), "feeds to the GPU"));
    on_device = static_cast<char*>(there);
  }
  std::vector<std::pair<std::string, paddle::Tensor>> sent;
  for (size_t i = 0; i < parts.size(); ++i) {
    auto memory = std::make_shared<Slice>(on_device + parts[i].at, parts[i].bytes, place_, lease);
    sent.emplace_back(arrays[i].first, paddle::Tensor(std::make_shared<phi::DenseTensor>(
                                           std::move(memory), parts[i].meta)));
  }
  return sent;
}

}  // namespace

void BindCopies(py::module_& module) {
  py::class_<FeedCopies, std::shared_ptr<FeedCopies>>(module, "FeedCopies")
      .def(py::init<std::string, int>(), py::arg("device"), py::arg("gpu"))
      .def("send", &FeedCopies::Send);
}

}  // namespace pbx
