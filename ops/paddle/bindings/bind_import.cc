#include <pybind11/stl.h>

#include <memory>
#include <utility>

#include "paddle/bindings/arrays.h"
#include "paddle/bindings/bindings.h"
#include "paddle/bindings/segment_dicts.h"
#include "table/import.h"

namespace pbx {
namespace {

// progress(rows read so far) is called from time to time. An exception of it ends the import.
py::dict Import(const std::vector<Table*>& sources, const Table& target, std::vector<int32_t> slots,
                bool in_feasigns, std::vector<std::pair<uint32_t, uint32_t>> keys,
                std::vector<int32_t> counts, uint64_t sort_bytes, uint64_t low, uint64_t high,
                const py::function& progress) {
  if (sources.empty()) ThrowIfError(Error(Code::kInvalidArgument, "import: no table to read"));
  ImportOptions options;
  options.map.slots = std::move(slots);
  options.map.in_feasigns = in_feasigns;
  options.map.keys = std::move(keys);
  options.map.counts = std::move(counts);
  options.sort_bytes = sort_bytes;
  options.low = low;
  options.high = high;
  ImportResult result;
  {
    const py::gil_scoped_release release;
    result = ValueOrThrow(ImportRows(sources, target, options, [&](uint64_t rows) {
      const py::gil_scoped_acquire acquire;
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      progress(rows);
      return Status::Ok();
    }));
  }
  py::dict out;
  out["segments"] = ToDicts(result.segments);
  out["runs"] = result.runs;
  out["rows"] = result.rows;
  out["with_embedx"] = result.with_embedx;
  out["dropped"] = result.dropped;
  return out;
}

// chunks: an iterator of (n) uint64 keys and (n, words) float32 rows. An exception of it ends the
// import. Returns the descriptors of the segments.
std::vector<py::dict> Chunks(const Table& target, uint64_t expected_rows, py::iterator chunks) {
  const auto words = static_cast<size_t>(target.config().accessor.layout.words());
  std::pair<Array<uint64_t>, Array<float>> held;
  ImportResult result;
  {
    const py::gil_scoped_release release;
    result = ValueOrThrow(ImportChunks(target, expected_rows, [&]() -> Result<KeyedRows> {
      const py::gil_scoped_acquire acquire;
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      KeyedRows rows;
      while (rows.n == 0 && chunks != py::iterator::sentinel()) {
        held = chunks->cast<std::pair<Array<uint64_t>, Array<float>>>();
        ++chunks;
        rows.n = SizeOf(held.first);
        if (SizeOf(held.second) != rows.n * words) {
          return Error(Code::kInvalidArgument, "%zu keys and %zu floats: expected rows of %zu",
                       rows.n, SizeOf(held.second), words);
        }
      }
      rows.keys = held.first.data();
      rows.rows = held.second.data();
      return rows;
    }));
  }
  return ToDicts(result.segments);
}

}  // namespace

void BindImport(py::module_& module) {
  module.def("import_rows", &Import, py::arg("sources"), py::arg("target"), py::arg("slots"),
             py::arg("in_feasigns"), py::arg("keys"), py::arg("counts"), py::arg("sort_bytes"),
             py::arg("low"), py::arg("high"), py::arg("progress"));
  module.def("import_chunks", &Chunks, py::arg("target"), py::arg("expected_rows"),
             py::arg("chunks"));
}

}  // namespace pbx
