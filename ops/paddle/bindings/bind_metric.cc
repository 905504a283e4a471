#include <pybind11/stl.h>

#include <utility>

#include "metric/bucket_auc.h"
#include "metric/group_auc.h"
#include "metric/weighted_auc.h"
#include "paddle/bindings/arrays.h"
#include "paddle/bindings/bindings.h"

namespace pbx {
namespace {

size_t SameSize(const Array<float>& predictions, const Array<float>& labels) {
  if (predictions.size() != labels.size()) {
    ThrowIfError(Error(Code::kInvalidArgument, "%zd predictions and %zd labels",
                       static_cast<ssize_t>(predictions.size()),
                       static_cast<ssize_t>(labels.size())));
  }
  return SizeOf(labels);
}

template <typename T>
std::vector<T> ToVector(const py::dict& state, const char* name) {
  if (!state.contains(name)) {
    ThrowIfError(Error(Code::kInvalidArgument, "the state of a metric has no '%s'", name));
  }
  const auto array = state[name].cast<Array<T>>();
  return std::vector<T>(array.data(), array.data() + array.size());
}

// ---- BucketAuc

py::dict ToDict(const MetricValues& v) {
  py::dict out;
  out["auc"] = v.auc;
  out["bucket_error"] = v.bucket_error;
  out["mae"] = v.mae;
  out["rmse"] = v.rmse;
  out["actual_ctr"] = v.actual_ctr;
  out["predicted_ctr"] = v.predicted_ctr;
  out["copc"] = v.copc;
  out["logloss"] = v.logloss;
  out["size"] = v.size;
  return out;
}

py::dict Values(const BucketAuc& metric) { return ToDict(metric.Compute()); }

py::dict StateOf(const BucketAuc& metric) {
  BucketAuc::State state = metric.state();
  py::dict out;
  out["buckets"] = ToArray(std::vector<uint64_t>{state.buckets});
  out["bucket"] = ToArray(std::move(state.bucket));
  out["negative"] = ToArray(std::move(state.negative));
  out["positive"] = ToArray(std::move(state.positive));
  out["sums"] = ToArray(std::move(state.sums));
  return out;
}

void Load(BucketAuc& metric, const py::dict& fields) {
  BucketAuc::State state;
  const std::vector<uint64_t> buckets = ToVector<uint64_t>(fields, "buckets");
  state.buckets = buckets.size() == 1 ? buckets[0] : 0;
  state.bucket = ToVector<uint64_t>(fields, "bucket");
  state.negative = ToVector<uint64_t>(fields, "negative");
  state.positive = ToVector<uint64_t>(fields, "positive");
  state.sums = ToVector<int64_t>(fields, "sums");
  ThrowIfError(metric.SetState(state));
}

// ---- WeightedAuc

py::dict Values(const WeightedAuc& metric) {
  const WeightedValues v = metric.Compute();
  py::dict out = ToDict(v);
  out["weight"] = v.weight;
  return out;
}

py::dict StateOf(const WeightedAuc& metric) {
  WeightedAuc::State state = metric.state();
  py::dict out;
  out["counts"] = ToArray(std::vector<uint64_t>{state.buckets, state.size});
  out["bucket"] = ToArray(std::move(state.bucket));
  out["negative"] = ToArray(std::move(state.negative));
  out["positive"] = ToArray(std::move(state.positive));
  out["sums"] = ToArray(std::move(state.sums));
  return out;
}

void Load(WeightedAuc& metric, const py::dict& fields) {
  WeightedAuc::State state;
  const std::vector<uint64_t> counts = ToVector<uint64_t>(fields, "counts");
  if (counts.size() == 2) {
    state.buckets = counts[0];
    state.size = counts[1];
  }
  state.bucket = ToVector<uint64_t>(fields, "bucket");
  state.negative = ToVector<uint64_t>(fields, "negative");
  state.positive = ToVector<uint64_t>(fields, "positive");
  state.sums = ToVector<int64_t>(fields, "sums");
  ThrowIfError(metric.SetState(state));
}

void AddWeighted(WeightedAuc& metric, const Array<float>& predictions, const Array<float>& labels,
                 const Array<float>& weights) {
  const size_t n = SameSize(predictions, labels);
  if (SizeOf(weights) != n) {
    ThrowIfError(
        Error(Code::kInvalidArgument, "%zu weights and %zu predictions", SizeOf(weights), n));
  }
  const float* p = predictions.data();
  const float* y = labels.data();
  const float* w = weights.data();
  const py::gil_scoped_release release;
  ThrowIfError(metric.Add(p, y, w, n));
}

// ---- ErrorSums

void AddErrors(ErrorSums& metric, const Array<float>& predictions, const Array<double>& targets) {
  const size_t n = SizeOf(predictions);
  if (SizeOf(targets) != n) {
    ThrowIfError(
        Error(Code::kInvalidArgument, "%zu targets and %zu predictions", SizeOf(targets), n));
  }
  const float* p = predictions.data();
  const double* y = targets.data();
  const py::gil_scoped_release release;
  ThrowIfError(metric.Add(p, y, n));
}

py::dict Values(const ErrorSums& metric) {
  py::dict out;
  out["mae"] = metric.mae();
  out["rmse"] = metric.rmse();
  out["actual_value"] = metric.actual();
  out["predicted_value"] = metric.predicted();
  out["size"] = metric.size();
  return out;
}

py::dict StateOf(const ErrorSums& metric) {
  py::dict out;
  out["size"] = ToArray(std::vector<uint64_t>{metric.size()});
  out["sums"] = ToArray(metric.state());
  return out;
}

void Load(ErrorSums& metric, const py::dict& fields) {
  const std::vector<uint64_t> size = ToVector<uint64_t>(fields, "size");
  const std::vector<int64_t> sums = ToVector<int64_t>(fields, "sums");
  if (size.size() != 1 || sums.size() != ErrorSums::kSums * ExactSum::kChunks) {
    ThrowIfError(Error(Code::kInvalidArgument, "the state of a metric has %zu sums, expected %zu",
                       sums.size(), ErrorSums::kSums * ExactSum::kChunks));
  }
  metric.SetState(size[0], sums.data());
}

// ---- GroupAuc

py::dict Values(const GroupAuc& metric) {
  const GroupAucValues v = metric.Compute();
  py::dict out;
  out["uauc"] = v.uauc;
  out["wuauc"] = v.wuauc;
  out["groups"] = v.groups;
  out["size"] = v.size;
  return out;
}

py::dict StateOf(const GroupAuc& metric) {
  GroupAuc::State state = metric.state();
  py::dict out;
  out["groups"] = ToArray(std::move(state.groups));
  out["predictions"] = ToArray(std::move(state.predictions));
  out["labels"] = ToArray(std::move(state.labels));
  return out;
}

void AddGroups(GroupAuc& metric, const Array<uint64_t>& groups, const Array<float>& predictions,
               const Array<float>& labels) {
  const size_t n = SameSize(predictions, labels);
  if (SizeOf(groups) != n) {
    ThrowIfError(
        Error(Code::kInvalidArgument, "%zu groups and %zu predictions", SizeOf(groups), n));
  }
  const uint64_t* g = groups.data();
  const float* p = predictions.data();
  const float* y = labels.data();
  const py::gil_scoped_release release;
  ThrowIfError(metric.Add(g, p, y, n));
}

void AddPairs(BucketAuc& metric, const Array<float>& predictions, const Array<float>& labels) {
  const size_t n = SameSize(predictions, labels);
  const float* p = predictions.data();
  const float* y = labels.data();
  const py::gil_scoped_release release;
  ThrowIfError(metric.Add(p, y, n));
}

}  // namespace

void BindMetric(py::module_& module) {
  py::class_<BucketAuc>(module, "BucketAuc")
      .def(py::init<size_t>(), py::arg("buckets") = 1000000)
      .def("add", &AddPairs)
      .def("merge",
           [](BucketAuc& self, const BucketAuc& other) { ThrowIfError(self.Merge(other)); })
      .def("reset", &BucketAuc::Reset)
      .def("compute", [](const BucketAuc& self) { return Values(self); })
      .def("state", [](const BucketAuc& self) { return StateOf(self); })
      .def("load_state", [](BucketAuc& self, const py::dict& state) { Load(self, state); });
  py::class_<WeightedAuc>(module, "WeightedAuc")
      .def(py::init<size_t>(), py::arg("buckets") = 1000000)
      .def("add", &AddWeighted)
      .def("merge",
           [](WeightedAuc& self, const WeightedAuc& other) { ThrowIfError(self.Merge(other)); })
      .def("compute", [](const WeightedAuc& self) { return Values(self); })
      .def("state", [](const WeightedAuc& self) { return StateOf(self); })
      .def("load_state", [](WeightedAuc& self, const py::dict& state) { Load(self, state); });
  py::class_<ErrorSums>(module, "ErrorSums")
      .def(py::init<>())
      .def("add", &AddErrors)
      .def("merge", &ErrorSums::Merge)
      .def("compute", [](const ErrorSums& self) { return Values(self); })
      .def("state", [](const ErrorSums& self) { return StateOf(self); })
      .def("load_state", [](ErrorSums& self, const py::dict& state) { Load(self, state); });
  py::class_<GroupAuc>(module, "GroupAuc")
      .def(py::init<>())
      .def("add", &AddGroups)
      .def("merge",
           [](GroupAuc& self, const GroupAuc& other) {
             const GroupAuc::State state = other.state();
             ThrowIfError(self.Add(state.groups.data(), state.predictions.data(),
                                   state.labels.data(), state.labels.size()));
           })
      .def("compute", [](const GroupAuc& self) { return Values(self); })
      .def("state", [](const GroupAuc& self) { return StateOf(self); })
      .def("load_state", [](GroupAuc& self, const py::dict& fields) {
        const std::vector<uint64_t> groups = ToVector<uint64_t>(fields, "groups");
        const std::vector<float> predictions = ToVector<float>(fields, "predictions");
        const std::vector<float> labels = ToVector<float>(fields, "labels");
        if (predictions.size() != groups.size() || labels.size() != groups.size()) {
          ThrowIfError(Error(Code::kInvalidArgument,
                             "the state of a metric has %zu groups, %zu predictions, %zu labels",
                             groups.size(), predictions.size(), labels.size()));
        }
        GroupAuc loaded;
        ThrowIfError(loaded.Add(groups.data(), predictions.data(), labels.data(), groups.size()));
        self = std::move(loaded);
      });
}

}  // namespace pbx
