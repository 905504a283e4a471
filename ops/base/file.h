// Files of the store: positioned reads, sequential writes, and the few operations that make them
// durable. Every byte the native core reads or writes on disk passes through here, which is also
// where tests inject faults.
//
// Short reads and writes and EINTR are handled inside. ENOSPC, EDQUOT and EFBIG become OutOfSpace
// with path and bytes; ENOENT NotFound; everything else IOError with strerror.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"

namespace pbx {

enum class IoMode {
  kBuffered,  // through the page cache
  kDirect,    // past it where the file system allows that, else buffered
};

// What direct I/O wants offsets, sizes and addresses to be multiples of.
constexpr size_t kIoAlignment = 4096;

// Read-only. Thread safe: any number of threads may read at once.
class RandomAccessFile {
 public:
  static Result<std::unique_ptr<RandomAccessFile>> Open(const std::string& path,
                                                        IoMode mode = IoMode::kBuffered);
  ~RandomAccessFile();

  // Reads exactly size bytes at offset, of any alignment; fewer available is Corruption (the file
  // is shorter than its header said).
  Status Read(uint64_t offset, size_t size, char* out) const;

  uint64_t size() const { return size_; }
  bool direct() const { return direct_; }
  int fd() const { return fd_; }
  const std::string& path() const { return path_; }

 private:
  RandomAccessFile(std::string path, int fd, uint64_t size, bool direct);
  Status ReadPlain(uint64_t offset, size_t size, char* out, size_t* done) const;
  std::string path_;
  int fd_;
  uint64_t size_;
  bool direct_;
};

// Sequential writes into `path`.tmp, made durable and visible under `path` by Commit. Dropped
// without Commit, the temporary file is removed. Not thread safe.
class AtomicFileWriter {
 public:
  static Result<std::unique_ptr<AtomicFileWriter>> Create(const std::string& path,
                                                          IoMode mode = IoMode::kBuffered);
  ~AtomicFileWriter();

  // Direct: data and size are multiples of kIoAlignment, InvalidArgument otherwise.
  Status Append(const char* data, size_t size);
  // fdatasync, close, rename to path. The caller syncs the folder once for all its files
  // (SyncFolder). kCache: not synced, for what can be made again and has checksums.
  enum class Keep { kDurable, kCache };
  Status Commit(Keep keep = Keep::kDurable);

  uint64_t written() const { return written_; }

 private:
  AtomicFileWriter(std::string path, int fd, bool direct);
  std::string path_;
  int fd_;
  bool direct_;
  uint64_t written_ = 0;
};

// Makes sure that n files more than a process has by itself can be open: raises the soft limit.
// IOError that says what to raise where the hard limit is below.
Status EnsureOpenFiles(size_t n);

// fsync of a folder: makes the renames and creations inside it durable.
Status SyncFolder(const std::string& folder);

// For tests: the next writes fail once `bytes` more bytes have been written by AtomicFileWriter in
// this process, with errno `error` (e.g. ENOSPC). A negative `bytes` switches the fault off.
void InjectWriteFault(int64_t bytes, int error);

// For tests: what happens to a read of RandomAccessFile or AsyncReader in this process.
enum class ReadFault {
  kNone,
  kIoError,      // it, and every later one, fails with EIO
  kInterrupted,  // EINTR, once
  kShort,        // half of it comes, once
  kFlippedBit,   // it comes with a bit changed, once
};
// The read after the next `after` ones suffers the fault. kNone switches faults off.
void InjectReadFault(ReadFault fault, int64_t after = 0);
// For the places that read: the fault of this read.
ReadFault TakeReadFault();

}  // namespace pbx
