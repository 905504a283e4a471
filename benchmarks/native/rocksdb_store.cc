// RocksDB behind peer_store.h: direct I/O, Bloom filters of 10 bits in memory, blocks of 4 KiB, no
// compression. Reads are MultiGets or a scan; writes are SST files that are ingested.
#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/options.h>
#include <rocksdb/sst_file_writer.h>
#include <rocksdb/table.h>
#include <rocksdb/version.h>

#include <chrono>
#include <memory>

#include "peer_store.h"

namespace {

constexpr size_t kCacheBytes = 32 << 20;
constexpr size_t kFileBytes = 64 << 20;  // of an SST file, as compaction makes them
constexpr size_t kScanAhead = 2 << 20;
constexpr size_t kMultiGet = 32;  // keys of a call; 128 and 1,024 were slower or no faster

std::string last_error;

struct Store {
  std::string folder;
  int cores;
  rocksdb::Options options;
  std::unique_ptr<rocksdb::DB> db;
  size_t files = 0;
};

rocksdb::Options OptionsFor(int cores) {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.compression = rocksdb::kNoCompression;
  options.use_direct_reads = true;
  options.use_direct_io_for_flush_and_compaction = true;
  options.IncreaseParallelism(cores);
  options.max_background_jobs = cores;
  options.max_subcompactions = static_cast<uint32_t>(cores);
  options.max_open_files = -1;
  rocksdb::BlockBasedTableOptions table;
  table.block_size = 4096;
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10, false));
  table.block_cache = rocksdb::NewLRUCache(kCacheBytes);
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

rocksdb::Slice KeyAt(const char* keys, size_t i) {
  return {keys + i * peer::kKeyBytes, peer::kKeyBytes};
}

rocksdb::Status WriteFile(const rocksdb::Options& options, const std::string& path,
                          const char* keys, const char* rows, size_t begin, size_t end) {
  rocksdb::SstFileWriter writer(rocksdb::EnvOptions(options), options);
  rocksdb::Status status = writer.Open(path);
  for (size_t i = begin; i < end && status.ok(); ++i) {
    status = writer.Put(KeyAt(keys, i), {rows + i * peer::kRowBytes, peer::kRowBytes});
  }
  return status.ok() ? writer.Finish() : status;
}

// Waits for the compaction that is due.
void WaitUntilQuiet(rocksdb::DB* db) {
  int quiet = 0;
  while (quiet < 3) {
    bool busy = false;
    for (const std::string& name :
         {rocksdb::DB::Properties::kNumRunningCompactions,
          rocksdb::DB::Properties::kCompactionPending, rocksdb::DB::Properties::kNumRunningFlushes,
          rocksdb::DB::Properties::kMemTableFlushPending}) {
      uint64_t value = 0;
      busy |= db->GetIntProperty(name, &value) && value != 0;
    }
    quiet = busy ? 0 : quiet + 1;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void Take(const rocksdb::Slice& value, size_t i, char* rows, uint8_t* found,
          peer::Failure* failure) {
  if (value.size() != peer::kRowBytes) return failure->Set("a row of another size");
  std::copy_n(value.data(), peer::kRowBytes, rows + i * peer::kRowBytes);
  found[i] = 1;
}

void Get(rocksdb::DB* db, const char* keys, size_t begin, size_t end, char* rows, uint8_t* found,
         peer::Failure* failure) {
  rocksdb::Slice asked[kMultiGet];
  rocksdb::PinnableSlice values[kMultiGet];
  rocksdb::Status statuses[kMultiGet];
  for (size_t first = begin; first < end; first += kMultiGet) {
    const size_t count = std::min(kMultiGet, end - first);
    for (size_t i = 0; i < count; ++i) asked[i] = KeyAt(keys, first + i);
    db->MultiGet(rocksdb::ReadOptions(), db->DefaultColumnFamily(), count, asked, values, statuses,
                 /*sorted_input=*/true);
    for (size_t i = 0; i < count; ++i) {
      found[first + i] = 0;
      if (statuses[i].ok()) {
        Take(values[i], first + i, rows, found, failure);
      } else if (!statuses[i].IsNotFound()) {
        failure->Set(statuses[i].ToString());
      }
      values[i].Reset();
    }
  }
}

void Scan(rocksdb::DB* db, const char* keys, size_t begin, size_t end, char* rows, uint8_t* found,
          peer::Failure* failure) {
  rocksdb::ReadOptions options;
  options.readahead_size = kScanAhead;
  options.fill_cache = false;
  const std::unique_ptr<rocksdb::Iterator> at(db->NewIterator(options));
  at->Seek(KeyAt(keys, begin));
  for (size_t i = begin; i < end; ++i) {
    const rocksdb::Slice key = KeyAt(keys, i);
    while (at->Valid() && at->key().compare(key) < 0) at->Next();
    found[i] = 0;
    if (at->Valid() && at->key() == key) Take(at->value(), i, rows, found, failure);
  }
  if (!at->status().ok()) failure->Set(at->status().ToString());
}

bool Ended(const peer::Failure& failure) {
  if (failure.failed()) last_error = failure.message();
  return !failure.failed();
}

}  // namespace

extern "C" {

const char* PeerVersion() {
  static const std::string version = std::to_string(ROCKSDB_MAJOR) + "." +
                                     std::to_string(ROCKSDB_MINOR) + "." +
                                     std::to_string(ROCKSDB_PATCH);
  return version.c_str();
}

const char* PeerError() { return last_error.c_str(); }

void* PeerOpen(const char* folder, int cores, bool /*read_ahead: its own, of direct I/O*/) {
  auto store = std::make_unique<Store>();
  store->folder = folder;
  store->cores = cores;
  store->options = OptionsFor(cores);
  rocksdb::DB* db = nullptr;
  const rocksdb::Status status = rocksdb::DB::Open(store->options, store->folder + "/db", &db);
  if (!status.ok()) {
    last_error = status.ToString();
    return nullptr;
  }
  store->db.reset(db);
  return store.release();
}

void PeerClose(void* given) { delete static_cast<Store*>(given); }

// A write batch without WAL and a flush take as long as SST files, with as much compaction.
bool PeerWrite(void* given, const char* keys, const char* rows, size_t n, bool /*empty*/) {
  auto* store = static_cast<Store*>(given);
  const size_t most = kFileBytes / (peer::kKeyBytes + peer::kRowBytes);
  const size_t cores = static_cast<size_t>(store->cores);
  const size_t piece = std::max<size_t>(std::min((n + cores - 1) / cores, most), 1);
  std::vector<std::string> paths((n + piece - 1) / piece);
  for (std::string& path : paths) {
    path = store->folder + "/" + std::to_string(++store->files) + ".sst";
  }
  peer::Failure failure;
  peer::InPieces(n, piece, store->cores, failure, [&](size_t begin, size_t end) {
    const rocksdb::Status status =
        WriteFile(store->options, paths[begin / piece], keys, rows, begin, end);
    if (!status.ok()) failure.Set(status.ToString());
  });
  if (!Ended(failure)) return false;
  rocksdb::IngestExternalFileOptions ingest;
  ingest.move_files = true;
  const rocksdb::Status status = store->db->IngestExternalFile(paths, ingest);
  if (!status.ok()) {
    last_error = status.ToString();
    return false;
  }
  WaitUntilQuiet(store->db.get());
  return true;
}

bool PeerRead(void* given, const char* keys, size_t n, char* rows, uint8_t* found, int threads,
              bool scan) {
  rocksdb::DB* const db = static_cast<Store*>(given)->db.get();
  peer::Failure failure;
  const size_t share = (n + static_cast<size_t>(threads) - 1) / static_cast<size_t>(threads);
  const size_t piece = scan ? std::max<size_t>(share, 1) : peer::PieceOf(n, threads);
  peer::InPieces(n, piece, threads, failure, [&](size_t begin, size_t end) {
    (scan ? Scan : Get)(db, keys, begin, end, rows, found, &failure);
  });
  return Ended(failure);
}

}  // extern "C"
