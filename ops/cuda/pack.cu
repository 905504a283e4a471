// Packs rows of a table into records for other ranks, and unpacks records of other ranks to
// float32. A block reads the rows of a tile into shared memory, computes the scales of int8 there,
// and writes the records in units, neighbouring units by neighbouring threads.
#include "cuda/pack.h"

#include "cuda/call.h"

namespace pbx::hbm {

Status RecordOf(int32_t wire, Record* out) {
  if (wire < PBX_HBM_WIRE_FLOAT32 || wire > PBX_HBM_WIRE_INT8) {
    return Error(Code::kInvalidArgument, "wire of records is %d, expected %d to %d", wire,
                 PBX_HBM_WIRE_FLOAT32, PBX_HBM_WIRE_INT8);
  }
  *out = static_cast<Record>(wire);
  return Status::Ok();
}

namespace {

constexpr int kTile = 32;        // rows per block
constexpr int kUnpackTile = 64;  // records per block

// Writes a float or a 16-bit value at `unit` of a record whose units have sizeof(T) bytes.
template <typename T, typename V>
PBX_HOST_DEVICE void WritePart(char* record, int unit, V value, int part) {
  memcpy(record + unit * static_cast<int>(sizeof(T)),
         reinterpret_cast<const char*>(&value) + part * static_cast<int>(sizeof(T)), sizeof(T));
}

template <Record kRecord>
struct Gather {
  TableView table;
  const int32_t* ids;
  uint64_t m, record_bytes;
  char* out;

  // Bytes that a thread writes at once. The size of a record is a multiple of it.
  static constexpr int kUnit = kRecord == Record::kInt8 ? 1 : (kRecord == Record::kFloat32 ? 4 : 2);

  PBX_HOST_DEVICE void WriteUnit(const float* values, float scale, float inverse, int unit,
                                 char* record) const {
    if constexpr (kRecord == Record::kFloat32) {
      WritePart<float>(record, unit, values[unit], 0);
    } else if constexpr (kRecord == Record::kInt8) {
      if (unit < 8) return WritePart<char>(record, unit, values[unit / 4], unit % 4);
      if (unit < 12) return WritePart<char>(record, unit, scale, unit % 4);
      if (unit < 14) return WritePart<char>(record, unit, quantize::ToHalf(values[2]), unit % 2);
      WritePart<char>(record, unit, quantize::Quantized(values[unit - 11], inverse), 0);
    } else {
      if (unit < 4) return WritePart<uint16_t>(record, unit, values[unit / 2], unit % 2);
      const float value = values[unit - 2];
      WritePart<uint16_t>(
          record, unit,
          kRecord == Record::kFloat16 ? quantize::ToHalf(value) : quantize::ToBfloat16(value), 0);
    }
  }

  PBX_HOST_DEVICE void operator()(const Block& block, int64_t tile) const {
    const RowLayout& layout = table.config.layout;
    const int columns = 3 + layout.embedx_dim, room = columns | 1;  // odd: fewer bank conflicts
    const uint64_t first = static_cast<uint64_t>(tile) * kTile;
    const int count = CountOf(m, first, kTile);
    float* const values = block.shared<float>();
    float* const scales = values + kTile * room;
    float* const inverses = scales + kTile;
    block.ForEach(count * columns, [&](int i) {
      const int r = i / columns, c = i - r * columns;
      const int32_t id = ids[first + static_cast<uint64_t>(r)];
      const bool has = table.Has(id);
      values[r * room + c] = has ? table.row(id)[WordOf(layout.embedx_at(), c)] : 0.0f;
      if (c == 0 && id != -1 && !has) AddTo(&table.report->out_of_range, 1);
    });
    if constexpr (kRecord == Record::kInt8) {
      block.ForEach(count, [&](int r) {
        const auto dim = static_cast<size_t>(layout.embedx_dim);
        const uint32_t largest = quantize::LargestOf(values + r * room + 3, dim);
        scales[r] = quantize::ScaleOf(largest, inverses + r);
      });
    }
    const int units = static_cast<int>(record_bytes) / kUnit;
    block.ForEach(count * units, [&](int i) {
      const int r = i / units;
      WriteUnit(values + r * room, scales[r], inverses[r], i - r * units,
                out + (first + static_cast<uint64_t>(r)) * record_bytes);
    });
  }
};

template <Record kRecord>
struct Unpack {
  const char* records;
  uint64_t m, record_bytes;
  int columns;
  float* rows;

  PBX_HOST_DEVICE void operator()(const Block& block, int64_t tile) const {
    const uint64_t first = static_cast<uint64_t>(tile) * kUnpackTile;
    const int count = CountOf(m, first, kUnpackTile);
    float* const to = rows + first * static_cast<uint64_t>(columns);
    block.ForEach(count * columns, [&](int i) {
      const int r = i / columns;
      to[i] = ValueOf<kRecord>(records + (first + static_cast<uint64_t>(r)) * record_bytes,
                               i - r * columns);
    });
  }
};

template <Record kRecord>
Status LaunchGather(const TableView& table, const int32_t* ids, uint64_t m, void* out,
                    Stream stream) {
  const int columns = 3 + table.config.layout.embedx_dim;
  const Gather<kRecord> body{table, ids, m, RecordBytes(kRecord, columns), static_cast<char*>(out)};
  const size_t shared = kTile * (static_cast<size_t>(columns | 1) + 2) * 4;
  return Launch("gather", body, TilesOf(m, kTile), shared, stream);
}

template <Record kRecord>
Status LaunchUnpack(const pbx_hbm& hbm, const void* records, uint64_t m, float* rows,
                    Stream stream) {
  const Unpack<kRecord> body{static_cast<const char*>(records), m,
                             RecordBytes(kRecord, hbm.columns()), hbm.columns(), rows};
  return Launch("unpack", body, TilesOf(m, kUnpackTile), 0, stream);
}

}  // namespace
}  // namespace pbx::hbm

using namespace pbx;       // NOLINT(google-build-using-namespace): the C interface is outside of it
using namespace pbx::hbm;  // NOLINT(google-build-using-namespace)

uint64_t pbx_hbm_record_bytes(const pbx_hbm* hbm, int32_t wire) {
  Record record = Record::kFloat32;
  return RecordOf(wire, &record).ok() ? RecordBytes(record, hbm->columns()) : 0;
}

int pbx_hbm_gather(const pbx_hbm_table* table, int32_t wire, const int32_t* ids, uint64_t m,
                   void* out, void* stream) {
  return Call(table->hbm, [&]() -> Status {
    Record record = Record::kFloat32;
    PBX_RETURN_IF_ERROR(RecordOf(wire, &record));
    PBX_FOR_RECORD(record, LaunchGather, table->view, ids, m, out, static_cast<Stream>(stream))
  });
}

int pbx_hbm_unpack(const pbx_hbm* hbm, int32_t wire, const void* records, uint64_t m, float* rows,
                   void* stream) {
  return Call(hbm, [&]() -> Status {
    Record record = Record::kFloat32;
    PBX_RETURN_IF_ERROR(RecordOf(wire, &record));
    PBX_FOR_RECORD(record, LaunchUnpack, *hbm, records, m, rows, static_cast<Stream>(stream))
  });
}

int pbx_hbm_push_records(pbx_hbm_table* table, const int32_t* plan, uint64_t plan_size,
                         int32_t wire, const void* records, uint64_t m, float* room,
                         const pbx_hbm_gradient* gradient, void* stream) {
  const float* rows = static_cast<const float*>(records);
  if (wire != PBX_HBM_WIRE_FLOAT32) {
    const int code = pbx_hbm_unpack(table->hbm, wire, records, m, room, stream);
    if (code != PBX_HBM_OK) return code;
    rows = room;
  }
  pbx_hbm_gradient of = *gradient;
  of.grad = of.show_click = rows;
  const int expand = of.with_expand != 0 ? table->hbm->config.layout.expand_dim : 0;
  of.stride = of.show_click_stride = table->hbm->columns() + expand;
  of.extra = 0;
  of.weights_at = 2;
  of.instances = static_cast<int64_t>(m);
  of.slots = 1;
  of.scale = 1.0f;
  return pbx_hbm_push(table, plan, plan_size, &of, stream);
}
