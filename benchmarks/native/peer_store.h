// The functions that peers/stores.py calls in the drivers of RocksDB and LMDB. A driver works on
// whole batches, so that no row passes through Python.
//
// keys: (n) ascending, each as 8 big-endian bytes, so that the order of the bytes is that of the
// numbers. rows: (n, ROW_BYTES). found: (n), 1 or 0; rows of absent keys are left as they are.
// Functions that return bool return false, and PeerOpen null, if they fail; then PeerError has the
// message.
#ifndef BENCHMARKS_NATIVE_PEER_STORE_H_
#define BENCHMARKS_NATIVE_PEER_STORE_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace peer {

constexpr size_t kKeyBytes = 8;
constexpr size_t kRowBytes = ROW_BYTES;
constexpr size_t kMostKeys = 4096, kLeastKeys = 32;  // that a thread takes at a time

// The first error of several threads.
class Failure {
 public:
  void Set(const std::string& message) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (message_.empty()) message_ = message;
    failed_ = true;
  }
  bool failed() const { return failed_; }
  const std::string& message() const { return message_; }

 private:
  std::mutex mutex_;
  std::string message_;
  std::atomic<bool> failed_{false};
};

// Keys that a thread takes at a time, so that the threads end at about the same time.
inline size_t PieceOf(size_t n, int threads) {
  return std::clamp(n / (8 * static_cast<size_t>(threads)), kLeastKeys, kMostKeys);
}

// Calls work(begin, end) for the pieces of [0, n) on several threads, until one fails.
template <typename Work>
void InPieces(size_t n, size_t piece, int threads, const Failure& failure, const Work& work) {
  std::atomic<size_t> next{0};
  const auto loop = [&] {
    while (!failure.failed()) {
      const size_t begin = next.fetch_add(piece);
      if (begin >= n) return;
      work(begin, std::min(begin + piece, n));
    }
  };
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(loop);
  loop();
  for (std::thread& other : others) other.join();
}

}  // namespace peer

extern "C" {

// The version of the library, such as "7.8.3".
const char* PeerVersion();
// The message of the last failure in this process.
const char* PeerError();
// Opens the store in the folder, and creates it if it does not exist. cores: for the store's own
// threads. read_ahead: whether the system should read ahead.
void* PeerOpen(const char* folder, int cores, bool read_ahead);
void PeerClose(void* store);
// Writes rows durably, and does the upkeep that is due then. empty: the store has no rows yet.
bool PeerWrite(void* store, const char* keys, const char* rows, size_t n, bool empty);
// scan: walk through all rows between the first and the last key, instead of a search for each key.
bool PeerRead(void* store, const char* keys, size_t n, char* rows, uint8_t* found, int threads,
              bool scan);
}

#endif  // BENCHMARKS_NATIVE_PEER_STORE_H_
