// Copies records between arrays of the host and tables of a device, and feeds to a device, through
// buffers that are reused.
#include <memory>

#include "cuda/call.h"
#include "cuda/pack.h"

struct pbx_hbm_staging {
  pbx_hbm* hbm = nullptr;
  pbx::hbm::OwnStream stream;
  pbx::hbm::Memory ids, records, rows;
};

struct pbx_hbm_parcel {
  int device = 0;
  pbx::hbm::OwnStream stream;
  pbx::hbm::Memory pinned, on_device;
};

namespace pbx::hbm {
namespace {

constexpr int kTileIds = 4 * kThreads;

struct LookForEmbedx {
  TableView table;
  const int32_t* ids;  // (m)
  uint64_t m;
  uint8_t* out;  // (m)

  PBX_HOST_DEVICE void operator()(const Block& block, int64_t tile) const {
    const uint64_t first = static_cast<uint64_t>(tile) * kTileIds;
    block.ForEach(CountOf(m, first, kTileIds), [&](int i) {
      const uint64_t at = first + static_cast<uint64_t>(i);
      const bool has = table.Has(ids[at]);
      out[at] = has && HasEmbedx(table.row(ids[at])) ? 1 : 0;
      if (ids[at] != -1 && !has) AddTo(&table.report->out_of_range, 1);
    });
  }
};

// Copies ids or a plan, and records, to the device.
Status Stage(pbx_hbm_staging* staging, const int32_t* ids, uint64_t count, const void* records,
             uint64_t bytes) {
  Stream stream = staging->stream.get();
  PBX_RETURN_IF_ERROR(staging->ids.Grow("ids on the device", count * 4));
  PBX_RETURN_IF_ERROR(staging->records.Grow("records on the device", bytes));
  if (ids != nullptr) {
    PBX_RETURN_IF_ERROR(ToDevice(staging->ids.as<void>(), ids, count * 4, stream));
  }
  if (records == nullptr) return Status::Ok();
  return ToDevice(staging->records.as<void>(), records, bytes, stream);
}

Status BytesOf(const pbx_hbm_staging& staging, int32_t wire, uint64_t m, uint64_t* bytes) {
  Record record = Record::kFloat32;
  PBX_RETURN_IF_ERROR(RecordOf(wire, &record));
  *bytes = m * RecordBytes(record, staging.hbm->columns());
  return Status::Ok();
}

// Call(), and waits for the work that f put into the stream.
template <class F>
int Staged(pbx_hbm_staging* staging, const F& f) {
  int code = PBX_HBM_OK;
  const int staged = Call(staging->hbm, [&] { return f(&code); });
  if (staged != PBX_HBM_OK || code != PBX_HBM_OK) return staged != PBX_HBM_OK ? staged : code;
  return pbx_hbm_synchronize(staging->stream.get());
}

template <class F>
int On(int device, const F& f) {
  const OnDevice here(device);
  return Told(here.status().ok() ? f() : here.status());
}

}  // namespace
}  // namespace pbx::hbm

using namespace pbx;       // NOLINT(google-build-using-namespace): the C interface is outside of it
using namespace pbx::hbm;  // NOLINT(google-build-using-namespace)

int pbx_hbm_open_staging(pbx_hbm* hbm, pbx_hbm_staging** out) {
  return Call(hbm, [&]() -> Status {
    auto staging = std::make_unique<pbx_hbm_staging>();
    staging->hbm = hbm;
    PBX_RETURN_IF_ERROR(staging->stream.Open());
    *out = staging.release();
    return Status::Ok();
  });
}

void pbx_hbm_close_staging(pbx_hbm_staging* staging) {
  if (staging == nullptr) return;
  const OnDevice here(staging->hbm->device);
  delete staging;
}

int pbx_hbm_stage_gather(pbx_hbm_staging* staging, const pbx_hbm_table* table, int32_t wire,
                         const int32_t* ids, uint64_t m, void* out) {
  return Staged(staging, [&](int* code) -> Status {
    uint64_t bytes = 0;
    PBX_RETURN_IF_ERROR(BytesOf(*staging, wire, m, &bytes));
    PBX_RETURN_IF_ERROR(Stage(staging, ids, m, nullptr, bytes));
    Stream stream = staging->stream.get();
    *code = pbx_hbm_gather(table, wire, staging->ids.as<int32_t>(), m, staging->records.as<void>(),
                           stream);
    if (*code != PBX_HBM_OK) return Status::Ok();
    return ToHost(out, staging->records.as<void>(), bytes, stream);
  });
}

int pbx_hbm_stage_have_embedx(pbx_hbm_staging* staging, const pbx_hbm_table* table,
                              const int32_t* ids, uint64_t m, uint8_t* out) {
  return Staged(staging, [&](int*) -> Status {
    PBX_RETURN_IF_ERROR(Stage(staging, ids, m, nullptr, m));
    Stream stream = staging->stream.get();
    uint8_t* const found = staging->records.as<uint8_t>();
    const LookForEmbedx body{table->view, staging->ids.as<int32_t>(), m, found};
    PBX_RETURN_IF_ERROR(Launch("have_embedx", body, TilesOf(m, kTileIds), 0, stream));
    return ToHost(out, found, m, stream);
  });
}

int pbx_hbm_stage_fill(pbx_hbm_staging* staging, pbx_hbm_table* batch, int32_t wire,
                       const int32_t* at, uint64_t first, const void* records, uint64_t m) {
  return Staged(staging, [&](int* code) -> Status {
    uint64_t bytes = 0;
    PBX_RETURN_IF_ERROR(BytesOf(*staging, wire, m, &bytes));
    PBX_RETURN_IF_ERROR(Stage(staging, at, m, records, bytes));
    *code = pbx_hbm_fill(batch, wire, at == nullptr ? nullptr : staging->ids.as<int32_t>(), first,
                         staging->records.as<void>(), m, staging->stream.get());
    return Status::Ok();
  });
}

int pbx_hbm_stage_push(pbx_hbm_staging* staging, pbx_hbm_table* table, const int32_t* plan,
                       uint64_t plan_size, int32_t wire, const void* records, uint64_t m,
                       const pbx_hbm_gradient* gradient) {
  return Staged(staging, [&](int* code) -> Status {
    uint64_t bytes = 0;
    PBX_RETURN_IF_ERROR(BytesOf(*staging, wire, m, &bytes));
    if (gradient->with_expand != 0) {
      bytes += m * static_cast<uint64_t>(staging->hbm->config.layout.expand_dim) * 4;
    }
    PBX_RETURN_IF_ERROR(Stage(staging, plan, plan_size, records, bytes));
    const auto columns = static_cast<uint64_t>(staging->hbm->columns());
    if (wire != PBX_HBM_WIRE_FLOAT32) {
      PBX_RETURN_IF_ERROR(staging->rows.Grow("gradients on the device", m * columns * 4));
    }
    *code = pbx_hbm_push_records(table, staging->ids.as<int32_t>(), plan_size, wire,
                                 staging->records.as<void>(), m, staging->rows.as<float>(),
                                 gradient, staging->stream.get());
    return Status::Ok();
  });
}

int pbx_hbm_open_parcel(int device, pbx_hbm_parcel** out) {
  return On(device, [&]() -> Status {
    auto parcel = std::make_unique<pbx_hbm_parcel>();
    parcel->device = device;
    parcel->pinned = std::move(Memory::New("feeds", 0, Memory::Where::kPinned).value());
    PBX_RETURN_IF_ERROR(parcel->stream.Open());
    *out = parcel.release();
    return Status::Ok();
  });
}

void pbx_hbm_close_parcel(pbx_hbm_parcel* parcel) {
  if (parcel == nullptr) return;
  const OnDevice here(parcel->device);
  delete parcel;
}

int pbx_hbm_fit_parcel(pbx_hbm_parcel* parcel, uint64_t bytes, void** pinned, void** on_device) {
  return On(parcel->device, [&]() -> Status {
    PBX_RETURN_IF_ERROR(parcel->pinned.Grow("feeds", bytes));
    PBX_RETURN_IF_ERROR(parcel->on_device.Grow("feeds on the device", bytes));
    *pinned = parcel->pinned.as<void>();
    *on_device = parcel->on_device.as<void>();
    return Status::Ok();
  });
}

int pbx_hbm_send_parcel(pbx_hbm_parcel* parcel, uint64_t bytes) {
  return On(parcel->device, [&]() -> Status {
    Stream stream = parcel->stream.get();
    PBX_RETURN_IF_ERROR(
        ToDevice(parcel->on_device.as<void>(), parcel->pinned.as<void>(), bytes, stream));
    return Synchronize(stream);
  });
}
