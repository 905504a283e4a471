// The SSD tier alone, without a table, for benchmarks.
#include "paddle/bindings/arrays.h"
#include "paddle/bindings/bindings.h"
#include "paddle/bindings/segment_dicts.h"
#include "store/ssd_tier.h"

namespace pbx {
namespace {

// The tier and its threads.
struct OwnedTier {
  ThreadPool pool;
  std::unique_ptr<SsdTier> tier;
  uint32_t row_bytes;

  explicit OwnedTier(int threads, uint32_t bytes) : pool(threads), row_bytes(bytes) {}
};

std::unique_ptr<OwnedTier> Open(const py::dict& fields, const std::vector<py::dict>& records) {
  SsdOptions options;
  options.folder = fields["folder"].cast<std::string>();
  options.row_bytes = fields["row_bytes"].cast<uint32_t>();
  options.layout_fingerprint = fields["layout_fingerprint"].cast<uint64_t>();
  options.max_segment_bytes = fields["max_segment_bytes"].cast<uint64_t>();
  auto owned = std::make_unique<OwnedTier>(fields["threads"].cast<int>(), options.row_bytes);
  const std::vector<SegmentDescriptor> segments = SegmentsFrom(records);
  const py::gil_scoped_release release;
  owned->tier = ValueOrThrow(SsdTier::Open(options, segments, &owned->pool));
  return owned;
}

py::list Write(OwnedTier& owned, const Array<uint64_t>& keys, const Array<uint8_t>& rows) {
  const size_t n = SizeOf(keys);
  CheckSize("rows", SizeOf(rows), n * owned.row_bytes);
  const uint64_t* key_data = keys.data();
  const char* row_data = reinterpret_cast<const char*>(rows.data());
  std::vector<SegmentDescriptor> segments;
  {
    const py::gil_scoped_release release;
    std::vector<const char*> pointers(n);
    for (size_t i = 0; i < n; ++i) pointers[i] = row_data + i * owned.row_bytes;
    segments = ValueOrThrow(owned.tier->Prepare(key_data, pointers.data(), n));
    ThrowIfError(owned.tier->Publish(segments));
  }
  return py::cast(ToDicts(segments));
}

// Returns the number of rows found.
size_t Read(OwnedTier& owned, const Array<uint64_t>& keys, Array<uint8_t>& rows,
            Array<uint8_t>& found) {
  const size_t n = SizeOf(keys);
  CheckSize("rows", SizeOf(rows), n * owned.row_bytes);
  CheckSize("found", SizeOf(found), n);
  const uint64_t* key_data = keys.data();
  char* row_data = reinterpret_cast<char*>(rows.mutable_data());
  uint8_t* found_data = found.mutable_data();
  const py::gil_scoped_release release;
  const uint64_t before = owned.tier->counters().rows_found;
  ThrowIfError(owned.tier->Read(key_data, n, row_data, found_data));
  return owned.tier->counters().rows_found - before;
}

py::dict Merge(OwnedTier& owned, const std::vector<uint64_t>& inputs, bool urgent) {
  MergeResult result;
  {
    const py::gil_scoped_release release;
    result = ValueOrThrow(owned.tier->Merge({inputs, urgent, nullptr}));
  }
  return ToDict(result);
}

py::dict Counters(const OwnedTier& owned) {
  const SsdCounters c = owned.tier->counters();
  py::dict out;
  out["keys_asked"] = c.keys_asked;
  out["filter_passed"] = c.filter_passed;
  out["rows_found"] = c.rows_found;
  out["absent_read"] = c.absent_read;
  out["blocks_read"] = c.blocks_read;
  out["read_requests"] = c.read_requests;
  out["bytes_read"] = c.bytes_read;
  out["bytes_written"] = c.bytes_written;
  out["merge_bytes_read"] = c.merge_bytes_read;
  out["merge_bytes_written"] = c.merge_bytes_written;
  out["memory_bytes"] = owned.tier->memory_bytes();
  out["rows"] = owned.tier->rows();
  out["bytes"] = owned.tier->bytes();
  out["segments"] = owned.tier->segments();
  return out;
}

}  // namespace

void BindSsd(py::module_& module) {
  py::class_<OwnedTier>(module, "SsdTier")
      .def(py::init(&Open), py::arg("options"), py::arg("segments"))
      .def("write", &Write, py::arg("keys"), py::arg("rows"))
      .def("read", &Read, py::arg("keys"), py::arg("rows").noconvert(),
           py::arg("found").noconvert())
      .def("merge", &Merge, py::arg("inputs"), py::arg("urgent") = false)
      .def("replace_segments",
           [](OwnedTier& owned, const std::vector<uint64_t>& removed,
              const std::vector<py::dict>& added) {
             const std::vector<SegmentDescriptor> segments = SegmentsFrom(added);
             const py::gil_scoped_release release;
             ThrowIfError(owned.tier->Replace(removed, segments));
           })
      .def("counters", &Counters);
}

}  // namespace pbx
