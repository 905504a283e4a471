// Single segment files of any layout, for the tools for the upkeep of stores.
#include <cstring>
#include <memory>

#include "paddle/bindings/arrays.h"
#include "paddle/bindings/bindings.h"
#include "paddle/bindings/segment_dicts.h"
#include "store/segment_reader.h"
#include "store/segment_writer.h"

namespace pbx {
namespace {

constexpr size_t kBlocksPerRead = 256;

std::shared_ptr<SegmentReader> Open(const std::string& path, const py::object& record) {
  std::vector<SegmentDescriptor> descriptor;
  if (!record.is_none()) descriptor = SegmentsFrom({record.cast<py::dict>()});
  const py::gil_scoped_release release;
  return ValueOrThrow(
      SegmentReader::OpenAnyLayout(path, descriptor.empty() ? nullptr : &descriptor[0]));
}

py::dict Shape(const SegmentReader& segment) {
  const SegmentShape& s = segment.shape();
  py::dict out;
  out["id"] = s.id;
  out["sequence"] = s.sequence;
  out["layout_fingerprint"] = s.layout_fingerprint;
  out["rows"] = s.rows;
  out["min_key"] = s.min_key;
  out["max_key"] = s.max_key;
  out["row_bytes"] = s.row_bytes;
  out["block_bytes"] = s.block_bytes;
  out["blocks"] = s.blocks();
  out["rows_per_block"] = s.rows_per_block();
  out["filter_bits"] = s.filter.bits;
  out["memory_bytes"] = segment.memory_bytes();
  return out;
}

// Checks the keys of a block whose CRC is right: they ascend from *last on, are in the range of the
// segment, and pass its filter.
Status CheckKeys(const SegmentReader& segment, size_t block, const char* bytes, bool* any,
                 uint64_t* last) {
  const SegmentShape& shape = segment.shape();
  for (size_t i = 0; i < shape.rows_in_block(block); ++i) {
    const uint64_t key = SegmentReader::KeyAt(bytes, i);
    if ((*any && key <= *last) || key < shape.min_key || key > shape.max_key) {
      return Error(Code::kCorruption, "block %zu: row %zu has a key out of order", block, i);
    }
    const uint32_t ask = 0;
    uint32_t passed, rejected;
    size_t n_rejected;
    if (segment.Select(&key, &ask, 1, &passed, &rejected, &n_rejected) != 1) {
      return Error(Code::kCorruption, "block %zu: row %zu has a key that does not pass the filter",
                   block, i);
    }
    *any = true;
    *last = key;
  }
  return Status::Ok();
}

struct BlockDamage {
  size_t block;
  std::string message;
};

std::vector<BlockDamage> CheckBlocks(const SegmentReader& segment) {
  std::vector<BlockDamage> damage;
  const SegmentShape& shape = segment.shape();
  const Result<Buffer> buffer = Buffer::Allocate(kBlocksPerRead * shape.block_bytes);
  ThrowIfError(buffer.status());
  char* bytes = const_cast<char*>(buffer.value().data());
  bool any = false;
  uint64_t last = 0;
  for (size_t first = 0; first < shape.blocks(); first += kBlocksPerRead) {
    const size_t count = std::min<size_t>(kBlocksPerRead, shape.blocks() - first);
    const uint64_t offset = uint64_t{first} * shape.block_bytes;
    const Status read = segment.file().Read(offset, count * shape.block_bytes, bytes);
    for (size_t i = 0; i < count; ++i) {
      const char* block = bytes + i * shape.block_bytes;
      Status status = read.ok() ? segment.CheckBlock(first + i, block) : read;
      if (status.ok()) status = CheckKeys(segment, first + i, block, &any, &last);
      if (!status.ok()) damage.push_back({first + i, status.message()});
    }
  }
  return damage;
}

py::list Check(const SegmentReader& segment) {
  std::vector<BlockDamage> damage;
  {
    const py::gil_scoped_release release;
    damage = CheckBlocks(segment);
  }
  const SegmentShape& shape = segment.shape();
  py::list out;
  for (const BlockDamage& found : damage) {
    py::dict record;
    record["block"] = found.block;
    record["offset"] = uint64_t{found.block} * shape.block_bytes;
    record["first_row"] = found.block * shape.rows_per_block();
    record["rows"] = shape.rows_in_block(found.block);
    record["message"] = found.message;
    out.append(record);
  }
  return out;
}

// Rows of blocks [first, first + count): (n) keys, (n, row_bytes) bytes.
py::tuple Rows(const SegmentReader& segment, size_t first, size_t count) {
  const SegmentShape& shape = segment.shape();
  if (first > shape.blocks() || count > shape.blocks() - first) {
    ThrowIfError(Error(Code::kInvalidArgument, "blocks %zu to %zu, but the segment has %zu", first,
                       first + count, static_cast<size_t>(shape.blocks())));
  }
  std::vector<uint64_t> keys;
  std::vector<uint8_t> rows;
  {
    const py::gil_scoped_release release;
    std::vector<char> bytes(count * shape.block_bytes);
    ThrowIfError(segment.ReadBlocks(first, count, bytes.data()));
    for (size_t i = 0; i < count; ++i) {
      const char* block = bytes.data() + i * shape.block_bytes;
      for (size_t row = 0; row < shape.rows_in_block(first + i); ++row) {
        keys.push_back(SegmentReader::KeyAt(block, row));
        const char* at = segment.RowAt(block, row);
        rows.insert(rows.end(), at, at + shape.row_bytes);
      }
    }
  }
  const auto n = static_cast<py::ssize_t>(keys.size());
  return py::make_tuple(ToArray(std::move(keys)),
                        ToArray(std::move(rows), {n, static_cast<py::ssize_t>(shape.row_bytes)}));
}

// The block that holds key, or None.
py::object Find(const SegmentReader& segment, uint64_t key) {
  const SegmentShape& shape = segment.shape();
  if (key < shape.min_key || key > shape.max_key) return py::none();
  std::vector<char> bytes(shape.block_bytes);
  for (size_t block = segment.BlockOf(key, 0);; --block) {
    ThrowIfError(segment.ReadBlocks(block, 1, bytes.data()));
    if (segment.FindInBlock(block, bytes.data(), key, 0) != SegmentReader::kNone) {
      return py::int_(block);
    }
    if (!segment.MayBeBefore(key, block)) return py::none();
  }
}

py::dict WriteSegment(const std::string& folder, const py::dict& spec, const Array<uint64_t>& keys,
                      const Array<uint8_t>& rows) {
  SegmentSpec wanted;
  wanted.id = spec["id"].cast<uint64_t>();
  wanted.sequence = spec["sequence"].cast<uint64_t>();
  wanted.row_bytes = spec["row_bytes"].cast<uint32_t>();
  wanted.layout_fingerprint = spec["layout_fingerprint"].cast<uint64_t>();
  const size_t n = SizeOf(keys);
  if (SizeOf(rows) != n * wanted.row_bytes) {
    ThrowIfError(Error(Code::kInvalidArgument, "rows: expected %zu bytes, found %zu",
                       n * wanted.row_bytes, SizeOf(rows)));
  }
  const uint64_t* key_data = keys.data();
  const char* row_data = reinterpret_cast<const char*>(rows.data());
  SegmentDescriptor written;
  {
    const py::gil_scoped_release release;
    auto writer = ValueOrThrow(SegmentWriter::Create(folder, wanted));
    for (size_t i = 0; i < n; ++i) {
      ThrowIfError(writer->Append(key_data[i], row_data + i * wanted.row_bytes));
    }
    written = ValueOrThrow(writer->Finish());
    ThrowIfError(SyncFolder(folder));
  }
  return ToDicts({written})[0];
}

}  // namespace

void BindSegment(py::module_& module) {
  py::class_<SegmentReader, std::shared_ptr<SegmentReader>>(module, "SegmentFile")
      .def(py::init(&Open), py::arg("path"), py::arg("descriptor") = py::none())
      .def_property_readonly("shape", &Shape)
      .def("check", &Check)
      .def("find", &Find, py::arg("key"))
      .def("rows", &Rows, py::arg("first"), py::arg("count"));
  module.def("write_segment", &WriteSegment, py::arg("folder"), py::arg("spec"), py::arg("keys"),
             py::arg("rows"));
}

}  // namespace pbx
