#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <utility>

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

std::mutex fault_mutex;
int64_t fault_bytes = -1;  // bytes that may still be written; negative: no fault
int fault_error = 0;

// How many of `size` bytes may be written; fewer than size means the write then fails with *error.
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

RandomAccessFile::RandomAccessFile(std::string path, int fd, uint64_t size)
    : path_(std::move(path)), fd_(fd), size_(size) {}

RandomAccessFile::~RandomAccessFile() { close(fd_); }

Result<std::unique_ptr<RandomAccessFile>> RandomAccessFile::Open(const std::string& path) {
  const int fd = OpenRetrying(path.c_str(), O_RDONLY);
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
  // Callers ask for whole ranges, so the kernel's guess at what comes next would only waste disk.
  posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
  return std::unique_ptr<RandomAccessFile>(
      new RandomAccessFile(path, fd, static_cast<uint64_t>(info.st_size)));
}

Status RandomAccessFile::Read(uint64_t offset, size_t size, char* out) const {
  size_t done = 0;
  while (done < size) {
    const ssize_t got = pread(fd_, out + done, size - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError(path_, "read", 0, errno);
    if (got == 0) {
      return Error(Code::kCorruption,
                   "%s: expected %zu bytes at offset %llu, the file ends after %zu", path_.c_str(),
                   size, static_cast<unsigned long long>(offset), done);
    }
    done += static_cast<size_t>(got);
  }
  return Status::Ok();
}

AtomicFileWriter::AtomicFileWriter(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

AtomicFileWriter::~AtomicFileWriter() {
  if (fd_ < 0) return;
  close(fd_);
  unlink((path_ + ".tmp").c_str());
}

Result<std::unique_ptr<AtomicFileWriter>> AtomicFileWriter::Create(const std::string& path) {
  const std::string temporary = path + ".tmp";
  const int fd = OpenRetrying(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (fd < 0) return SystemError(temporary, "create", 0, errno);
  return std::unique_ptr<AtomicFileWriter>(new AtomicFileWriter(path, fd));
}

Status AtomicFileWriter::Append(const char* data, size_t size) {
  if (fd_ < 0) {
    return Error(Code::kFailedPrecondition, "%s: Append after Commit", path_.c_str());
  }
  int fault = 0;
  const size_t allowed = AllowedBytes(size, &fault);
  size_t done = 0;
  while (done < allowed) {
    const ssize_t put = write(fd_, data + done, allowed - done);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return SystemError(path_, "write", written_, errno);
    done += static_cast<size_t>(put);
    written_ += static_cast<uint64_t>(put);
  }
  // The disk starts on what is here while the caller makes more; Commit would else wait for it all.
  if (written_ / kStartWritingBytes != (written_ - done) / kStartWritingBytes) {
    sync_file_range(fd_, 0, 0, SYNC_FILE_RANGE_WRITE);
  }
  return allowed == size ? Status::Ok() : SystemError(path_, "write", written_, fault);
}

Status AtomicFileWriter::Commit() {
  if (fd_ < 0) {
    return Error(Code::kFailedPrecondition, "%s: Commit was called twice", path_.c_str());
  }
  const std::string temporary = path_ + ".tmp";
  // On an error fd_ stays, and the destructor removes the file: after a failed sync the kernel may
  // have dropped the dirty pages, so trying again would prove nothing.
  if (fdatasync(fd_) != 0) return SystemError(path_, "sync", written_, errno);
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

Status SyncFolder(const std::string& folder) {
  const int fd = OpenRetrying(folder.c_str(), O_RDONLY | O_DIRECTORY);
  if (fd < 0) return SystemError(folder, "open the folder", 0, errno);
  const int error = fsync(fd) == 0 ? 0 : errno;
  close(fd);
  return error == 0 ? Status::Ok() : SystemError(folder, "sync the folder", 0, error);
}

}  // namespace pbx
