// Parity files, and the conversions between feasigns and keys, for saves and the upkeep of stores.
#include "paddle/bindings/arrays.h"
#include "paddle/bindings/bindings.h"
#include "row/feasign.h"
#include "store/parity.h"

#include <pybind11/stl.h>

namespace pbx {
namespace {

template <typename Convert>
py::array_t<uint64_t> Each(const Array<uint64_t>& values, Convert convert) {
  std::vector<uint64_t> out(values.data(), values.data() + SizeOf(values));
  for (uint64_t& value : out) value = convert(value);
  return ToArray(std::move(out));
}

py::dict ToDict(const ParityIndex& index) {
  py::list members;
  for (const ParityMember& member : index.members) {
    py::dict fields;
    fields["file"] = member.file;
    fields["bytes"] = member.bytes;
    fields["crc32c"] = member.crc;
    members.append(fields);
  }
  py::dict out;
  out["members"] = members;
  out["body_bytes"] = index.body_bytes;
  return out;
}

}  // namespace

void BindParity(py::module_& module) {
  using Release = py::call_guard<py::gil_scoped_release>;
  module.def("keys_of", [](const Array<uint64_t>& feasigns) { return Each(feasigns, &KeyOf); });
  module.def("feasigns_of", [](const Array<uint64_t>& keys) { return Each(keys, &FeasignOf); });
  module.def(
      "write_parity",
      [](const std::string& folder, const std::vector<std::string>& files,
         const std::string& path) { ThrowIfError(WriteParity(folder, files, path).status()); },
      py::arg("folder"), py::arg("files"), py::arg("path"), Release());
  module.def("read_parity",
             [](const std::string& path) { return ToDict(ValueOrThrow(ReadParityIndex(path))); });
  module.def(
      "check_parity", [](const std::string& path) { ThrowIfError(CheckParity(path)); }, Release());
  module.def(
      "rebuild_member",
      [](const std::string& path, const std::string& folder, const std::string& lost,
         const std::string& out) { ThrowIfError(RebuildMember(path, folder, lost, out)); },
      py::arg("path"), py::arg("folder"), py::arg("lost"), py::arg("out"), Release());
}

}  // namespace pbx
