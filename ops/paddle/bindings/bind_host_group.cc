#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
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

// The bytes of a message, owned by numpy once it has arrived.
struct Arrived {
  std::unique_ptr<unsigned char[]> bytes;
  size_t size = 0;

  py::array_t<unsigned char> ToNumpy() {
    unsigned char* at = bytes.release();
    const py::capsule owner(at, [](void* p) { delete[] static_cast<unsigned char*>(p); });
    return py::array_t<unsigned char>({static_cast<py::ssize_t>(size)}, at, owner);
  }
};

// What each member sends. The entry of this member is empty.
py::list Exchange(HostGroup& group, int channel, const std::vector<py::buffer>& out) {
  std::vector<py::buffer_info> held;
  const auto from = BytesOf(out, false, &held);
  std::vector<Arrived> arrived(from.size());
  const HostGroup::Room room = [&](int member, size_t size, unsigned char** at) {
    Arrived& message = arrived[static_cast<size_t>(member)];
    message.bytes.reset(new (std::nothrow) unsigned char[std::max(size, size_t{1})]);
    message.size = size;
    *at = message.bytes.get();
    if (*at != nullptr) return Status::Ok();
    return Error(Code::kOutOfSpace, "no memory for %zu bytes of another rank", size);
  };
  Patiently(
      [&](const HostGroup::GoOn& go_on) { return group.Exchange(channel, from, room, go_on); });
  arrived[static_cast<size_t>(group.member())].bytes.reset(new unsigned char[1]);
  py::list found;
  for (Arrived& message : arrived) found.append(message.ToNumpy());
  return found;
}

// The Python function `add` as SummingGroup::OfHosts.
//
// It runs on a thread of its own. On the main thread, Python would run signal handlers in it, whose
// exceptions the executor of the program would lose.
SummingGroup::OfHosts OfHosts(const py::object& add) {
  if (add.is_none()) return {};
  const std::shared_ptr<py::object> held(new py::object(add), [](py::object* one) {
    // Where a process ends without clearing the sums, this runs at exit, after the interpreter: a
    // wait for the GIL would have no end.
    if (Py_IsInitialized() == 0) return;
    const py::gil_scoped_acquire acquired;
    delete one;
  });
  return [held](float* values, size_t n, bool pushed) {
    Status status;
    std::thread thread([&] {
      const py::gil_scoped_acquire acquired;
      try {
        const py::capsule borrowed(values, [](void*) {});
        (*held)(py::array_t<float>({static_cast<py::ssize_t>(n)}, values, borrowed), pushed);
      } catch (py::error_already_set& error) {
        status = Error(Code::kPeerGone, "%s", error.what());
      }
    });
    thread.join();
    return status;
  };
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
      .def("exchange", &Exchange)
      .def("counters", [](const HostGroup& group, int channel) {
        const ChannelCounters found = group.counters(channel);
        py::dict out;
        out["sent_bytes"] = found.sent_bytes;
        out["seconds"] = static_cast<double>(found.ns) / 1e9;
        out["waiting_seconds"] = static_cast<double>(found.waiting_ns) / 1e9;
        out["waits"] = found.waits;
        return out;
      });
  // For the programs of this process. group may be None, and so may of_hosts.
  module.def("set_sums",
             [](const std::shared_ptr<HostGroup>& group, int channel, const py::object& of_hosts) {
               SetSummingGroup(group, channel, OfHosts(of_hosts));
             });
}

}  // namespace pbx
