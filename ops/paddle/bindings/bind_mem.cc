// The MEM tier alone, without a table, for benchmarks.
#include "paddle/bindings/arrays.h"
#include "paddle/bindings/bindings.h"
#include "store/mem_tier.h"

namespace pbx {
namespace {

// The tier and the size of its rows, for the checks.
struct OwnedMem {
  std::unique_ptr<MemTier> tier;
  size_t row_bytes;
};

std::unique_ptr<OwnedMem> Open(uint32_t row_bytes, uint64_t budget_bytes) {
  if (row_bytes < 4) {
    ThrowIfError(
        Error(Code::kInvalidArgument, "row_bytes: expected at least 4, found %u", row_bytes));
  }
  auto owned = std::make_unique<OwnedMem>();
  owned->row_bytes = row_bytes;
  owned->tier = ValueOrThrow(MemTier::Open(row_bytes, budget_bytes));
  return owned;
}

// InvalidArgument unless keys (n) ascend strictly.
void CheckKeys(const uint64_t* keys, size_t n) {
  for (size_t i = 1; i < n; ++i) {
    if (keys[i - 1] < keys[i]) continue;
    ThrowIfError(Error(Code::kInvalidArgument, "keys: not ascending at %zu of %zu", i, n));
  }
}

// found: (n), overwritten.
void Find(const OwnedMem& owned, const Array<uint64_t>& keys, Array<uint8_t>& found) {
  const size_t n = SizeOf(keys);
  CheckSize("found", SizeOf(found), n);
  const uint64_t* key_data = keys.data();
  uint8_t* found_data = found.mutable_data();
  const py::gil_scoped_release release;
  owned.tier->Find(key_data, n, found_data);
}

// rows: (n, row_bytes), found: (n), in and out, as Tier::Read. take: removes the rows too.
void Read(OwnedMem& owned, const Array<uint64_t>& keys, Array<uint8_t>& rows, Array<uint8_t>& found,
          bool take) {
  const size_t n = SizeOf(keys);
  CheckSize("rows", SizeOf(rows), n * owned.row_bytes);
  CheckSize("found", SizeOf(found), n);
  const uint64_t* key_data = keys.data();
  char* row_data = reinterpret_cast<char*>(rows.mutable_data());
  uint8_t* found_data = found.mutable_data();
  const py::gil_scoped_release release;
  ThrowIfError(take ? owned.tier->Take(key_data, n, row_data, found_data)
                    : owned.tier->Read(key_data, n, row_data, found_data));
}

void Insert(OwnedMem& owned, const Array<uint64_t>& keys, const Array<uint8_t>& rows) {
  const size_t n = SizeOf(keys);
  CheckSize("rows", SizeOf(rows), n * owned.row_bytes);
  const uint64_t* key_data = keys.data();
  const char* row_data = reinterpret_cast<const char*>(rows.data());
  const py::gil_scoped_release release;
  CheckKeys(key_data, n);
  ThrowIfError(owned.tier->Write(key_data, row_data, n));
}

}  // namespace

void BindMem(py::module_& module) {
  py::class_<OwnedMem>(module, "MemTier")
      .def(py::init(&Open), py::arg("row_bytes"), py::arg("budget_bytes"))
      .def("find", &Find, py::arg("keys").noconvert(), py::arg("found").noconvert())
      .def(
          "read",
          [](OwnedMem& owned, const Array<uint64_t>& keys, Array<uint8_t>& rows,
             Array<uint8_t>& found) { Read(owned, keys, rows, found, false); },
          py::arg("keys").noconvert(), py::arg("rows").noconvert(), py::arg("found").noconvert())
      .def(
          "take",
          [](OwnedMem& owned, const Array<uint64_t>& keys, Array<uint8_t>& rows,
             Array<uint8_t>& found) { Read(owned, keys, rows, found, true); },
          py::arg("keys").noconvert(), py::arg("rows").noconvert(), py::arg("found").noconvert())
      .def("insert", &Insert, py::arg("keys").noconvert(), py::arg("rows").noconvert())
      .def_property_readonly("rows", [](const OwnedMem& owned) { return owned.tier->rows(); })
      .def_property_readonly("bytes", [](const OwnedMem& owned) { return owned.tier->bytes(); });
}

}  // namespace pbx
