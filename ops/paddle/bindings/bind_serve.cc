// Export files: layers and lookups. Indexes of vectors.
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "paddle/bindings/arrays.h"
#include "paddle/bindings/bindings.h"
#include "serve/layer_writer.h"
#include "serve/lmdb_reader.h"
#include "serve/serve_table.h"
#include "serve/vector_index.h"
#include "table/kernels.h"

namespace pbx {
namespace {

ServePrecision PrecisionFrom(const std::string& precision) {
  if (precision == "float32") return ServePrecision::kFloat32;
  if (precision == "float16") return ServePrecision::kFloat16;
  if (precision == "int8") return ServePrecision::kInt8;
  throw StatusError(Error(Code::kInvalidArgument,
                          "precision '%s': expected float32, float16 or int8", precision.c_str()));
}

ServeCodec CodecFrom(int embedx_dim, bool counts, const std::string& precision, int more_counts) {
  if (embedx_dim < 1 || embedx_dim > 253) {
    ThrowIfError(Error(Code::kInvalidArgument, "embedx_dim %d, expected 1 to 253", embedx_dim));
  }
  if (more_counts < 0 || more_counts > 16 || (more_counts != 0 && !counts)) {
    ThrowIfError(Error(Code::kInvalidArgument,
                       "more_counts %d, expected 0 to 16, and 0 for rows without counts",
                       more_counts));
  }
  return {embedx_dim, counts, PrecisionFrom(precision), more_counts};
}

Bytes BytesOf(const py::buffer& buffer) {
  const py::buffer_info info = buffer.request();
  return {static_cast<const char*>(info.ptr), static_cast<size_t>(info.size * info.itemsize)};
}

// The caller owns the blocks and the filter's table, which must outlive the table: for LMDB the
// read transaction must stay open.
void AddLayer(ServeTable& table, uint64_t number, int bits, const std::vector<py::buffer>& blocks,
              const py::dict& filter, const py::buffer& filter_table) {
  LayerParts parts;
  parts.number = number;
  parts.bits = bits;
  for (const py::buffer& block : blocks) parts.blocks.push_back(BytesOf(block));
  parts.filter.bits = filter["bits"].cast<uint32_t>();
  parts.filter.window_log2 = filter["window_log2"].cast<uint32_t>();
  parts.filter.windows = filter["windows"].cast<uint32_t>();
  parts.filter.seed = filter["seed"].cast<uint32_t>();
  parts.filter.by_hash = filter["by_hash"].cast<uint32_t>();
  parts.min_key = filter["min_key"].cast<uint64_t>();
  parts.max_key = filter["max_key"].cast<uint64_t>();
  parts.filter_table = BytesOf(filter_table);
  ThrowIfError(table.AddLayer(std::move(parts)));
}

py::dict About(const LayerWriter& writer) {
  py::dict filter;
  filter["bits"] = writer.filter().bits;
  filter["window_log2"] = writer.filter().window_log2;
  filter["windows"] = writer.filter().windows;
  filter["seed"] = writer.filter().seed;
  filter["by_hash"] = writer.filter().by_hash;
  filter["min_key"] = writer.min_key();
  filter["max_key"] = writer.max_key();
  py::dict about;
  about["rows"] = writer.rows();
  about["deleted"] = writer.deleted();
  about["bits"] = writer.bits();
  about["filter"] = filter;
  return about;
}

py::list TakeBlocks(LayerWriter& writer) {
  py::list blocks;
  for (const auto& [number, bytes] : writer.TakeBlocks()) {
    blocks.append(py::make_tuple(number, py::bytes(bytes)));
  }
  return blocks;
}

void CheckCounts(bool counts, size_t slots, bool cvm, const std::vector<size_t>& clicks) {
  if (!counts && (cvm || !clicks.empty())) {
    ThrowIfError(Error(Code::kInvalidArgument, "cvm and clicks need rows with counts"));
  }
  for (const size_t slot : clicks) {
    if (slot < slots) continue;
    ThrowIfError(Error(Code::kInvalidArgument, "clicks: slot %zu, but there are %zu", slot, slots));
  }
}

void CheckOffsets(const int32_t* offsets, size_t n, size_t feasigns) {
  bool fits = n != 0 && offsets[0] == 0 && static_cast<size_t>(offsets[n - 1]) == feasigns;
  fits = fits && ActiveKernels().check_offsets(offsets, n - 1);
  if (!fits) {
    ThrowIfError(Error(Code::kInvalidArgument,
                       "offsets: expected ascending values from 0 to %zu, the number of feasigns",
                       feasigns));
  }
}

// The memory of out, (B, width), for the rows of n instances. Not an Array, which may be a copy.
float* Room(py::array_t<float, py::array::c_style>& out, size_t n, size_t width) {
  if (SizeOf(out) != n * width) {
    ThrowIfError(Error(Code::kInvalidArgument, "out has room for %zu floats, expected %zu * %zu",
                       SizeOf(out), n, width));
  }
  return out.mutable_data();
}

// feasigns (nnz) uint64, offsets (B * S + 1) int32, dense (B, W). out: (B, S * width + W).
void Pull(const ServeTable& table, const Array<uint64_t>& feasigns, const Array<int32_t>& offsets,
          const Array<float>& dense, py::array_t<float, py::array::c_style>& out) {
  const size_t instances = table.slots() == 0 ? 0 : (SizeOf(offsets) - 1) / table.slots();
  if (SizeOf(offsets) == 0 || instances * table.slots() + 1 != SizeOf(offsets) ||
      SizeOf(dense) != instances * table.dense_width()) {
    ThrowIfError(Error(Code::kInvalidArgument,
                       "%zu offsets and %zu dense floats: expected B * %zu + 1 and B * %zu",
                       SizeOf(offsets), SizeOf(dense), table.slots(), table.dense_width()));
  }
  CheckOffsets(offsets.data(), SizeOf(offsets), SizeOf(feasigns));
  float* const to = Room(out, instances, table.output_width());
  const py::gil_scoped_release release;
  ThrowIfError(table.Pull(feasigns.data(), offsets.data(), instances, dense.data(), to));
}

void Add(LayerWriter& writer, const Array<uint64_t>& feasigns, const Array<float>& rows) {
  if (rows.ndim() != 2 || rows.shape(0) != feasigns.size()) {
    ThrowIfError(Error(Code::kInvalidArgument, "%zu feasigns: expected rows of shape (n, words)",
                       SizeOf(feasigns)));
  }
  const auto words = static_cast<size_t>(rows.shape(1));
  const py::gil_scoped_release release;
  ThrowIfError(writer.Add(feasigns.data(), rows.data(), SizeOf(feasigns), words));
}

// ---- indexes of vectors

// The number of vectors of an array (n, width).
size_t VectorsOf(const char* what, const Array<float>& array, size_t width) {
  if (array.ndim() != 2 || static_cast<size_t>(array.shape(1)) != width) {
    ThrowIfError(Error(Code::kInvalidArgument,
                       "%s: expected (n, %zu) floats, found %zd dimensions"
                       " and %zu floats",
                       what, width, static_cast<ssize_t>(array.ndim()), SizeOf(array)));
  }
  return static_cast<size_t>(array.shape(0));
}

// queries: (Q, D). Returns numbers (Q, K) uint64 and products (Q, K) float32.
py::tuple Search(const VectorIndex& index, const Array<float>& queries, size_t k,
                 ThreadPool& pool) {
  const size_t q = VectorsOf("queries", queries, index.width());
  if (k == 0 || k > index.rows()) {
    ThrowIfError(Error(Code::kInvalidArgument,
                       "k %zu: expected 1 to %llu, the vectors of the index", k,
                       static_cast<unsigned long long>(index.rows())));
  }
  for (size_t i = 0; i < SizeOf(queries); ++i) {
    if (std::isfinite(queries.data()[i])) continue;
    ThrowIfError(Error(Code::kInvalidArgument, "query %zu has %g, expected finite numbers",
                       i / index.width(), static_cast<double>(queries.data()[i])));
  }
  const auto rows = static_cast<py::ssize_t>(q), columns = static_cast<py::ssize_t>(k);
  Array<uint64_t> numbers({rows, columns});
  Array<float> products({rows, columns});
  const float* from = queries.data();
  uint64_t* number = numbers.mutable_data();
  float* product = products.mutable_data();
  Status status;
  {
    const py::gil_scoped_release release;
    status = index.Search(from, q, k, &pool, number, product);
  }
  ThrowIfError(status);
  return py::make_tuple(numbers, products);
}

void Append(VectorIndexWriter& writer, const Array<float>& vectors) {
  const size_t n = VectorsOf("vectors", vectors, writer.width());
  const float* from = vectors.data();
  Status status;
  {
    const py::gil_scoped_release release;
    status = writer.Append(from, n);
  }
  ThrowIfError(status);
}

}  // namespace

void BindServe(py::module_& module) {
  const auto release = py::call_guard<py::gil_scoped_release>();
  py::class_<LmdbReader::State>(module, "LmdbState")
      .def_readonly("transaction", &LmdbReader::State::transaction)
      .def("__eq__", [](const LmdbReader::State& a, const LmdbReader::State& b) {
        return a == b && a.free == b.free && a.pages == b.pages;
      });
  py::class_<LmdbReader, std::shared_ptr<LmdbReader>>(module, "LmdbReader")
      .def(py::init([](const std::string& path) { return ValueOrThrow(LmdbReader::Open(path)); }))
      .def_property_readonly("states",
                             [](const LmdbReader& self) { return ValueOrThrow(self.States()); })
      .def_property_readonly("newest",
                             [](const LmdbReader& self) { return ValueOrThrow(self.Newest()); })
      .def(
          "check",
          [](const LmdbReader& self, const LmdbReader::State& state, bool free) {
            ThrowIfError(self.Check(state, free));
          },
          release, py::arg("state"), py::arg("free"))
      .def("is_at", &LmdbReader::IsAt)
      .def_property_readonly("bytes", &LmdbReader::bytes);
  py::class_<ServeTable> table(module, "ServeTable");
  table
      .def(py::init([](const std::string& name, int embedx_dim, bool counts,
                       const std::string& precision, size_t slots, size_t dense_width,
                       size_t resident_bytes, bool cvm, const std::vector<size_t>& clicks,
                       int more_counts) {
             CheckCounts(counts, slots, cvm, clicks);
             return std::make_unique<ServeTable>(
                 name, CodecFrom(embedx_dim, counts, precision, more_counts), slots, dense_width,
                 resident_bytes, ServedCounts{cvm, clicks});
           }),
           py::arg("name"), py::arg("embedx_dim"), py::arg("counts"), py::arg("precision"),
           py::arg("slots"), py::arg("dense_width"), py::arg("resident_bytes"), py::arg("cvm"),
           py::arg("clicks") = std::vector<size_t>(), py::arg("more_counts") = 0)
      .def("add_layer", &AddLayer)
      .def("adopt_tests", &ServeTable::AdoptTests)
      .def("pull", &Pull, py::arg("feasigns"), py::arg("offsets"), py::arg("dense"),
           py::arg("out").noconvert())
      .def("contains",
           [](const ServeTable& self, const Array<uint64_t>& feasigns) {
             std::vector<uint8_t> found(SizeOf(feasigns));
             ThrowIfError(self.Contains(feasigns.data(), SizeOf(feasigns), found.data()));
             return ToArray(std::move(found));
           })
      .def(
          "test_all", [](const ServeTable& self) { ThrowIfError(self.TestAll()); }, release)
      .def_property_readonly("resident_bytes", &ServeTable::ResidentBytes)
      .def_property_readonly("output_width", &ServeTable::output_width);
  py::class_<ServeTable::Cursor>(module, "ServeCursor")
      .def(py::init([](const ServeTable& self, size_t first, size_t last) {
             if (first >= last || last > self.layers()) {
               ThrowIfError(Error(Code::kInvalidArgument, "layers [%zu, %zu) of %zu", first, last,
                                  self.layers()));
             }
             auto cursor = std::make_unique<ServeTable::Cursor>(self, first, last);
             ThrowIfError(cursor->Start());
             return cursor;
           }),
           py::keep_alive<1, 2>())
      .def_property_readonly("done", &ServeTable::Cursor::done);
  py::class_<LayerWriter>(module, "LayerWriter")
      .def(py::init([](int embedx_dim, bool counts, const std::string& precision, int embed_state,
                       bool filtered, int more_counts) {
             return std::make_unique<LayerWriter>(
                 CodecFrom(embedx_dim, counts, precision, more_counts), embed_state, filtered);
           }),
           py::arg("embedx_dim"), py::arg("counts"), py::arg("precision"), py::arg("embed_state"),
           py::arg("filtered"), py::arg("more_counts") = 0)
      .def("delete",
           [](LayerWriter& self, const Array<uint64_t>& feasigns) {
             self.Delete(feasigns.data(), SizeOf(feasigns));
           })
      .def(
          "against",
          [](LayerWriter& self, const ServeTable& old) { ThrowIfError(self.Against(old)); },
          py::keep_alive<1, 2>())
      .def("add", &Add)
      .def(
          "merge",
          [](LayerWriter& self, ServeTable::Cursor& cursor, bool base, size_t bytes) {
            ThrowIfError(self.Merge(&cursor, base, bytes));
          },
          release)
      .def(
          "finish", [](LayerWriter& self) { ThrowIfError(self.Finish()); }, release)
      .def("take_blocks", &TakeBlocks)
      .def_property_readonly("about", &About)
      .def_property_readonly("filter_table", [](const LayerWriter& self) {
        return py::bytes(self.filter_table().data(), self.filter_table().size());
      });
  py::class_<VectorIndexWriter>(module, "VectorIndexWriter")
      .def(py::init([](const std::string& path, size_t width, uint64_t version) {
        return ValueOrThrow(VectorIndexWriter::Create(path, width, version));
      }))
      .def("append", &Append)
      .def("finish", [](VectorIndexWriter& writer) {
        const py::gil_scoped_release release;
        ThrowIfError(writer.Finish());
      });
  py::class_<VectorIndex>(module, "VectorIndex")
      .def(py::init([](const std::string& path) {
        const py::gil_scoped_release release;
        return ValueOrThrow(VectorIndex::Open(path));
      }))
      .def_property_readonly("rows", &VectorIndex::rows)
      .def_property_readonly("width", &VectorIndex::width)
      .def_property_readonly("version", &VectorIndex::version)
      .def("search", &Search);
}

}  // namespace pbx
