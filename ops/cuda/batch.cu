// The table of a batch whose rows other ranks own. It is filled with rows that they sent. A push
// only adds up gradients, because the sums go back to the owners.
#include <algorithm>
#include <memory>
#include <vector>

#include "cuda/call.h"
#include "cuda/pack.h"
#include "cuda/planned_gradient.h"

namespace pbx::hbm {
namespace {

constexpr int kFillTile = 64;       // records
constexpr int kMostMergeTile = 32;  // rows per block

template <Record kRecord>
struct Fill {
  TableView table;
  const int32_t* at;
  uint64_t first, m, record_bytes;
  const char* records;

  PBX_HOST_DEVICE void operator()(const Block& block, int64_t tile) const {
    const RowLayout& layout = table.config.layout;
    const int columns = 3 + layout.embedx_dim;
    const uint64_t begin = static_cast<uint64_t>(tile) * kFillTile;
    const int count = CountOf(m, begin, kFillTile);
    block.ForEach(count * columns, [&](int i) {
      const int r = i / columns, c = i - r * columns;
      const uint64_t place = begin + static_cast<uint64_t>(r);
      const int64_t id = at != nullptr ? at[place] : static_cast<int64_t>(first + place);
      if (id < 0 || static_cast<uint64_t>(id) >= table.n) {
        if (c == 0) AddTo(&table.report->out_of_range, 1);
        return;
      }
      float* const row = table.row(id);
      // An embedx that its owner has not created is sent as zeros.
      if (c == 0) SetFlag(row, kHasEmbedx);
      row[c < 2 ? RowLayout::kShow + c
                : (c == 2 ? RowLayout::kEmbed : layout.embedx_at() + c - 3)] =
          ValueOf<kRecord>(records + place * record_bytes, c);
    });
  }
};

struct Merge : PlannedGradient<0> {
  float* sums;

  PBX_HOST_DEVICE void operator()(const Block& block, int64_t tile) const {
    if (!Fits()) {
      if (tile == 0) block.ForEach(1, [&](int) { AddTo(&table.report->out_of_range, 1); });
      return;
    }
    const int64_t unique = plan[1], first = tile * rows_of_tile;
    if (first >= unique) return;  // the grid was sized before the plan's size was known
    const int count =
        CountOf(static_cast<uint64_t>(unique), static_cast<uint64_t>(first), rows_of_tile);
    const int columns = 3 + table.config.layout.embedx_dim;
    const SumMemory m = MemoryOf(block);
    SumRows(block, first, count, columns, columns, m);
    block.ForEach(count, [&](int r) {
      if (m.places[r] < 0) return;
      if (!Check(table.row(m.places[r]), m.bad[r] != 0, m.sums + r * room, columns)) {
        m.places[r] = -1;
      }
    });
    block.ForEachRow<kLanes, 1>(count, [&](int r, int, int lane) {
      if (m.places[r] < 0) return;
      float* const to = sums + int64_t{m.places[r]} * columns;
      for (int c = lane; c < columns; c += kLanes) to[c] += m.sums[r * room + c];
    });
  }
};

template <Record kRecord>
Status LaunchFill(const TableView& table, const int32_t* at, uint64_t first, const void* records,
                  uint64_t m, Stream stream) {
  const uint64_t bytes = RecordBytes(kRecord, 3 + table.config.layout.embedx_dim);
  const Fill<kRecord> body{table, at, first, m, bytes, static_cast<const char*>(records)};
  return Launch("fill", body, TilesOf(m, kFillTile), 0, stream);
}

Status LaunchMerge(pbx_hbm_table* batch, const int32_t* plan, uint64_t plan_size,
                   const pbx_hbm_gradient& gradient, Stream stream) {
  const TableView& table = batch->view;
  if (plan_size < 4 || gradient.slots < 1 || gradient.instances < 0) {
    return Error(Code::kInvalidArgument,
                 "merge: a plan of %llu values, %lld slots, %lld instances: expected at least 4, 1 "
                 "and 0",
                 static_cast<unsigned long long>(plan_size), static_cast<long long>(gradient.slots),
                 static_cast<long long>(gradient.instances));
  }
  if (!table.expects) { return Error(Code::kInvalidArgument, "merge: the batch is read-only"); }
  const int columns = 3 + table.config.layout.embedx_dim, room = columns | 1;
  const int tile = RowsOfBlock(kMostMergeTile, static_cast<size_t>(room) * 4);
  const Result<float*> chunk_sums =
      LaunchSumChunks(table, plan, plan_size, gradient, columns, &batch->chunk_sums, stream);
  if (!chunk_sums.ok()) return chunk_sums.status();
  const Merge body{{table, plan, plan_size, gradient, tile, room, std::max(kStageFloats, columns),
                    chunk_sums.value()},
                   batch->sums.as<float>()};
  return Launch("merge", body, TilesOf(MostRowsOf(plan_size), static_cast<uint64_t>(tile)),
                body.SharedBytes(), stream);
}

Status BeginBatch(pbx_hbm* hbm, std::unique_ptr<pbx_hbm_table>* out) {
  auto batch = std::make_unique<pbx_hbm_table>();
  batch->hbm = hbm;
  TableView& view = batch->view;
  view.config = hbm->config;
  view.stride =
      (static_cast<uint32_t>(hbm->words()) + kSectorWords - 1) / kSectorWords * kSectorWords;
  const size_t report_bytes = sizeof(pbx_hbm_report) + kSlots * sizeof(uint64_t);
  Result<Memory> report = Memory::New("counters", report_bytes);
  if (!report.ok()) return report.status();
  batch->report = std::move(report.value());
  view.report = batch->report.as<pbx_hbm_report>();
  view.bad_by_slot = reinterpret_cast<uint64_t*>(view.report + 1);
  Stream stream = hbm->copies.get();
  PBX_RETURN_IF_ERROR(SetZero(view.report, report_bytes, stream));
  PBX_RETURN_IF_ERROR(Synchronize(stream));
  *out = std::move(batch);
  return Status::Ok();
}

Status Renew(pbx_hbm_table* batch, const uint64_t* keys, uint64_t n, int32_t stamp,
             bool read_only) {
  Stream stream = batch->hbm->copies.get();
  if (n > INT32_MAX) {
    return Error(Code::kInvalidArgument, "a batch of %llu rows, expected at most 2^31 - 1",
                 static_cast<unsigned long long>(n));
  }
  TableView& view = batch->view;
  int bits = 1;
  while (bits < 30 && (n >> (bits + 2)) != 0) ++bits;
  // The keys come from the host and are few, so the fences are computed there.
  std::vector<uint32_t> fences((size_t{1} << bits) + 1, static_cast<uint32_t>(n));
  uint64_t bucket = 0;
  for (uint64_t i = 0; i < n; ++i) {
    while (bucket <= keys[i] >> (64 - bits)) fences[bucket++] = static_cast<uint32_t>(i);
  }
  const size_t row_bytes = n * view.stride * 4;
  const size_t sum_bytes = read_only ? 0 : n * static_cast<size_t>(batch->hbm->columns()) * 4;
  PBX_RETURN_IF_ERROR(batch->keys.Grow("keys of a batch", n * 8));
  PBX_RETURN_IF_ERROR(batch->rows.Grow("rows of a batch", row_bytes));
  PBX_RETURN_IF_ERROR(batch->sums.Grow("sums of a batch", sum_bytes));
  PBX_RETURN_IF_ERROR(batch->fences.Grow("the index of a batch", fences.size() * 4));
  view.keys = batch->keys.as<uint64_t>();
  view.rows = batch->rows.as<float>();
  view.fences = batch->fences.as<uint32_t>();
  view.n = n;
  view.stamp = stamp;
  view.shift = 64 - bits;
  view.expects = !read_only;
  PBX_RETURN_IF_ERROR(ToDevice(batch->keys.as<void>(), keys, n * 8, stream));
  PBX_RETURN_IF_ERROR(ToDevice(batch->fences.as<void>(), fences.data(), fences.size() * 4, stream));
  PBX_RETURN_IF_ERROR(SetZero(batch->rows.as<void>(), row_bytes, stream));
  PBX_RETURN_IF_ERROR(SetZero(batch->sums.as<void>(), sum_bytes, stream));
  return Synchronize(stream);  // the host's keys and fences are freed after the call
}

}  // namespace
}  // namespace pbx::hbm

using namespace pbx;       // NOLINT(google-build-using-namespace): the C interface is outside of it
using namespace pbx::hbm;  // NOLINT(google-build-using-namespace)

int pbx_hbm_begin_batch(pbx_hbm* hbm, pbx_hbm_table** out) {
  return Call(hbm, [&]() -> Status {
    std::unique_ptr<pbx_hbm_table> batch;
    PBX_RETURN_IF_ERROR(BeginBatch(hbm, &batch));
    *out = batch.release();
    return Status::Ok();
  });
}

int pbx_hbm_renew(pbx_hbm_table* batch, const uint64_t* keys, uint64_t n, int32_t stamp,
                  int32_t read_only) {
  return Call(batch->hbm, [&] { return Renew(batch, keys, n, stamp, read_only != 0); });
}

int pbx_hbm_fill(pbx_hbm_table* batch, int32_t wire, const int32_t* at, uint64_t first,
                 const void* records, uint64_t m, void* stream) {
  return Call(batch->hbm, [&]() -> Status {
    Record record = Record::kFloat32;
    PBX_RETURN_IF_ERROR(RecordOf(wire, &record));
    PBX_FOR_RECORD(record, LaunchFill, batch->view, at, first, records, m,
                   static_cast<Stream>(stream))
  });
}

int pbx_hbm_merge(pbx_hbm_table* batch, const int32_t* plan, uint64_t plan_size,
                  const pbx_hbm_gradient* gradient, void* stream) {
  return Call(batch->hbm, [&] {
    return LaunchMerge(batch, plan, plan_size, *gradient, static_cast<Stream>(stream));
  });
}

int pbx_hbm_sums(const pbx_hbm_table* batch, float* out, void* stream) {
  return Call(batch->hbm, [&]() -> Status {
    const size_t bytes = batch->view.n * static_cast<size_t>(batch->hbm->columns()) * 4;
    PBX_RETURN_IF_ERROR(ToHost(out, batch->sums.as<void>(), bytes, static_cast<Stream>(stream)));
    return Synchronize(static_cast<Stream>(stream));
  });
}
