#include "base/file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/buffer.h"

namespace pbx {
namespace {

constexpr uint64_t kStartWritingBytes = 8u << 20;

Status SystemError(const std::string& path, const char* action, uint64_t bytes, int error) {
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    return Error(Code::kOutOfSpace, "%s: no space to %s (%llu bytes written so far): %s",
                 path.c_str(), action, static_cast<unsigned long long>(bytes),
                 std::strerror(error));
  }
  const Code code = error == ENOENT ? Code::kNotFound : Code::kIOError;
  return Error(code, "%s: cannot %s: %s", path.c_str(), action, std::strerror(error));
}

int OpenRetrying(const char* path, int flags, mode_t mode = 0) {
  int fd;
  do { fd = open(path, flags | O_CLOEXEC, mode); } while (fd < 0 && errno == EINTR);
  return fd;
}

// *direct: whether the file was opened with O_DIRECT, which needs kDirect and a file system that
// allows it.
int OpenInMode(const char* path, int flags, mode_t permissions, IoMode mode, bool* direct) {
  *direct = false;
  if (mode == IoMode::kDirect) {
    const int fd = OpenRetrying(path, flags | O_DIRECT, permissions);
    *direct = fd >= 0;
    if (fd >= 0 || errno != EINVAL) return fd;
  }
  return OpenRetrying(path, flags, permissions);
}

bool Aligned(uint64_t offset, size_t size, const char* memory) {
  return ((offset | size | reinterpret_cast<uintptr_t>(memory)) % kIoAlignment) == 0;
}

std::mutex fault_mutex;
int64_t fault_bytes = -1;  // bytes that may still be written; negative: no fault
int fault_error = 0;

std::atomic<bool> read_fault_armed{false};
ReadFault read_fault = ReadFault::kNone;
int64_t reads_before_fault = 0;

// How many of `size` bytes may be written. If the result is less than size, the write fails with
// *error after that many bytes.
size_t AllowedBytes(size_t size, int* error) {
  const std::lock_guard<std::mutex> lock(fault_mutex);
  if (fault_bytes < 0) return size;
  const size_t allowed = std::min(size, static_cast<size_t>(fault_bytes));
  fault_bytes -= static_cast<int64_t>(allowed);
  *error = fault_error;
  return allowed;
}

}  // namespace

void InjectWriteFault(int64_t bytes, int error) {
  const std::lock_guard<std::mutex> lock(fault_mutex);
  fault_bytes = bytes;
  fault_error = error;
}

void InjectReadFault(ReadFault fault, int64_t after) {
  const std::lock_guard<std::mutex> lock(fault_mutex);
  read_fault = fault;
  reads_before_fault = after;
  read_fault_armed = fault != ReadFault::kNone;
}

ReadFault TakeReadFault() {
  if (!read_fault_armed.load(std::memory_order_relaxed)) return ReadFault::kNone;
  const std::lock_guard<std::mutex> lock(fault_mutex);
  if (read_fault == ReadFault::kNone || reads_before_fault-- > 0) return ReadFault::kNone;
  const ReadFault taken = read_fault;
  if (taken == ReadFault::kIoError) {
    reads_before_fault = 0;
  } else {
    read_fault = ReadFault::kNone;
    read_fault_armed = false;
  }
  return taken;
}

RandomAccessFile::RandomAccessFile(std::string path, int fd, uint64_t size, bool direct)
    : path_(std::move(path)), fd_(fd), size_(size), direct_(direct) {}

RandomAccessFile::~RandomAccessFile() { close(fd_); }

Result<std::unique_ptr<RandomAccessFile>> RandomAccessFile::Open(const std::string& path,
                                                                 IoMode mode) {
  bool direct;
  const int fd = OpenInMode(path.c_str(), O_RDONLY, 0, mode, &direct);
  if (fd < 0) return SystemError(path, "open", 0, errno);
  struct stat info;
  if (fstat(fd, &info) != 0) {
    const int error = errno;
    close(fd);
    return SystemError(path, "stat", 0, error);
  }
  if (!S_ISREG(info.st_mode)) {
    close(fd);
    return Error(Code::kIOError, "%s: expected a plain file", path.c_str());
  }
  // Callers read whole ranges, so the kernel's read-ahead would only waste reads.
  if (!direct) posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
  return std::unique_ptr<RandomAccessFile>(
      new RandomAccessFile(path, fd, static_cast<uint64_t>(info.st_size), direct));
}

// Reads up to the end of the file. *done: the number of bytes read.
Status RandomAccessFile::ReadPlain(uint64_t offset, size_t size, char* out, size_t* done) const {
  *done = 0;
  while (*done < size) {
    const ReadFault fault = TakeReadFault();
    if (fault == ReadFault::kInterrupted) continue;
    if (fault == ReadFault::kIoError) return SystemError(path_, "read", 0, EIO);
    size_t wanted = size - *done;
    if (fault == ReadFault::kShort)
      wanted = (wanted / 2 + kIoAlignment) / kIoAlignment * kIoAlignment;
    const ssize_t got =
        pread(fd_, out + *done, std::min(wanted, size - *done), static_cast<off_t>(offset + *done));
    if (got < 0 && errno == EINTR) continue;
    if (fault == ReadFault::kFlippedBit && got > 0) out[*done + static_cast<size_t>(got) / 2] ^= 4;
    if (got < 0) return SystemError(path_, "read", 0, errno);
    if (got == 0) break;
    *done += static_cast<size_t>(got);
    // A direct read cannot continue at an offset that is not aligned. Only the end of the file may
    // be at such an offset.
    if (direct_ && *done % kIoAlignment != 0) break;
  }
  return Status::Ok();
}

Status RandomAccessFile::Read(uint64_t offset, size_t size, char* out) const {
  size_t done = 0;
  if (!direct_ || Aligned(offset, size, out)) {
    PBX_RETURN_IF_ERROR(ReadPlain(offset, size, out, &done));
  } else {
    const uint64_t begin = offset / kIoAlignment * kIoAlignment;
    const uint64_t end = (offset + size + kIoAlignment - 1) / kIoAlignment * kIoAlignment;
    auto buffer = Buffer::Allocate(end - begin);
    if (!buffer.ok()) return buffer.status();
    size_t got = 0;
    PBX_RETURN_IF_ERROR(ReadPlain(begin, end - begin, buffer.value().data(), &got));
    const size_t before = static_cast<size_t>(offset - begin);
    done = got > before ? std::min(size, got - before) : 0;
    std::copy_n(buffer.value().data() + before, done, out);
  }
  if (done == size) return Status::Ok();
  return Error(Code::kCorruption, "%s: expected %zu bytes at offset %llu, the file ends after %zu",
               path_.c_str(), size, static_cast<unsigned long long>(offset), done);
}

AtomicFileWriter::AtomicFileWriter(std::string path, int fd, bool direct)
    : path_(std::move(path)), fd_(fd), direct_(direct) {}

AtomicFileWriter::~AtomicFileWriter() {
  if (fd_ < 0) return;
  close(fd_);
  unlink((path_ + ".tmp").c_str());
}

Result<std::unique_ptr<AtomicFileWriter>> AtomicFileWriter::Create(const std::string& path,
                                                                   IoMode mode) {
  const std::string temporary = path + ".tmp";
  bool direct;
  const int fd = OpenInMode(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644, mode, &direct);
  if (fd < 0) return SystemError(temporary, "create", 0, errno);
  return std::unique_ptr<AtomicFileWriter>(new AtomicFileWriter(path, fd, direct));
}

Status AtomicFileWriter::Append(const char* data, size_t size) {
  if (fd_ < 0) {
    return Error(Code::kFailedPrecondition, "%s: Append after Commit", path_.c_str());
  }
  if (direct_ && !Aligned(0, size, data)) {
    return Error(Code::kInvalidArgument,
                 "%s: direct writes take multiples of %zu bytes, found %zu at %p", path_.c_str(),
                 kIoAlignment, size, static_cast<const void*>(data));
  }
  int fault = 0;
  size_t allowed = AllowedBytes(size, &fault);
  if (direct_) allowed -= allowed % kIoAlignment;
  size_t done = 0;
  while (done < allowed) {
    const ssize_t put = write(fd_, data + done, allowed - done);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return SystemError(path_, "write", written_, errno);
    done += static_cast<size_t>(put);
    written_ += static_cast<uint64_t>(put);
  }
  // The disk starts to write while the caller produces more data. Otherwise Commit would wait for
  // all of it.
  if (!direct_ && written_ / kStartWritingBytes != (written_ - done) / kStartWritingBytes) {
    sync_file_range(fd_, 0, 0, SYNC_FILE_RANGE_WRITE);
  }
  return allowed == size ? Status::Ok() : SystemError(path_, "write", written_, fault);
}

Status AtomicFileWriter::Commit(Keep keep) {
  if (fd_ < 0) {
    return Error(Code::kFailedPrecondition, "%s: Commit was called twice", path_.c_str());
  }
  const std::string temporary = path_ + ".tmp";
  // On an error fd_ stays open and the destructor removes the file. After a failed sync the kernel
  // may have dropped the dirty pages, so a second try would prove nothing.
  if (keep == Keep::kDurable && fdatasync(fd_) != 0)
    return SystemError(path_, "sync", written_, errno);
  if (std::rename(temporary.c_str(), path_.c_str()) != 0) {
    return SystemError(path_, "rename its temporary file", written_, errno);
  }
  const int fd = std::exchange(fd_, -1);
  if (close(fd) != 0 && errno != EINTR) {
    const int error = errno;
    unlink(path_.c_str());
    return SystemError(path_, "close", written_, error);
  }
  return Status::Ok();
}

Status EnsureOpenFiles(size_t n) {
  constexpr size_t kOthers = 256;  // other files that the process has open
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return SystemError("RLIMIT_NOFILE", "read", 0, errno);
  const rlim_t wanted = n + kOthers;
  if (limit.rlim_cur >= wanted) return Status::Ok();
  if (limit.rlim_max < wanted) {
    return Error(Code::kIOError,
                 "open files: %zu are needed, but the hard limit is %llu: raise it (ulimit -Hn)",
                 static_cast<size_t>(wanted), static_cast<unsigned long long>(limit.rlim_max));
  }
  limit.rlim_cur = wanted;
  return setrlimit(RLIMIT_NOFILE, &limit) == 0 ? Status::Ok()
                                               : SystemError("RLIMIT_NOFILE", "raise", 0, errno);
}

Status SyncFolder(const std::string& folder) {
  const int fd = OpenRetrying(folder.c_str(), O_RDONLY | O_DIRECTORY);
  if (fd < 0) return SystemError(folder, "open the folder", 0, errno);
  const int error = fsync(fd) == 0 ? 0 : errno;
  close(fd);
  return error == 0 ? Status::Ok() : SystemError(folder, "sync the folder", 0, error);
}

}  // namespace pbx
