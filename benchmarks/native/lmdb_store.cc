// LMDB behind peer_store.h: ordered puts in one transaction, synced at its commit; reads by a
// cursor that searches for each key in ascending order.
#include <lmdb.h>

#include <cstring>
#include <memory>

#include "peer_store.h"

namespace {

constexpr size_t kMapBytes = size_t{1} << 40;
constexpr unsigned kReaders = 256;

std::string last_error;

struct Store {
  MDB_env* env = nullptr;
  MDB_dbi table = 0;
  ~Store() { mdb_env_close(env); }
};

bool Fails(int code) {
  if (code != MDB_SUCCESS) last_error = mdb_strerror(code);
  return code != MDB_SUCCESS;
}

MDB_val Value(const char* at, size_t bytes) { return {bytes, const_cast<char*>(at)}; }

// A transaction that is aborted unless it is committed, and a cursor in it.
class Cursor {
 public:
  ~Cursor() {
    if (cursor_ != nullptr) mdb_cursor_close(cursor_);
    if (txn_ != nullptr) mdb_txn_abort(txn_);
  }
  int Open(const Store& store, unsigned flags) {
    const int code = mdb_txn_begin(store.env, nullptr, flags, &txn_);
    return code == MDB_SUCCESS ? mdb_cursor_open(txn_, store.table, &cursor_) : code;
  }
  int Commit() {
    mdb_cursor_close(cursor_);
    cursor_ = nullptr;
    MDB_txn* const txn = txn_;
    txn_ = nullptr;
    return mdb_txn_commit(txn);
  }
  MDB_cursor* get() const { return cursor_; }

 private:
  MDB_txn* txn_ = nullptr;
  MDB_cursor* cursor_ = nullptr;
};

// The unnamed table. Only one thread may open it.
int OpenTable(Store* store) {
  MDB_txn* txn = nullptr;
  int code = mdb_txn_begin(store->env, nullptr, 0, &txn);
  if (code != MDB_SUCCESS) return code;
  code = mdb_dbi_open(txn, nullptr, 0, &store->table);
  if (code == MDB_SUCCESS) return mdb_txn_commit(txn);
  mdb_txn_abort(txn);
  return code;
}

int Get(const Store& store, const char* keys, size_t begin, size_t end, char* rows,
        uint8_t* found) {
  Cursor cursor;
  int code = cursor.Open(store, MDB_RDONLY);
  for (size_t i = begin; i < end && code == MDB_SUCCESS; ++i) {
    MDB_val key = Value(keys + i * peer::kKeyBytes, peer::kKeyBytes);
    MDB_val row;
    code = mdb_cursor_get(cursor.get(), &key, &row, MDB_SET);
    found[i] = code == MDB_SUCCESS;
    if (code == MDB_NOTFOUND) {
      code = MDB_SUCCESS;
    } else if (code == MDB_SUCCESS) {
      if (row.mv_size != peer::kRowBytes) return MDB_BAD_VALSIZE;
      std::memcpy(rows + i * peer::kRowBytes, row.mv_data, peer::kRowBytes);
    }
  }
  return code;
}

}  // namespace

extern "C" {

const char* PeerVersion() {
  static const std::string version = std::to_string(MDB_VERSION_MAJOR) + "." +
                                     std::to_string(MDB_VERSION_MINOR) + "." +
                                     std::to_string(MDB_VERSION_PATCH);
  return version.c_str();
}

const char* PeerError() { return last_error.c_str(); }

void* PeerOpen(const char* folder, int /*cores: one writer, and readers*/, bool read_ahead) {
  auto store = std::make_unique<Store>();
  if (Fails(mdb_env_create(&store->env)) || Fails(mdb_env_set_mapsize(store->env, kMapBytes)) ||
      Fails(mdb_env_set_maxreaders(store->env, kReaders)) ||
      Fails(mdb_env_open(store->env, folder, read_ahead ? 0 : MDB_NORDAHEAD, 0644)) ||
      Fails(OpenTable(store.get()))) {
    return nullptr;
  }
  return store.release();
}

void PeerClose(void* given) { delete static_cast<Store*>(given); }

bool PeerWrite(void* given, const char* keys, const char* rows, size_t n, bool empty) {
  Cursor cursor;
  if (Fails(cursor.Open(*static_cast<Store*>(given), 0))) return false;
  for (size_t i = 0; i < n; ++i) {
    MDB_val key = Value(keys + i * peer::kKeyBytes, peer::kKeyBytes);
    MDB_val row = Value(rows + i * peer::kRowBytes, peer::kRowBytes);
    if (Fails(mdb_cursor_put(cursor.get(), &key, &row, empty ? MDB_APPEND : 0))) return false;
  }
  return !Fails(cursor.Commit());
}

// A scan is no faster than the cursor, which looks at its page first.
bool PeerRead(void* given, const char* keys, size_t n, char* rows, uint8_t* found, int threads,
              bool /*scan*/) {
  const Store& store = *static_cast<Store*>(given);
  peer::Failure failure;
  peer::InPieces(n, peer::PieceOf(n, threads), threads, failure, [&](size_t begin, size_t end) {
    const int code = Get(store, keys, begin, end, rows, found);
    if (code != MDB_SUCCESS) failure.Set(mdb_strerror(code));
  });
  if (failure.failed()) last_error = failure.message();
  return !failure.failed();
}

}  // extern "C"
