#include "cuda/table.h"

#include <algorithm>
#include <cstring>

#include "cuda/call.h"

#ifdef __CUDACC__
#include <thrust/iterator/counting_iterator.h>

#include <cub/cub.cuh>
#endif

namespace pbx::hbm {
namespace {

constexpr int kTileKeys = 1024;
constexpr int kTileRows = 64;
constexpr size_t kCopyBytes = size_t{16} << 20;  // per buffer of rows being copied
constexpr size_t kTaskBytes = 64 << 10;          // of rows, at least, per thread that copies them

// fences[b]: the index of the first key that is in bucket b or in a later bucket.
struct MakeFences {
  TableView table;
  uint32_t* fences;
  uint64_t buckets;

  PBX_HOST_DEVICE void operator()(const Block& block, int64_t tile) const {
    const uint64_t first = static_cast<uint64_t>(tile) * kTileKeys;
    // There is one item more than keys: the last item sets the remaining fences.
    block.ForEach(CountOf(table.n + 1, first, kTileKeys), [&](int i) {
      const uint64_t at = first + static_cast<uint64_t>(i);
      const uint64_t begin = at == 0 ? 0 : (table.keys[at - 1] >> table.shift) + 1;
      const uint64_t end = at == table.n ? buckets : table.keys[at] >> table.shift;
      for (uint64_t b = begin; b <= end; ++b) fences[b] = static_cast<uint32_t>(at);
    });
  }
};

struct FindKeys {
  TableView table;
  const uint64_t* feasigns;
  uint64_t m;
  int32_t* ids;

  PBX_HOST_DEVICE void operator()(const Block& block, int64_t tile) const {
    const uint64_t first = static_cast<uint64_t>(tile) * kTileKeys;
    block.ForEach(CountOf(m, first, kTileKeys), [&](int i) {
      const uint64_t at = first + static_cast<uint64_t>(i), key = Mix(feasigns[at]);
      ids[at] = table.Find(key);
      if (!table.expects || ids[at] >= 0 || feasigns[at] == 0 || IsRefused(key)) return;
      AddTo(&table.report->absent, 1);
      RaiseTo(&table.report->an_absent, feasigns[at]);
    });
  }

  PBX_HOST_DEVICE bool IsRefused(uint64_t key) const {
    uint64_t begin = 0, end = table.refused_count;
    while (begin < end) {
      const uint64_t middle = begin + (end - begin) / 2;
      if (table.refused[middle] < key) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    return begin < table.refused_count && table.refused[begin] == key;
  }
};

// Copies rows between the table and an array of W words per row.
struct MoveRows {
  TableView table;
  const int32_t* ids;  // null: first + i
  uint64_t first, m;
  float* array;
  uint32_t words;
  bool into_table;

  PBX_HOST_DEVICE void operator()(const Block& block, int64_t tile) const {
    const uint64_t begin = static_cast<uint64_t>(tile) * kTileRows;
    const int count = CountOf(m, begin, kTileRows);
    block.ForEach(count * static_cast<int>(words), [&](int i) {
      const uint64_t at = begin + static_cast<uint64_t>(i) / words;
      const uint32_t word = static_cast<uint32_t>(i) % words;
      const int64_t id = ids == nullptr ? static_cast<int64_t>(first + at) : ids[at];
      float* const here = table.row(id) + word;
      float* const there = array + at * words + word;
      if (into_table) {
        *here = *there;
      } else {
        *there = *here;
      }
    });
  }
};

struct CreateRows {
  TableView table;
  const int32_t* ids;
  const uint16_t* slots;
  uint64_t m;

  PBX_HOST_DEVICE void operator()(const Block& block, int64_t tile) const {
    const uint64_t begin = static_cast<uint64_t>(tile) * kTileRows;
    block.ForEach(CountOf(m, begin, kTileRows), [&](int i) {
      const uint64_t at = begin + static_cast<uint64_t>(i);
      accessor::Create(table.config, table.keys[ids[at]], slots[at], table.row(ids[at]));
    });
  }
};

// Copies the rows of `from` whose keys `to` has too.
struct CarryRows {
  TableView from, to;
  uint32_t words;
  uint64_t* copied;

  PBX_HOST_DEVICE void operator()(const Block& block, int64_t tile) const {
    const uint64_t begin = static_cast<uint64_t>(tile) * kTileRows;
    const int count = CountOf(to.n, begin, kTileRows);
    int32_t* const places = block.shared<int32_t>();
    block.ForEach(count, [&](int i) {
      places[i] = from.Find(to.keys[begin + static_cast<uint64_t>(i)]);
      if (places[i] >= 0) AddTo(copied, 1);
    });
    block.ForEach(count * static_cast<int>(words), [&](int i) {
      const int r = i / static_cast<int>(words), word = i % static_cast<int>(words);
      if (places[r] < 0) return;
      float* const target = to.row(static_cast<int64_t>(begin) + r);
      const float* const source = from.row(places[r]);
      if (word == 0) {
        SetWord(target, 0, GetWord(source, 0) & ~(uint32_t{kTouched} << 16));
      } else {
        target[word] = source[word];
      }
    });
  }
};

struct IsChanged {
  TableView table;
  PBX_HOST_DEVICE bool operator()(int32_t id) const { return table.Changed(id); }
};

struct RoundRows {
  TableView table;
  Precision precision;
  uint64_t pass;

  PBX_HOST_DEVICE void operator()(const Block& block, int64_t tile) const {
    const uint64_t begin = static_cast<uint64_t>(tile) * kTileRows;
    const int dim = table.config.layout.embedx_dim, at = table.config.layout.embedx_at();
    block.ForEach(CountOf(table.n, begin, kTileRows) * dim, [&](int i) {
      const int64_t id = static_cast<int64_t>(begin) + i / dim;
      if (!table.Changed(id)) return;
      const uint64_t base = rounding::BaseOf(table.config.seed, table.keys[id], pass);
      float* const value = table.row(id) + at + i % dim;
      *value = rounding::Rounded(precision, base, i % dim, *value);
    });
  }
};

Status CheckIds(const pbx_hbm_table& table, const char* what, const int32_t* ids, uint64_t first,
                uint64_t m) {
  if (ids == nullptr) {
    if (first <= table.view.n && m <= table.view.n - first) return Status::Ok();
    return Error(Code::kInvalidArgument, "%s: rows [%llu, %llu + %llu), but the table has %llu",
                 what, static_cast<unsigned long long>(first),
                 static_cast<unsigned long long>(first), static_cast<unsigned long long>(m),
                 static_cast<unsigned long long>(table.view.n));
  }
  for (uint64_t i = 0; i < m; ++i) {
    const auto id = static_cast<uint64_t>(static_cast<uint32_t>(ids[i]));
    if (ids[i] >= 0 && id >= first && id < table.view.n) continue;
    return Error(Code::kInvalidArgument, "%s: ids[%llu] is %d, expected %llu to %lld", what,
                 static_cast<unsigned long long>(i), ids[i], static_cast<unsigned long long>(first),
                 static_cast<long long>(table.view.n) - 1);
  }
  return Status::Ok();
}

// Copies rows and their ids through the two buffers: from the table to to_host, or from from_host
// into the table. The pointer that is not used is null. Row i is at (i - first) * W of the host.
Status Transfer(const pbx_hbm_table& table, const int32_t* ids, uint64_t first, uint64_t m,
                const float* from_host, float* to_host) {
  pbx_hbm& hbm = *table.hbm;
  const std::lock_guard<std::mutex> lock(hbm.copying);
  const size_t words = hbm.words(), row = words * 4, with_id = row + 4;
  const uint64_t most = std::max<uint64_t>(1, kCopyBytes / with_id);
  Stream stream = hbm.copies.get();
  for (int side = 0; side < 2; ++side) {
    PBX_RETURN_IF_ERROR(hbm.moved[side].Wait());
    const size_t bytes = std::min(m, most) * with_id;
    if (hbm.pinned[side].bytes() >= bytes) continue;
    for (Memory* memory : {&hbm.pinned[side], &hbm.landing[side]}) {
      const bool pinned = memory == &hbm.pinned[side];
      Result<Memory> made = Memory::New("rows under way", bytes,
                                        pinned ? Memory::Where::kPinned : Memory::Where::kDevice);
      if (!made.ok()) return made.status();
      *memory = std::move(made.value());
    }
  }
  // Copies rows [begin, begin + count) of the m between the host and a pinned buffer.
  const auto pack = [&](int side, uint64_t begin, uint64_t count) {
    float* const pinned = hbm.pinned[side].as<float>();
    hbm.threads->ParallelRanges(
        count, std::max<size_t>(1, kTaskBytes / row), [&](size_t i, size_t end) {
          for (size_t together = end - i; i < end; i += together) {
            if (ids != nullptr) together = 1;
            const size_t at =
                ids == nullptr ? begin + i : static_cast<size_t>(ids[begin + i]) - first;
            if (from_host != nullptr) {
              std::memcpy(pinned + i * words, from_host + at * words, together * row);
            } else {
              std::memcpy(to_host + at * words, pinned + i * words, together * row);
            }
          }
        });
  };
  uint64_t waiting = 0;  // rows of the other buffer, which are being copied to the host
  const auto land = [&](int side, uint64_t end) -> Status {
    if (to_host == nullptr || waiting == 0) return Status::Ok();
    PBX_RETURN_IF_ERROR(hbm.moved[side].Wait());
    pack(side, end - waiting, waiting);
    return Status::Ok();
  };
  int side = 0;
  for (uint64_t begin = 0; begin < m; begin += most, side ^= 1) {
    const uint64_t count = std::min(most, m - begin);
    PBX_RETURN_IF_ERROR(hbm.moved[side].Wait());
    float* const pinned = hbm.pinned[side].as<float>();
    float* const landing = hbm.landing[side].as<float>();
    int32_t* const places = reinterpret_cast<int32_t*>(landing + count * words);
    if (ids != nullptr) {
      int32_t* const from = reinterpret_cast<int32_t*>(pinned + count * words);
      std::memcpy(from, ids + begin, count * 4);
      PBX_RETURN_IF_ERROR(ToDevice(places, from, count * 4, stream));
    }
    if (from_host != nullptr) {
      pack(side, begin, count);
      PBX_RETURN_IF_ERROR(ToDevice(landing, pinned, count * row, stream));
    }
    const MoveRows body{table.view, ids == nullptr ? nullptr : places, first + begin,       count,
                        landing,    static_cast<uint32_t>(words),      from_host != nullptr};
    PBX_RETURN_IF_ERROR(Launch("rows", body, TilesOf(count, kTileRows), 0, stream));
    if (to_host != nullptr) PBX_RETURN_IF_ERROR(ToHost(pinned, landing, count * row, stream));
    PBX_RETURN_IF_ERROR(hbm.moved[side].Record(stream));
    PBX_RETURN_IF_ERROR(land(side ^ 1, begin));
    waiting = count;
  }
  PBX_RETURN_IF_ERROR(land(side ^ 1, m));
  return Synchronize(stream);
}

Status CheckAndTransfer(const pbx_hbm_table& table, const int32_t* ids, uint64_t first, uint64_t m,
                        const float* from_host, float* to_host) {
  const char* const what = from_host != nullptr ? "put_rows" : "get_rows";
  PBX_RETURN_IF_ERROR(CheckIds(table, what, ids, first, m));
  Status status = Transfer(table, ids, first, m, from_host, to_host);
  if (status.ok()) return status;
  return Error(status.code(), "%s of %zu bytes: %s", what, m * table.hbm->words() * 4,
               status.message().c_str());
}

Result<Memory> Filled(const char* what, const void* host, size_t bytes, Stream stream) {
  Result<Memory> memory = Memory::New(what, bytes);
  if (!memory.ok()) return memory;
  PBX_RETURN_IF_ERROR(ToDevice(memory.value().as<void>(), host, bytes, stream));
  return memory;
}

Status Begin(pbx_hbm* hbm, const uint64_t* keys, uint64_t n, int32_t stamp,
             std::unique_ptr<pbx_hbm_table>* out) {
  if (n > INT32_MAX) {
    return Error(Code::kInvalidArgument, "a table of %llu rows, expected at most 2^31 - 1",
                 static_cast<unsigned long long>(n));
  }
  for (uint64_t i = 1; i < n; ++i) {
    if (keys[i - 1] < keys[i]) continue;
    return Error(Code::kInvalidArgument,
                 "keys[%llu] is %016llx after %016llx, expected ascending keys",
                 static_cast<unsigned long long>(i), static_cast<unsigned long long>(keys[i]),
                 static_cast<unsigned long long>(keys[i - 1]));
  }
  auto table = std::make_unique<pbx_hbm_table>();
  table->hbm = hbm;
  TableView& view = table->view;
  view.config = hbm->config;
  view.n = n;
  view.stamp = stamp;
  view.stride =
      (static_cast<uint32_t>(hbm->words()) + kSectorWords - 1) / kSectorWords * kSectorWords;
  int bits = 1;
  while (bits < 30 && (n >> (bits + 2)) != 0) ++bits;
  view.shift = 64 - bits;
  const uint64_t buckets = uint64_t{1} << bits;
  Stream stream = hbm->copies.get();
  const size_t row_bytes = n * view.stride * 4;
  const size_t report_bytes = sizeof(pbx_hbm_report) + kSlots * sizeof(uint64_t);
  for (auto [memory, what, bytes] :
       {std::tuple{&table->keys, "keys", n * 8}, std::tuple{&table->rows, "rows", row_bytes},
        std::tuple{&table->fences, "the index", (buckets + 1) * 4},
        std::tuple{&table->report, "counters", report_bytes}}) {
    Result<Memory> made = Memory::New(what, bytes);
    if (!made.ok()) return made.status();
    *memory = std::move(made.value());
  }
  view.keys = table->keys.as<uint64_t>();
  view.rows = table->rows.as<float>();
  view.fences = table->fences.as<uint32_t>();
  view.report = table->report.as<pbx_hbm_report>();
  view.bad_by_slot = reinterpret_cast<uint64_t*>(view.report + 1);
  PBX_RETURN_IF_ERROR(ToDevice(table->keys.as<void>(), keys, n * 8, stream));
  PBX_RETURN_IF_ERROR(SetZero(table->rows.as<void>(), row_bytes, stream));
  PBX_RETURN_IF_ERROR(SetZero(view.report, report_bytes, stream));
  const MakeFences body{view, table->fences.as<uint32_t>(), buckets};
  PBX_RETURN_IF_ERROR(Launch("the index", body, TilesOf(n + 1, kTileKeys), 0, stream));
  PBX_RETURN_IF_ERROR(Synchronize(stream));
  *out = std::move(table);
  return Status::Ok();
}

Status Changed(const pbx_hbm_table& table, int32_t* ids, uint64_t* count) {
  const IsChanged is_changed{table.view};
#ifdef __CUDACC__
  Stream stream = table.hbm->copies.get();
  const int n = static_cast<int>(table.view.n);
  *count = 0;
  if (n == 0) return Status::Ok();
  const thrust::counting_iterator<int32_t> all(0);
  Result<Memory> found = Memory::New("changed rows", (static_cast<size_t>(n) + 2) * 4);
  if (!found.ok()) return found.status();
  int32_t* const into = found.value().as<int32_t>();
  size_t bytes = 0;
  PBX_RETURN_IF_ERROR(
      CudaStatus(cub::DeviceSelect::If(nullptr, bytes, all, into, into + n, n, is_changed, stream),
                 "changed rows"));
  Result<Memory> room = Memory::New("changed rows", bytes);
  if (!room.ok()) return room.status();
  PBX_RETURN_IF_ERROR(CudaStatus(cub::DeviceSelect::If(room.value().as<void>(), bytes, all, into,
                                                       into + n, n, is_changed, stream),
                                 "changed rows"));
  int32_t number = 0;
  PBX_RETURN_IF_ERROR(ToHost(&number, into + n, 4, stream));
  PBX_RETURN_IF_ERROR(Synchronize(stream));
  PBX_RETURN_IF_ERROR(ToHost(ids, into, static_cast<size_t>(number) * 4, stream));
  PBX_RETURN_IF_ERROR(Synchronize(stream));
  *count = static_cast<uint64_t>(number);
#else
  PBX_RETURN_IF_ERROR(Synchronize(table.hbm->copies.get()));
  const OpenMemory open;
  *count = 0;
  for (uint64_t id = 0; id < table.view.n; ++id) {
    if (is_changed(static_cast<int32_t>(id))) ids[(*count)++] = static_cast<int32_t>(id);
  }
#endif
  return Status::Ok();
}

}  // namespace
}  // namespace pbx::hbm

using namespace pbx;       // NOLINT(google-build-using-namespace): the C interface is outside of it
using namespace pbx::hbm;  // NOLINT(google-build-using-namespace)

int pbx_hbm_begin(pbx_hbm* hbm, const uint64_t* keys, uint64_t n, int32_t stamp,
                  pbx_hbm_table** out) {
  return Call(hbm, [&]() -> Status {
    std::unique_ptr<pbx_hbm_table> table;
    PBX_RETURN_IF_ERROR(Begin(hbm, keys, n, stamp, &table));
    *out = table.release();
    return Status::Ok();
  });
}

void pbx_hbm_drop(pbx_hbm_table* table) {
  if (table == nullptr) return;
  const OnDevice here(table->hbm->device);
  delete table;
}

int pbx_hbm_expect(pbx_hbm_table* table, const uint64_t* refused, uint64_t m) {
  return Call(table->hbm, [&]() -> Status {
    Result<Memory> filled = Filled("refused keys", refused, m * 8, table->hbm->copies.get());
    if (!filled.ok()) return filled.status();
    PBX_RETURN_IF_ERROR(Synchronize(table->hbm->copies.get()));
    table->refused = std::move(filled.value());
    table->view.refused = table->refused.as<uint64_t>();
    table->view.refused_count = m;
    table->view.expects = true;
    return Status::Ok();
  });
}

int pbx_hbm_peek(const pbx_hbm_table* table, pbx_hbm_report* pinned, void* stream) {
  return Call(table->hbm, [&] {
    return ToHost(pinned, table->view.report, sizeof(*pinned), static_cast<Stream>(stream));
  });
}

int pbx_hbm_report_of(const pbx_hbm_table* table, pbx_hbm_report* out, uint64_t* bad_by_slot) {
  return Call(table->hbm, [&]() -> Status {
    Stream stream = table->hbm->copies.get();
    PBX_RETURN_IF_ERROR(ToHost(out, table->view.report, sizeof(*out), stream));
    if (bad_by_slot != nullptr) {
      PBX_RETURN_IF_ERROR(
          ToHost(bad_by_slot, table->view.bad_by_slot, kSlots * sizeof(uint64_t), stream));
    }
    return Synchronize(stream);
  });
}

int pbx_hbm_sizes_of(const pbx_hbm_table* table, pbx_hbm_sizes* out) {
  out->rows = table->view.n;
  out->row_bytes = uint64_t{table->view.stride} * 4;
  out->table_bytes =
      table->keys.bytes() + table->rows.bytes() + table->fences.bytes() + table->chunk_sums.bytes();
  return PBX_HBM_OK;
}

int pbx_hbm_put_rows(pbx_hbm_table* table, const int32_t* ids, uint64_t first, uint64_t m,
                     const float* rows) {
  return Call(table->hbm, [&] { return CheckAndTransfer(*table, ids, first, m, rows, nullptr); });
}

int pbx_hbm_get_rows(const pbx_hbm_table* table, const int32_t* ids, uint64_t first, uint64_t m,
                     float* rows) {
  return Call(table->hbm, [&] { return CheckAndTransfer(*table, ids, first, m, nullptr, rows); });
}

int pbx_hbm_create_rows(pbx_hbm_table* table, const int32_t* ids, const uint16_t* slots,
                        uint64_t m) {
  return Call(table->hbm, [&]() -> Status {
    PBX_RETURN_IF_ERROR(CheckIds(*table, "create_rows", ids, 0, m));
    Stream stream = table->hbm->copies.get();
    Result<Memory> places = Filled("new rows", ids, m * 4, stream);
    if (!places.ok()) return places.status();
    Result<Memory> of = Filled("slots of new rows", slots, m * 2, stream);
    if (!of.ok()) return of.status();
    const CreateRows body{table->view, places.value().as<int32_t>(), of.value().as<uint16_t>(), m};
    PBX_RETURN_IF_ERROR(Launch("create_rows", body, TilesOf(m, kTileRows), 0, stream));
    return Synchronize(stream);
  });
}

int pbx_hbm_carry(const pbx_hbm_table* from, pbx_hbm_table* to, uint64_t* copied) {
  return Call(to->hbm, [&]() -> Status {
    if (from->hbm != to->hbm) {
      return Error(Code::kInvalidArgument, "carry: the tables differ in device or layout");
    }
    Stream stream = to->hbm->copies.get();
    Result<Memory> count = Memory::New("a counter", 8);
    if (!count.ok()) return count.status();
    PBX_RETURN_IF_ERROR(SetZero(count.value().as<void>(), 8, stream));
    const CarryRows body{from->view, to->view, static_cast<uint32_t>(to->hbm->words()),
                         count.value().as<uint64_t>()};
    PBX_RETURN_IF_ERROR(
        Launch("carry", body, TilesOf(to->view.n, kTileRows), kTileRows * 4, stream));
    uint64_t found = 0;
    PBX_RETURN_IF_ERROR(ToHost(&found, count.value().as<void>(), 8, stream));
    PBX_RETURN_IF_ERROR(Synchronize(stream));
    if (copied != nullptr) *copied = found;
    return Status::Ok();
  });
}

int pbx_hbm_changed(const pbx_hbm_table* table, int32_t* ids, uint64_t* count) {
  return Call(table->hbm, [&] { return Changed(*table, ids, count); });
}

int pbx_hbm_round(pbx_hbm_table* table, int32_t precision, uint64_t pass) {
  return Call(table->hbm, [&]() -> Status {
    if (precision != PBX_HBM_FLOAT16 && precision != PBX_HBM_BFLOAT16) {
      return Error(Code::kInvalidArgument, "round: precision is %d, expected %d or %d", precision,
                   PBX_HBM_FLOAT16, PBX_HBM_BFLOAT16);
    }
    Stream stream = table->hbm->copies.get();
    const RoundRows body{table->view, static_cast<Precision>(precision), pass};
    PBX_RETURN_IF_ERROR(Launch("round", body, TilesOf(table->view.n, kTileRows), 0, stream));
    return Synchronize(stream);
  });
}

int pbx_hbm_count(pbx_hbm_table* table, const float* counted) {
  return Call(table->hbm, [&]() -> Status {
    PBX_RETURN_IF_ERROR(SynchronizeAll());  // running pushes read the old values
    table->view.config.counted = nullptr;
    if (counted == nullptr) return Status::Ok();
    Stream stream = table->hbm->copies.get();
    Result<Memory> filled = Filled("counted slots", counted, kSlots * sizeof(float), stream);
    if (!filled.ok()) return filled.status();
    PBX_RETURN_IF_ERROR(Synchronize(stream));
    table->counted = std::move(filled.value());
    table->view.config.counted = table->counted.as<float>();
    return Status::Ok();
  });
}

int pbx_hbm_find(const pbx_hbm_table* table, const uint64_t* feasigns, uint64_t m, int32_t* ids,
                 void* stream) {
  return Call(table->hbm, [&] {
    return Launch("find", FindKeys{table->view, feasigns, m, ids}, TilesOf(m, kTileKeys), 0,
                  static_cast<Stream>(stream));
  });
}
