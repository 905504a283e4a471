// Files of the store: positioned reads, sequential writes, and the few operations that make writes
// durable. Every byte that the native core reads from or writes to disk passes through here. Tests
// inject faults here.
//
// Short reads, short writes and EINTR are handled inside. ENOSPC, EDQUOT and EFBIG become
// OutOfSpace with path and bytes, ENOENT becomes NotFound, every other error IOError with strerror.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"

namespace pbx {

enum class IoMode {
  kBuffered,  // through the page cache
  kDirect,    // past the page cache if the file system allows it, otherwise buffered
};

// Direct I/O takes offsets, sizes and addresses that are multiples of this.
constexpr size_t kIoAlignment = 4096;

// Read-only. Thread safe: any number of threads may read at once.
class RandomAccessFile {
 public:
  static Result<std::unique_ptr<RandomAccessFile>> Open(const std::string& path,
                                                        IoMode mode = IoMode::kBuffered);
  ~RandomAccessFile();

  // Reads exactly size bytes at offset, with any alignment. Corruption if the file ends earlier
  // (then it is shorter than its header says).
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

// Sequential writes into `path`.tmp; Commit makes them durable and visible as `path`. Without
// Commit the destructor removes the temporary file. Not thread safe.
class AtomicFileWriter {
 public:
  static Result<std::unique_ptr<AtomicFileWriter>> Create(const std::string& path,
                                                          IoMode mode = IoMode::kBuffered);
  ~AtomicFileWriter();

  // In direct mode data and size must be multiples of kIoAlignment, otherwise InvalidArgument.
  Status Append(const char* data, size_t size);
  // fdatasync, rename to path, close. The caller syncs the folder once for all its files
  // (SyncFolder). kCache leaves out the sync: for files with checksums that can be made again.
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

// Raises the soft limit of open files to n plus a reserve for other files of the process. If the
// hard limit is lower, IOError, saying which limit to raise.
Status EnsureOpenFiles(size_t n);

// fsync of a folder: makes renames and new files in it durable.
Status SyncFolder(const std::string& folder);

// For tests: after `bytes` more bytes have been written by AtomicFileWriter in this process, writes
// fail with errno `error` (e.g. ENOSPC). A negative `bytes` switches the fault off.
void InjectWriteFault(int64_t bytes, int error);

// For tests: what happens to a read of RandomAccessFile or AsyncReader in this process.
enum class ReadFault {
  kNone,
  kIoError,      // this read and every later one fail with EIO
  kInterrupted,  // EINTR, once
  kShort,        // only half is read, once
  kFlippedBit,   // a bit of the result is changed, once
};
// The fault hits the read after the next `after` reads. kNone switches faults off.
void InjectReadFault(ReadFault fault, int64_t after = 0);
// For the code that reads: the fault that this read has to simulate.
ReadFault TakeReadFault();

}  // namespace pbx
