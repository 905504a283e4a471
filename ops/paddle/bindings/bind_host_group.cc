#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "paddle/bindings/arrays.h"
#include "paddle/bindings/bindings.h"
#include "paddle/operators/host_groups.h"

namespace pbx {
namespace {

// The bytes of contiguous arrays. `held` keeps them alive for the call.
std::vector<HostGroup::Bytes> BytesOf(const std::vector<py::buffer>& arrays, bool writable,
                                      std::vector<py::buffer_info>* held) {
  std::vector<HostGroup::Bytes> bytes;
  for (const py::buffer& array : arrays) {
    held->push_back(array.request(writable));
    const py::buffer_info& info = held->back();
    auto stride = info.itemsize;
    for (size_t axis = info.shape.size(); axis-- > 0 && info.size != 0;) {
      if (info.shape[axis] != 1 && info.strides[axis] != stride) {
        ThrowIfError(Error(Code::kInvalidArgument, "an array to exchange is not contiguous"));
      }
      stride *= info.shape[axis];
    }
    bytes.emplace_back(static_cast<unsigned char*>(info.ptr),
                       static_cast<size_t>(info.size * info.itemsize));
  }
  return bytes;
}

// Runs a call of the group without the GIL. During a wait, Python's signal handlers run; an
// exception that they raise ends the wait.
template <typename Call>
void Patiently(const Call& call) {
  std::optional<py::error_already_set> raised;
  const HostGroup::GoOn go_on = [&raised] {
    const py::gil_scoped_acquire acquired;
    if (PyErr_CheckSignals() != 0) raised.emplace();
    return !raised.has_value();
  };
  Status status;
  {
    const py::gil_scoped_release release;
    status = call(go_on);
  }
  if (raised.has_value()) throw std::move(*raised);
  ThrowIfError(status);
}

}  // namespace

void BindHostGroup(py::module_& module) {
  py::class_<HostGroup, std::shared_ptr<HostGroup>>(module, "HostGroup")
      .def_static("create",
                  [](int channels, std::vector<std::string> names) {
                    return std::shared_ptr<HostGroup>(
                        ValueOrThrow(HostGroup::Create(channels, std::move(names))));
                  })
      .def_static(
          "open",
          [](const std::string& where, int member, int channels, std::vector<std::string> names) {
            return std::shared_ptr<HostGroup>(
                ValueOrThrow(HostGroup::Open(where, member, channels, std::move(names))));
          })
      .def_property_readonly("where", &HostGroup::where)
      .def("watch", [](HostGroup& group) { ThrowIfError(group.Watch()); })
      .def("leave", &HostGroup::Leave)
      .def("check",
           [](const HostGroup& group, int member) {
             if (member < 0 || member >= group.members()) {
               ThrowIfError(
                   Error(Code::kInvalidArgument, "member %d of %d", member, group.members()));
             }
             ThrowIfError(group.CheckPeer(member));
           })
      .def("swap",
           [](HostGroup& group, int channel, const std::vector<py::buffer>& out,
              const std::vector<py::buffer>& into) {
             std::vector<py::buffer_info> held;
             const auto from = BytesOf(out, false, &held), to = BytesOf(into, true, &held);
             Patiently([&](const HostGroup::GoOn& go_on) {
               return group.Swap(channel, from, to, go_on);
             });
           })
      .def("counters",
           [](const HostGroup& group, int channel) {
             const ChannelCounters found = group.counters(channel);
             py::dict out;
             out["sent_bytes"] = found.sent_bytes;
             out["seconds"] = static_cast<double>(found.ns) / 1e9;
             out["waiting_seconds"] = static_cast<double>(found.waiting_ns) / 1e9;
             out["waits"] = found.waits;
             return out;
           })
      .def_static("sums_here", [] { return !FindSummingGroup().group.expired(); })
      .def("sums", [](const std::shared_ptr<HostGroup>& group, int channel) {
        SetSummingGroup(group, channel);  // for the programs of this process
      });
}

}  // namespace pbx
