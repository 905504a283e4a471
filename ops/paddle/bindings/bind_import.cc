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
// import. first_id, sequence: ImportPlace. Returns the descriptors of the segments.
std::vector<py::dict> Chunks(const Table& target, uint64_t expected_rows, py::iterator chunks,
                             uint64_t first_id, uint64_t sequence) {
  const auto words = static_cast<size_t>(target.config().accessor.layout.words());
  std::pair<Array<uint64_t>, Array<float>> held;
  ImportResult result;
  {
    const py::gil_scoped_release release;
    result = ValueOrThrow(ImportChunks(
        target, expected_rows,
        [&]() -> Result<KeyedRows> {
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
        },
        ImportPlace{first_id, sequence}));
  }
  return ToDicts(result.segments);
}

// keys, parts: (n); found: (n) uint8; existing: (n, words), empty if the table has no rows; rows:
// (n, words) float32, completed in place.
void Complete(const Table& target, const Array<uint64_t>& keys, const Array<uint32_t>& parts,
              const Array<uint8_t>& found, const Array<float>& existing, Array<float> rows,
              uint32_t day, uint32_t life_seq) {
  const auto words = static_cast<size_t>(target.config().accessor.layout.words());
  RowsToComplete batch;
  batch.n = SizeOf(keys);
  CheckSize("complete_rows: parts", SizeOf(parts), batch.n);
  CheckSize("complete_rows: rows", SizeOf(rows), batch.n * words);
  if (SizeOf(existing) != 0) {
    CheckSize("complete_rows: found", SizeOf(found), batch.n);
    CheckSize("complete_rows: existing", SizeOf(existing), batch.n * words);
    batch.found = found.data();
    batch.existing = existing.data();
  }
  batch.keys = keys.data();
  batch.parts = parts.data();
  batch.rows = rows.mutable_data();
  const py::gil_scoped_release release;
  CompleteRows(target, day, life_seq, batch);
}

}  // namespace

void BindImport(py::module_& module) {
  module.def("import_rows", &Import, py::arg("sources"), py::arg("target"), py::arg("slots"),
             py::arg("in_feasigns"), py::arg("keys"), py::arg("counts"), py::arg("sort_bytes"),
             py::arg("low"), py::arg("high"), py::arg("progress"));
  module.def("import_chunks", &Chunks, py::arg("target"), py::arg("expected_rows"),
             py::arg("chunks"), py::arg("first_id") = 1, py::arg("sequence") = 1);
  module.def("complete_rows", &Complete, py::arg("target"), py::arg("keys"), py::arg("parts"),
             py::arg("found"), py::arg("existing"), py::arg("rows").noconvert(), py::arg("day"),
             py::arg("life_seq"));
  py::dict parts;
  parts["slot"] = static_cast<uint32_t>(kGivesSlot);
  parts["counts"] = static_cast<uint32_t>(kGivesCounts);
  parts["delta_score"] = static_cast<uint32_t>(kGivesDeltaScore);
  parts["last_seen_day"] = static_cast<uint32_t>(kGivesDay);
  parts["embed_w"] = static_cast<uint32_t>(kGivesEmbed);
  parts["embed_state"] = static_cast<uint32_t>(kGivesEmbedState);
  parts["embedx_w"] = static_cast<uint32_t>(kGivesEmbedx);
  parts["embedx_state"] = static_cast<uint32_t>(kGivesEmbedxState);
  parts["expand_w"] = static_cast<uint32_t>(kGivesExpand);
  parts["expand_state"] = static_cast<uint32_t>(kGivesExpandState);
  parts["further_counts"] = static_cast<uint32_t>(kGivesFurtherCounts);
  module.attr("given_parts") = parts;
}

}  // namespace pbx
